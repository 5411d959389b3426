from pathlib import Path

import numpy as np
import pytest

from edgespec import EdgeGenerator
from edgespec.arrays import Logits, TokenIds
from edgespec.errors import ExactnessError
from edgespec.exact import InPairs, require_exact
from edgespec.model import PREFILL_ROWS, CausalLM

pytestmark = pytest.mark.onnx


def read(target: InPairs, tokens: TokenIds, sizes: list[int]) -> Logits:
    target.rewind(0)
    ends = np.cumsum(sizes)
    return np.concatenate(
        [target.forward(tokens[e - s : e]).copy() for s, e in zip(sizes, ends, strict=True)]
    )


@pytest.mark.parametrize(
    "sizes", [[30], [1] * 30, [2] * 15, [1, 29], [7, 1, 5, 1, 16], [29, 1], [17, 13]], ids=str
)
def test_every_row_has_the_same_bits_however_the_text_is_cut(
    in_place: EdgeGenerator, sizes: list[int]
) -> None:
    target = InPairs(in_place.model)
    tokens = np.random.default_rng(1).integers(0, 64, 30)
    whole = read(target, tokens, [15, 15])
    assert read(target, tokens, sizes).tobytes() == whole.tobytes()
    assert target.length == 30


@pytest.mark.parametrize("count", [0, 1, 2, PREFILL_ROWS, PREFILL_ROWS + 1, 2 * PREFILL_ROWS + 1])
def test_a_prefill_leaves_the_cache_as_forwards_do(in_place: EdgeGenerator, count: int) -> None:
    target = InPairs(in_place.model)
    tokens = np.random.default_rng(2).integers(0, 64, count + 3)
    target.rewind(0)
    target.prefill(tokens[:count])
    assert target.length == count
    after = target.forward(tokens[count:]).copy()
    assert after.tobytes() == read(target, tokens, [count + 3])[count:].tobytes()


def test_the_probe_is_content_where_rows_are_independent() -> None:
    require_exact(EdgeGenerator().model)


class Mixing(CausalLM):
    """Rows that depend on how many are read together, as with one scale for a whole activation."""

    def forward(self, tokens: TokenIds) -> Logits:
        return super().forward(tokens) * np.float32(1 + 1e-6 * len(tokens))


def test_the_probe_refuses_rows_that_depend_on_each_other(models: Path) -> None:
    generator = EdgeGenerator(models / "in_place")
    mixing = Mixing(generator.session, generator.folder.manifest)
    with pytest.raises(
        ExactnessError,
        match=r"^exact=True cannot be had with \S+model.onnx on CPUExecutionProvider: row 0 of 40 "
        r"differs by \S+ when read in pieces of 2; leave exact out, or export the model in fp32$",
    ):
        require_exact(mixing)
