"""Encoder-decoders compute with a cache, in three graphs, what transformers computes in one."""

import json
import warnings
from pathlib import Path
from typing import Any

import edgespec_export
import numpy as np
import onnx
import pytest
from edgespec_export import families

from edgespec import EdgeSeq2Seq, EdgeTranscriber
from edgespec.errors import ExportError, ParityError
from edgespec.manifest import CROSS, ENCODER, Manifest
from tests.export.checkpoints import write_tokenizer

pytestmark = pytest.mark.export

SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
WHISPER = {
    **SPECIAL,
    "vocab_size": 320,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "max_source_positions": 50,
    "max_target_positions": 64,
    "num_mel_bins": 16,
}
T5 = {
    **SPECIAL,
    "vocab_size": 320,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 96,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "whisper": ("WhisperForConditionalGeneration", WHISPER),
    "whisper, decoder alone": ("WhisperForCausalLM", WHISPER),
    "t5": ("T5ForConditionalGeneration", T5),
    "t5, gated and untied": (
        "T5ForConditionalGeneration",
        {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
}


def write_pair(folder: Path, case: str) -> Path:
    """A checkpoint with random weights, large enough for each part to matter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        import transformers

        name, settings = CASES[case]
        torch.manual_seed(0)
        model_class = getattr(transformers, name)
        model = model_class(model_class.config_class(**settings)).float()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim == 1:
                    weight.add_(0.1 * torch.randn_like(weight))
                else:
                    weight.copy_(0.2 * torch.randn_like(weight))
        model.save_pretrained(folder)
        write_tokenizer(folder, 320)
    return folder


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoint and folder of each case."""
    root = tmp_path_factory.mktemp("pairs")
    for case in CASES:
        edgespec_export.export(write_pair(root / case, case), root / f"{case} out")
    return {case: root / case for case in CASES}


def test_every_encoder_decoder_is_tested() -> None:
    named = {case.split(",")[0] for case in CASES}
    assert named == set(families.ENCODER_DECODERS)


@pytest.mark.parametrize("case", CASES)
def test_the_gate_measures_every_part(case: str, exported: dict[str, Path]) -> None:
    folder = exported[case].with_name(f"{case} out")
    manifest = Manifest.read(folder)
    assert manifest is not None
    assert manifest.kind == "encoder_decoder"
    assert manifest.parity["greedy_equal"] == manifest.parity["greedy_tokens"] == 32
    assert max(manifest.parity["max_abs_diff"].values()) < 1e-3
    alone = case.endswith("alone")
    assert (folder / ENCODER).is_file() is not alone
    assert ("encoder_max_abs_diff" in manifest.parity) is not alone
    assert (manifest.encoder_sha256 is None) is alone


@pytest.mark.parametrize("case", CASES)
def test_the_cache_is_in_place_and_nothing_of_the_encoder_is_in_the_decoder(
    case: str, exported: dict[str, Path]
) -> None:
    graph = onnx.load(exported[case].with_name(f"{case} out") / "model.onnx").graph
    kinds = [node.op_type for node in graph.node]
    layers = 2 if case.startswith("whisper") else 3
    assert kinds.count("GroupQueryAttention") == layers
    assert kinds.count("MultiHeadAttention") == layers
    assert {"Concat", "GatherND", "CachedAttention", "CrossAttention"}.isdisjoint(kinds)
    names = {value.name for value in graph.input}
    assert "encoder_hidden_states" not in names
    assert {f"cross_key_values.{n}.key" for n in range(layers)} <= names


def test_a_quantised_decoder_keeps_its_targets_encoder(
    exported: dict[str, Path], tmp_path: Path
) -> None:
    folder = edgespec_export.export(exported["whisper"], tmp_path / "out", precision="int8")
    target = Manifest.read(exported["whisper"].with_name("whisper out"))
    manifest = Manifest.read(folder)
    assert manifest is not None
    assert target is not None
    assert manifest.precision == "int8"
    assert manifest.encoder_sha256 == target.encoder_sha256
    assert 0 < manifest.parity["kl"] < manifest.parity["kl_limit"]
    kinds = {node.op_type for node in onnx.load(folder / "model.onnx").graph.node}
    assert "MatMulNBits" in kinds


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"precision": "fp16"}, "--precision fp16"),
        ({"cache": "growing"}, "--cache growing"),
        ({"draft": "int4"}, "--draft"),
    ],
)
def test_what_is_only_for_decoders_is_refused(
    options: dict[str, Any], named: str, exported: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(ExportError) as raised:
        edgespec_export.export(exported["whisper"], tmp_path / "out", **options)
    assert str(raised.value) == (
        f"{named} is not to be had for whisper, an encoder-decoder; leave it out"
    )


def test_t5_writes_what_transformers_writes(exported: dict[str, Path]) -> None:
    source = np.random.default_rng(0).integers(3, 270, 30).tolist()
    model = EdgeSeq2Seq(exported["t5"].with_name("t5 out"))
    expected = _greedy("T5ForConditionalGeneration", exported["t5"], source, model.model.known_ids)
    for lookup in (False, True):
        found = model.generate(
            source, max_new_tokens=40, eos_token_id=[], lookup=lookup, num_assistant_tokens=4
        )
        assert found.tokens.tolist() == expected


def _greedy(name: str, checkpoint: Path, source: list[int], known_ids: int) -> list[int]:
    """40 tokens below ``known_ids``, each picked after one pass without a cache."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        import transformers

        model = getattr(transformers, name).from_pretrained(checkpoint).eval()
        text = [SPECIAL["decoder_start_token_id"]]
        with torch.no_grad():
            for _ in range(40):
                logits = model(
                    input_ids=torch.tensor([source]),
                    decoder_input_ids=torch.tensor([text]),
                    use_cache=False,
                ).logits
                text.append(int(logits[0, -1, :known_ids].argmax()))
    return text[1:]


def test_a_decoder_alone_drafts_for_the_whole(exported: dict[str, Path]) -> None:
    for case in ("whisper", "whisper, decoder alone"):
        folder = exported[case].with_name(f"{case} out")
        said = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
        said |= {"no_timestamps_token_id": 250}
        (folder / "generation_config.json").write_text(json.dumps(said), encoding="utf-8")
    target = exported["whisper"].with_name("whisper out")
    draft = exported["whisper"].with_name("whisper, decoder alone out")
    sound = np.random.default_rng(0).standard_normal(16_000).astype(np.float32).clip(-1, 1)
    plain = EdgeTranscriber(target)
    assisted = EdgeTranscriber(target, draft=draft)
    options: dict[str, Any] = {"temperature": 0.0, "no_speech_threshold": None}
    expected = plain.transcribe(sound, **options)
    found = assisted.transcribe(sound, num_assistant_tokens=3, **options)
    assert [s.tokens for s in found.segments] == [s.tokens for s in expected.segments]
    assert found.stats.evaluated > 0


@pytest.mark.parametrize("part", [ENCODER, CROSS])
def test_a_fault_in_any_part_is_found(
    part: str, exported: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from edgespec_export import weights

    write = weights.write_model

    def with_a_fault(model: Any, path: Path) -> None:
        if path.name == part:
            first = next(v for v in model.graph.initializers.values() if v.const_value.size > 500)
            import onnx_ir as ir

            first.const_value = ir.tensor(first.const_value.numpy() * 1.01, name=first.name)
        write(model, path)

    monkeypatch.setattr(weights, "write_model", with_a_fault)
    with pytest.raises(ParityError, match="differs from the checkpoint by"):
        edgespec_export.export(exported["whisper"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
