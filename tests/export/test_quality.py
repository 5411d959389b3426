"""The gate for graphs that round: near passes and is told, a planted fault does not pass."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from edgespec_export.precision import choose

from edgespec.errors import ParityError
from tests.export.checkpoints import write_checkpoint

pytestmark = pytest.mark.export


class Judged:
    """A checkpoint, its float32 graph, and what the gate says of a graph made from that."""

    def __init__(self, checkpoint_folder: Path, folder: Path) -> None:
        from edgespec_export import checkpoint
        from edgespec_export.quiet import quiet

        self.folder = folder
        with quiet():
            self.loaded = checkpoint.load(str(checkpoint_folder), "llama", None)

    def graph(self) -> ir.Model:
        return ir.load(self.folder / "model.onnx")

    def write(self, out: Path, precision: str, model: ir.Model | None = None) -> Path:
        from edgespec_export import half, quality
        from edgespec_export.quantize import quantize

        model = model or self.graph()
        if precision == "fp16":
            tokens, _ = quality.texts(self.loaded.encode, 64)
            half.to_half(model.graph, half.overflowing(self.loaded.model, tokens))
        else:
            quantize(model.graph, choose(precision), 2)
        ir.save(model, out / "model.onnx")
        return out / "model.onnx"

    def check(self, path: Path, precision: str) -> dict[str, Any]:
        from edgespec_export import quality
        from edgespec_export.cache_layouts.base import CacheShape

        return quality.check(
            path,
            self.loaded.model,
            CacheShape(2, 2, 16),
            precision=precision,
            encode=self.loaded.encode,
            max_length=64,
        )


@pytest.fixture
def judged(llama_checkpoint: Path, llama_folder: Path) -> Judged:
    return Judged(llama_checkpoint, llama_folder)


@pytest.mark.parametrize(("precision", "limit"), [("fp16", 1e-4), ("int8", 5e-3), ("int4", 0.3)])
def test_a_sound_graph_passes_and_is_told(
    precision: str, limit: float, judged: Judged, tmp_path: Path
) -> None:
    measured = judged.check(judged.write(tmp_path, precision), precision)
    assert 0 <= measured["kl"] < limit
    assert measured["kl_limit"] >= measured["kl"]
    assert abs(measured["perplexity"] / measured["perplexity_fp32"] - 1) < 0.2
    assert measured["greedy_tokens"] == 96
    assert set(measured["max_abs_diff"]) == {"7+5", "2+10", "5+2+3+2", "rewind", "keep 2"}


def shift_minima(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        if tensor.name.endswith(".minima"):
            array = onnx.numpy_helper.to_array(tensor)
            scales = next(
                onnx.numpy_helper.to_array(t)
                for t in model.graph.initializer
                if t.name == tensor.name.replace(".minima", ".scales")
            )
            tensor.CopyFrom(onnx.numpy_helper.from_array(array + 4 * scales, tensor.name))


def quantise_the_embedding_again(model: onnx.ModelProto) -> None:
    """Its codes taken for weights and scaled once more."""
    for tensor in model.graph.initializer:
        if tensor.name.endswith("embed_tokens.scales"):
            array = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array * array, tensor.name))
        if tensor.name.endswith("embed_tokens.qweight"):
            codes = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(codes // 16, tensor.name))


@pytest.mark.parametrize("damage", [shift_minima, quantise_the_embedding_again])
def test_a_planted_fault_is_refused(damage: Any, judged: Judged, tmp_path: Path) -> None:
    path = judged.write(tmp_path, "int4")
    model = onnx.load(path)
    before = model.SerializeToString()
    damage(model)
    assert model.SerializeToString() != before
    onnx.save(model, path)
    said = (
        r"^the int4 graph's mean divergence from the checkpoint is [\d.]+ nats over \d+ positions, "
        r"at most 0.4 is allowed \(\d+ of 96 greedy picks are equal\); choose a finer precision"
    )
    with pytest.raises(ParityError, match=said) as caught:
        judged.check(path, "int4")
    assert float(str(caught.value).split()[9]) > 2


def test_a_graph_that_loses_count_of_positions_is_refused(judged: Judged, tmp_path: Path) -> None:
    path = judged.write(tmp_path, "int8")
    model = onnx.load(path)
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            node.input[9] = "from_zero"
    first = onnx.helper.make_node("ReduceMin", ["position_ids"], ["first"], keepdims=1)
    shifted = onnx.helper.make_node("Sub", ["position_ids", "first"], ["from_zero"])
    model.graph.node.insert(0, first)
    model.graph.node.insert(1, shifted)
    onnx.save(model, path)
    with pytest.raises(ParityError, match=r"^7\+5: read in pieces, the graph's logits differ by"):
        judged.check(path, "int8")


def test_outliers_stay_numbers_in_float16(judged: Judged, tmp_path: Path) -> None:
    """An activation of 10^6, as some models' first tokens have, is beyond float16."""
    import torch

    model = judged.graph()
    layer = judged.loaded.model.model.layers[0].mlp
    with torch.no_grad():
        layer.up_proj.weight.mul_(3000)
        layer.down_proj.weight.mul_(300)
    for name, factor in (("up_proj", 3000), ("down_proj", 300)):
        key = f"model.layers.0.mlp.{name}.weight.T"
        value = model.graph.initializers[key]
        assert value.const_value is not None
        value.const_value = ir.tensor(value.const_value.numpy() * np.float32(factor), name=key)
    path = judged.write(tmp_path, "fp16", model)
    measured = judged.check(path, "fp16")
    assert measured["kl"] < 0.01
    kinds = {t.name: t.data_type for t in onnx.load(path).graph.initializer}
    assert kinds["model.layers.0.mlp.down_proj.weight.T"] == onnx.TensorProto.FLOAT
    assert kinds["model.layers.1.mlp.down_proj.weight.T.fp16"] == onnx.TensorProto.FLOAT16


def test_the_cache_of_a_float16_graph_is_float16(judged: Judged, tmp_path: Path) -> None:
    model = onnx.load(judged.write(tmp_path, "fp16"))
    kinds = {
        v.name: v.type.tensor_type.elem_type for v in [*model.graph.input, *model.graph.output]
    }
    assert kinds["past_key_values.0.key"] == kinds["present.1.value"] == onnx.TensorProto.FLOAT16
    assert kinds["logits"] == onnx.TensorProto.FLOAT


@pytest.mark.parametrize("case", ["qwen2", "gpt2"])
def test_a_whole_export_says_how_near_it_is(case: str, tmp_path: Path) -> None:
    import edgespec_export

    from edgespec.manifest import Manifest

    checkpoint = write_checkpoint(tmp_path / "checkpoint", case)
    folder = edgespec_export.export(checkpoint, tmp_path / "out", precision="int4")
    manifest = Manifest.read(folder)
    assert manifest is not None
    assert (manifest.precision, manifest.weights_dtype) == ("int4", "int4")
    assert (manifest.accuracy_level, manifest.block_size) == (4, 32)
    assert (manifest.int8_layers, manifest.cache_dtype) == ("auto", "float32")
    assert 0 < manifest.parity["kl"] <= manifest.parity["kl_limit"]
    nodes = onnx.load(folder / "model.onnx").graph.node
    left = [n.op_type for n in nodes if any(".weight.T" in name for name in n.input)]
    assert left == []


@pytest.mark.parametrize("cache", ["growing", "static"])
def test_int4_in_the_other_layouts_holds_a_tied_embedding_once(cache: str, tmp_path: Path) -> None:
    import edgespec_export

    from edgespec import EdgeGenerator
    from edgespec.manifest import Manifest

    checkpoint = write_checkpoint(tmp_path / "checkpoint", "llama tied")
    folder = edgespec_export.export(checkpoint, tmp_path / "out", precision="int4", cache=cache)
    manifest = Manifest.read(folder)
    assert manifest is not None
    assert (manifest.precision, manifest.cache_layout) == ("int4", cache)
    assert manifest.min_onnxruntime == {"growing": "1.23", "static": "1.28"}[cache]
    model = onnx.load(folder / "model.onnx")
    opset = {"growing": 17, "static": 24}[cache]
    assert {o.domain: o.version for o in model.opset_import} == {"": opset, "com.microsoft": 1}
    matrices = [t for t in model.graph.initializer if len(t.dims) == 2 and min(t.dims) > 16]
    assert [t.name for t in matrices if t.data_type == onnx.TensorProto.FLOAT] == []
    readers = [n.op_type for n in model.graph.node if "lm_head.qweight" in n.input]
    assert sorted(readers) == ["GatherBlockQuantized", "MatMulNBits"]
    generator = EdgeGenerator(folder)
    prompt = [7, 8, 9, 7, 8, 9, 7, 8]
    plain, lookup = (
        generator.generate(prompt, max_new_tokens=24, eos_token_id=None, lookup=lookup, exact=True)
        for lookup in (False, True)
    )
    assert lookup.tokens.tolist() == plain.tokens.tolist()
    assert lookup.stats.proposed > 0


@pytest.mark.parametrize("case", ["llama tied", "gpt2"])
def test_a_whole_float16_export_keeps_the_model(case: str, tmp_path: Path) -> None:
    import edgespec_export

    from edgespec.manifest import Manifest

    checkpoint = write_checkpoint(tmp_path / "checkpoint", case)
    folder = edgespec_export.export(checkpoint, tmp_path / "out", precision="fp16")
    manifest = Manifest.read(folder)
    assert manifest is not None
    assert (manifest.cache_dtype, manifest.weights_dtype) == ("float16", "float16")
    assert 0 < manifest.parity["kl"] < 1e-4
    graph = onnx.load(folder / "model.onnx").graph
    matrices = [t for t in graph.initializer if len(t.dims) == 2 and min(t.dims) > 16]
    assert {t.data_type for t in matrices} == {onnx.TensorProto.FLOAT16}
