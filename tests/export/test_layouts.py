"""Every cache layout computes what transformers computes, and decodes to one text."""

from collections.abc import Callable
from pathlib import Path

import edgespec_export
import numpy as np
import onnx
import pytest
from edgespec_export import CACHES

from edgespec import EdgeGenerator
from edgespec.cli.info import describe
from edgespec.errors import ParityError
from edgespec.manifest import Manifest
from tests.export.checkpoints import CASES, reference_logits, write_checkpoint

pytestmark = pytest.mark.export

CHUNKS = (10, 1, 5, 1, 8, 15)
"""Forty tokens, five times the windows of 8, read in pieces of many sizes."""
FAMILIES = ("llama", "gpt2", "qwen2", "gemma2", "mistral, window", "gptj", "phi", "phi, small part")
STANDARD = {"growing": {""}, "static": {"", "com.microsoft"}, "in_place": {"", "com.microsoft"}}


@pytest.mark.parametrize("case", FAMILIES)
def test_one_trace_gives_every_layout(case: str, tmp_path: Path) -> None:
    import onnx_ir as ir
    from edgespec_export import checkpoint, parity, pipeline
    from edgespec_export.quiet import quiet
    from edgespec_export.tidy import tidy
    from edgespec_export.trace import trace
    from edgespec_export.weights import write_model
    from edgespec_export.written import Written

    source = write_checkpoint(tmp_path / "checkpoint", case)
    tokens = np.random.default_rng(1).integers(3, 300, sum(CHUNKS)).tolist()
    expected = reference_logits(source, tokens)
    with quiet():
        loaded = checkpoint.load(str(source), CASES[case][0], None)
        traced = trace(loaded.copy_for_trace())
    tidy(traced.graph)
    for cache in CACHES:
        model = ir.from_proto(ir.to_proto(traced))
        shape = pipeline.LAYOUTS[cache].apply(model)
        pipeline.finish(model, cache, loaded.max_length)
        path = tmp_path / f"{cache}.onnx"
        write_model(model, path)
        assert {node.domain for node in onnx.load(path).graph.node} <= STANDARD[cache]
        written = Written(path, shape, 64, layout=cache)
        rows = [written.read(tokens[written.length : written.length + n]) for n in CHUNKS]
        assert np.abs(np.concatenate(rows) - expected).max() < 1e-4, cache
        parity.check(path, loaded.model, shape, layout=cache, max_length=64, windows=(8,))


@pytest.fixture(scope="module")
def gemma_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a window in one layer, a soft cap in both, and two query heads to a key."""
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "gemma", "gemma2")


@pytest.fixture(scope="module")
def folders(gemma_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("layouts")
    return {
        cache: edgespec_export.export(gemma_checkpoint, root / cache, cache=cache)
        for cache in CACHES
    }


@pytest.mark.parametrize("cache", CACHES)
def test_the_manifest_says_what_a_layout_needs(cache: str, folders: dict[str, Path]) -> None:
    manifest = Manifest.read(folders[cache])
    assert manifest is not None
    assert manifest.cache_layout == cache
    opset, ir_version = (int(manifest.versions[f"onnx_{n}"]) for n in ("opset", "ir_version"))
    assert (opset, ir_version) == {"in_place": (20, 10), "static": (24, 11), "growing": (17, 8)}[
        cache
    ]
    oldest = {"in_place": "1.22", "static": "1.28", "growing": "1.12"}[cache]
    facts = describe(EdgeGenerator(folders[cache]))
    assert (facts["cache_layout"], facts["min_onnxruntime"]) == (cache, oldest)
    model = onnx.load(folders[cache] / "model.onnx", load_external_data=False)
    assert (model.opset_import[0].version, model.ir_version) == (opset, ir_version)
    assert ("two texts" in manifest.parity["max_abs_diff"]) == (cache != "in_place")


@pytest.mark.parametrize("lookup", [False, True], ids=["plain", "lookup"])
def test_texts_do_not_depend_on_the_layout(folders: dict[str, Path], lookup: bool) -> None:
    prompt = [7, 8, 9, 7, 8, 9, 7, 8]
    texts = {
        cache: EdgeGenerator(folder)
        .generate(prompt, max_new_tokens=40, lookup=lookup, eos_token_id=None)
        .tokens.tolist()
        for cache, folder in folders.items()
    }
    assert len(texts["in_place"]) == 40
    assert texts["static"] == texts["in_place"]
    assert texts["growing"] == texts["in_place"]


def test_a_prefill_makes_no_logits_and_a_static_buffer_grows_in_steps(
    folders: dict[str, Path],
) -> None:
    from edgespec.cache.static import STEP, StaticCache

    model = EdgeGenerator(folders["static"]).model
    assert isinstance(model.cache, StaticCache)
    model.reserve(64)
    assert model.cache.bytes_held == 0
    model.prefill(np.arange(3, 20))
    assert model.cache.bytes_held == STEP * model.cache.shape.bytes_per_position
    assert model._logits.size == 0


Damage = Callable[[onnx.ModelProto], None]


def node_of(model: onnx.ModelProto, op_type: str) -> onnx.NodeProto:
    found: onnx.NodeProto = next(node for node in model.graph.node if node.op_type == op_type)
    return found


def see_the_next_token(model: onnx.ModelProto) -> None:
    """The mask of the growing layout, off by one."""
    compare = node_of(model, "LessOrEqual")
    add_ints(model, "one_more", [1])
    later = onnx.helper.make_node("Add", [compare.input[1], "one_more"], ["later"])
    model.graph.node.insert(list(model.graph.node).index(compare), later)
    compare.input[1] = "later"


def widen_the_window(model: onnx.ModelProto) -> None:
    compare = node_of(model, "Greater")
    add_ints(model, "one_more", [1])
    earlier = onnx.helper.make_node("Sub", [compare.input[1], "one_more"], ["earlier"])
    model.graph.node.insert(list(model.graph.node).index(compare), earlier)
    compare.input[1] = "earlier"


def look_at_padding(model: onnx.ModelProto) -> None:
    cast = node_of(model, "Cast")
    assert cast.input[0] == "attention_mask"
    always = onnx.helper.make_node(
        "Or", [f"{cast.output[0]}_", f"{cast.output[0]}_not"], list(cast.output)
    )
    turned = onnx.helper.make_node("Not", [f"{cast.output[0]}_"], [f"{cast.output[0]}_not"])
    place = list(model.graph.node).index(cast) + 1
    cast.output[0] = f"{cast.output[0]}_"
    model.graph.node.insert(place, always)
    model.graph.node.insert(place, turned)


def write_one_place_too_far(model: onnx.ModelProto) -> None:
    scatter = node_of(model, "TensorScatter")
    add_ints(model, "one_more", [1])
    moved = onnx.helper.make_node("Add", [scatter.input[2], "one_more"], ["moved"])
    model.graph.node.insert(list(model.graph.node).index(scatter), moved)
    scatter.input[2] = "moved"


def count_the_longest_for_all(model: onnx.ModelProto) -> None:
    """Each text of a batch counted as long as the longest: one alone is right by chance."""
    for node in model.graph.node:
        if node.op_type == "ReduceSum" and node.input[0] == "attention_mask":
            whole = onnx.helper.make_node("ReduceMax", [node.output[0] + "_"], ["longest"])
            same = onnx.helper.make_node("Expand", ["longest", "texts"], [node.output[0]])
            shape = onnx.helper.make_node("Shape", [node.output[0] + "_"], ["texts"])
            place = list(model.graph.node).index(node) + 1
            node.output[0] += "_"
            for made in (same, shape, whole):
                model.graph.node.insert(place, made)
            return
    raise AssertionError("no ReduceSum of the mask")


def forget_the_softcap(model: onnx.ModelProto) -> None:
    attend = node_of(model, "Attention")
    kept = [a for a in attend.attribute if a.name != "softcap"]
    del attend.attribute[:]
    attend.attribute.extend(kept)


def add_ints(model: onnx.ModelProto, name: str, numbers: list[int]) -> None:
    tensor = onnx.numpy_helper.from_array(np.array(numbers, np.int64), name)
    model.graph.initializer.append(tensor)


@pytest.mark.parametrize(
    ("cache", "damage", "said"),
    [
        ("growing", see_the_next_token, "^past 0, new 12: step 0"),
        ("growing", widen_the_window, r"^past 0, new 12: step 8 \(position 8\)"),
        ("growing", look_at_padding, "^two texts, the padded: step 0"),
        ("static", widen_the_window, r"^past 0, new 12: step 8 \(position 8\)"),
        ("static", write_one_place_too_far, "^past 0, new 12: step 1"),
        ("static", count_the_longest_for_all, "^two texts, past 3: step 3"),
        ("static", forget_the_softcap, "^past 0, new 12: step 1"),
    ],
)
def test_the_gate_notices(
    cache: str,
    damage: Damage,
    said: str,
    folders: dict[str, Path],
    gemma_checkpoint: Path,
    tmp_path: Path,
) -> None:
    from edgespec_export import checkpoint, parity
    from edgespec_export.cache_layouts.base import CacheShape
    from edgespec_export.quiet import quiet

    model = onnx.load(folders[cache] / "model.onnx")
    damage(model)
    onnx.save(model, tmp_path / "model.onnx")
    with quiet():
        loaded = checkpoint.load(str(gemma_checkpoint), "gemma2", None)
        with pytest.raises(ParityError, match=said):
            parity.check(
                tmp_path / "model.onnx",
                loaded.model,
                CacheShape(2, 2, 16),
                layout=cache,
                max_length=64,
                windows=(8,),
            )


def test_a_growing_cache_that_is_not_cropped_cannot_run(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mask is as long as the past should be, so a longer past is no silent fault."""
    from edgespec.cache.growing import GrowingCache

    model = EdgeGenerator(folders["growing"]).model
    model.prefill(np.array([5, 6, 7, 8, 9]))
    model.rewind(3)
    monkeypatch.setattr(GrowingCache, "_crop", lambda self: None)
    with pytest.raises(Exception, match=r"broadcast|dimension|axis"):
        model.forward(np.array([10]))


def test_an_unknown_layout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^cache must be one of in_place, static, growing, got 'paged'$"
    ):
        edgespec_export.export(tmp_path, cache="paged")
