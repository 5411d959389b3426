import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import EdgeGenerator
from edgespec.errors import PrefixFileError
from edgespec.model_folder import open_model_folder
from tests.folders import byte_tokenizer, write_folder
from tests.inplace import KV_HEADS, LAYERS, D
from tests.toylm import HASH, MARKOV

pytestmark = pytest.mark.onnx

SYSTEM = list(range(40))
OTHER = list(range(63, 20, -1))


@pytest.fixture(params=["hash", "in_place"])
def generator(request: pytest.FixtureRequest, models: Path) -> EdgeGenerator:
    """A model that depends on all it read, once for each layout, with an empty cache."""
    return EdgeGenerator(models / request.param)


def written(generator: EdgeGenerator, prompt: list[int], **options: Any) -> tuple[list[int], int]:
    """The text, and how many tokens of the prompt were not read for it."""
    result = generator.generate(prompt, max_new_tokens=10, **options)
    return result.tokens.tolist(), result.stats.reused_tokens


def afresh(generator: EdgeGenerator, prompt: list[int]) -> list[int]:
    return written(EdgeGenerator(generator.folder.folder), prompt)[0]


@pytest.mark.parametrize("exact", [False, True])
def test_a_kept_prefix_outlives_other_texts(generator: EdgeGenerator, exact: bool) -> None:
    if exact:
        generator = EdgeGenerator()  # whose kernels allow it on every machine
    assert generator.prefixes.keep("rules", SYSTEM) == 40
    for question in ([50, 51], [52], [53, 54, 55]):
        written(generator, OTHER, exact=exact)
        prompt = [*SYSTEM, *question]
        assert written(generator, prompt, exact=exact) == (afresh(generator, prompt), 40)


def test_a_part_of_a_prefix_is_used_too_and_the_longest_of_several(
    generator: EdgeGenerator,
) -> None:
    generator.prefixes.keep("long", SYSTEM)
    generator.prefixes.keep("short", SYSTEM[:10])
    generator.prefixes.keep("other", [*SYSTEM[:30], 63, 63])
    for prompt, reused in (([*SYSTEM[:35], 1], 35), ([*SYSTEM[:30], 63, 63, 4], 32)):
        written(generator, OTHER)
        assert written(generator, prompt) == (afresh(generator, prompt), reused)


def test_what_the_cache_holds_of_a_text_goes_before_a_shorter_prefix(
    generator: EdgeGenerator,
) -> None:
    generator.prefixes.keep("rules", SYSTEM[:20])
    written(generator, SYSTEM)
    assert written(generator, [*SYSTEM, 1]) == (afresh(generator, [*SYSTEM, 1]), 40)


def test_buffers_stay_where_they_are_when_a_prefix_is_copied_in(models: Path) -> None:
    generator = EdgeGenerator(models / "in_place")
    generator.prefixes.keep("rules", SYSTEM)
    written(generator, OTHER)
    before = generator.model.cache.generation
    assert written(generator, [*SYSTEM, 1])[1] == 40
    assert generator.model.cache.generation == before


def test_dropping_frees_what_was_kept(models: Path) -> None:
    generator = EdgeGenerator(models / "in_place")
    generator.prefixes.keep("rules", SYSTEM)
    assert (list(generator.prefixes), len(generator.prefixes)) == (["rules"], 1)
    assert generator.prefixes.bytes_held == 40 * 2 * LAYERS * KV_HEADS * D * 4
    generator.prefixes.drop("rules")
    assert "rules" not in generator.prefixes
    assert generator.prefixes.bytes_held == 0
    written(generator, OTHER)
    assert written(generator, [*SYSTEM, 1])[1] == 0


def test_kept_prefixes_outlive_a_model_that_is_loaded_again(models: Path) -> None:
    generator = EdgeGenerator(models / "in_place")
    generator.prefixes.keep("rules", SYSTEM)
    generator._loading.load()  # as the first call with a draft does
    assert written(generator, [*SYSTEM, 1])[1] == 40


def test_a_text_and_messages_are_laid_out_as_a_call_does(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "chat", MARKOV, 257, tokenizer=byte_tokenizer())
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    generator = EdgeGenerator(folder)
    system = {"role": "system", "content": "Be brief."}
    assert generator.prefixes.keep("rules", [system]) == len("<system>Be brief.")
    generator.generate("another text", max_new_tokens=3)
    result = generator.chat([system, {"role": "user", "content": "Why?"}], max_new_tokens=3)
    assert result.stats.reused_tokens == len("<system>Be brief.")
    generator.prefixes.keep("text", "Once upon a time")
    assert generator.generate("Once upon a day", max_new_tokens=3).stats.reused_tokens == 12


class TestFiles:
    """A prefix in a file goes on with the model that read it, and with no other."""

    def test_another_process_goes_on_from_it(
        self, generator: EdgeGenerator, tmp_path: Path
    ) -> None:
        generator.prefixes.keep("rules", SYSTEM)
        generator.prefixes.save("rules", tmp_path / "rules.npz")
        other = EdgeGenerator(generator.folder.folder)
        assert other.prefixes.load(tmp_path / "rules.npz") == "rules"
        prompt = [*SYSTEM, 1, 2]
        assert written(other, prompt) == (afresh(generator, prompt), 40)

    @pytest.mark.parametrize("at", [0.0, 0.2, 0.5, 0.8])
    @pytest.mark.parametrize("how", ["cut", "changed"])
    def test_a_damaged_file_is_refused(
        self, models: Path, tmp_path: Path, how: str, at: float
    ) -> None:
        generator, path = EdgeGenerator(models / "in_place"), tmp_path / "rules.npz"
        generator.prefixes.keep("rules", SYSTEM)
        generator.prefixes.save("rules", path)
        content = bytearray(path.read_bytes())
        place = int(len(content) * at)
        if how == "cut":
            del content[place:]
        else:
            content[place : place + 4] = bytes(b ^ 0xFF for b in content[place : place + 4])
        path.write_bytes(content)
        said = f"^{path} is no saved prefix, or a damaged one; save the prefix again$"
        with pytest.raises(PrefixFileError, match=said):
            generator.prefixes.load(path)
        assert len(generator.prefixes) == 1

    def test_no_byte_of_a_file_can_be_wrong_in_a_way_that_is_not_told(
        self, models: Path, tmp_path: Path
    ) -> None:
        """Among them flags of the archive: encrypted, packed by another method, of a later form."""
        generator, path = EdgeGenerator(models / "hash"), tmp_path / "rules.npz"
        generator.prefixes.keep("rules", SYSTEM)
        generator.prefixes.save("rules", path)
        content = path.read_bytes()
        about_archive = content.index(b"PK\x01\x02")
        refused = 0
        for at in range(about_archive, len(content)):
            for change in (0xFF, 0x01, 0x08):
                wrong = bytes([content[at] ^ change])
                path.write_bytes(content[:at] + wrong + content[at + 1 :])
                try:
                    generator.prefixes.load(path)
                except PrefixFileError:
                    refused += 1
        assert refused > 100

    def test_a_file_of_another_model_is_refused(self, models: Path, tmp_path: Path) -> None:
        path = tmp_path / "rules.npz"
        generator = EdgeGenerator(models / "hash")
        generator.prefixes.keep("rules", SYSTEM)
        generator.prefixes.save("rules", path)
        with pytest.raises(
            PrefixFileError,
            match=rf"^{path} was made with another model: the graph is \w{{12}}\.\.\., here "
            r"\w{12}\.\.\.; save the prefix again with this model$",
        ):
            EdgeGenerator(models / "markov").prefixes.load(path)

    def test_a_newer_format_is_refused(self, models: Path, tmp_path: Path) -> None:
        path = tmp_path / "rules.npz"
        about = np.frombuffer(json.dumps({"format": 2}).encode(), np.uint8)
        np.savez(path, about=about)
        with pytest.raises(
            PrefixFileError,
            match=rf"^{path} has format 2, this edgespec reads 1; update edgespec, or save the "
            "prefix again$",
        ):
            EdgeGenerator(models / "hash").prefixes.load(path)

    def test_a_prefix_that_another_machine_read_is_not_taken_for_exact(
        self, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "rules.npz"
        generator = EdgeGenerator(models / "hash")
        generator.prefixes.keep("rules", SYSTEM)
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr("edgespec.prefixes.processor", lambda: "another")
            generator.prefixes.save("rules", path)
        other = EdgeGenerator(models / "hash")
        other.prefixes.load(path)
        assert written(other, [*SYSTEM, 1], exact=True)[1] == 0
        generator.prefixes.save("rules", path)
        other.prefixes.load(path)
        written(other, OTHER, exact=True)
        assert written(other, [*SYSTEM, 1], exact=True)[1] == 40
        written(other, OTHER)
        assert written(other, [*SYSTEM, 1])[1] == 40

    def test_what_cannot_be_read_or_written_is_said(self, models: Path, tmp_path: Path) -> None:
        generator = EdgeGenerator(models / "hash")
        with pytest.raises(PrefixFileError, match=r"none.npz cannot be read: No such file"):
            generator.prefixes.load(tmp_path / "none.npz")
        generator.prefixes.keep("rules", SYSTEM)
        with pytest.raises(PrefixFileError, match=r"x.npz cannot be written: No such file"):
            generator.prefixes.save("rules", tmp_path / "none" / "x.npz")
        with pytest.raises(ValueError, match=r"^no prefix 'rule' is kept; kept are 'rules'$"):
            generator.prefixes.save("rule", tmp_path / "x.npz")
        with pytest.raises(ValueError, match=r"^no prefix 'rule' is kept; kept are 'rules'$"):
            generator.prefixes.drop("rule")
        assert list(tmp_path.iterdir()) == []

    def test_other_weights_beside_the_same_graph_are_another_model(self, tmp_path: Path) -> None:
        import onnx

        folder = write_folder(tmp_path / "model", HASH)
        graph = onnx.load(folder / "model.onnx")
        onnx.save(
            graph,
            folder / "model.onnx",
            save_as_external_data=True,
            location="weights.bin",
            size_threshold=0,
        )
        before = open_model_folder(folder).sha256()
        weights = folder / "weights.bin"
        assert weights.is_file()
        weights.write_bytes(weights.read_bytes()[:-1] + b"?")
        assert open_model_folder(folder).sha256() != before


def test_a_prefix_that_leaves_no_room_is_refused(models: Path) -> None:
    generator = EdgeGenerator(models / "hash", max_length=40)
    with pytest.raises(
        ValueError,
        match=r"^the prefix has 40 tokens and the longest text 40, which leaves no room behind it; "
        r"shorten the prefix or raise max_length$",
    ):
        generator.prefixes.keep("rules", SYSTEM)
    with pytest.raises(
        ValueError, match=r"^prompt must hold at least one token, got an empty one$"
    ):
        generator.prefixes.keep("rules", "" if generator.tokenizer else [])
