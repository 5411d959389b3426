"""The gate for an encoder-decoder: each written graph against the checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from edgespec.errors import ParityError
from edgespec.manifest import CROSS, ENCODER
from edgespec.threads import pool_is_shared
from edgespec_export import folder, parity, quality
from edgespec_export.cache_layouts.base import CacheShape
from edgespec_export.checkpoint import Checkpoint
from edgespec_export.trace_parts import HIDDEN, cross_names, decoder_logits

SOURCE_TOKENS = 19
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class ReferenceOnSource(parity.Reference):
    """The checkpoint's decoder, read in one pass without a cache, on one source.

    Attributes:
        hidden: [1, N, E] the encoder's output.
    """

    hidden: torch.Tensor

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """[T, V] for T tokens."""
        with torch.no_grad():
            found = decoder_logits(self.model, torch.tensor([list(tokens)]), self.hidden)
        array: NDArray[np.float32] = found[0].float().numpy()
        return array


def check_parts(
    building: Path, loaded: Checkpoint, cache: CacheShape, precision: str
) -> dict[str, Any]:
    """Compare the graphs in a folder with a checkpoint and give what was measured.

    Encoder and keys and values are in float32; the decoder is of ``precision``, and judged by
    divergence where that is another.

    Raises:
        ParityError: Naming the first graph or step that differs.
    """
    reference = loaded.model
    measured: dict[str, Any] = {}
    if (building / ENCODER).is_file():
        name, source = _source(reference)
        with torch.no_grad():
            hidden = reference.get_encoder()(torch.from_numpy(source)).last_hidden_state
        (ours,) = _run(building / ENCODER, {name: source}, [HIDDEN])
        measured["encoder_max_abs_diff"] = _compare("encoder", ours, hidden.numpy())
    else:
        length = reference.config.max_source_positions
        hidden = torch.from_numpy(_noise(1, length, reference.config.d_model))
    names = cross_names(cache.num_layers)
    given = _run(building / CROSS, {HIDDEN: hidden.numpy()}, names)
    truth = ReferenceOnSource(reference, hidden)
    how: dict[str, Any] = {
        "max_length": loaded.max_length,
        "truth": truth,
        "given": dict(zip(names, given, strict=True)),
    }
    path = building / folder.MODEL
    if precision == "fp32":
        return measured | parity.check(path, reference, cache, **how)
    return measured | quality.check(
        path, reference, cache, precision=precision, encode=loaded.encode, **how
    )


def _source(model: PreTrainedModel) -> tuple[str, Array]:
    """Something to encode, and the input that takes it."""
    if model.config.model_type == "whisper":
        frames = 2 * model.config.max_source_positions
        return "input_features", _noise(1, model.config.num_mel_bins, frames)
    tokens = np.random.default_rng(1).integers(0, model.config.vocab_size, (1, SOURCE_TOKENS))
    return "input_ids", tokens


def _noise(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def _run(path: Path, feeds: dict[str, Array], outputs: list[str]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.use_per_session_threads = not pool_is_shared()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return list(session.run(outputs, feeds))


def _compare(part: str, got: Array, expected: Array) -> float:
    limit = parity.RELATIVE_TOLERANCE * max(1.0, float(np.abs(expected).max()))
    difference = float(np.abs(got - expected).max())
    if not difference <= limit:  # written so that NaN fails
        raise ParityError(
            f"the {part} differs from the checkpoint by {difference:.3g}, "
            f"at most {limit:.3g} is rounding"
        )
    return difference
