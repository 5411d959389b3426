"""How an exported graph computes: the precisions on offer and what they ask of each layer."""

import re
from dataclasses import dataclass

PRECISIONS = ("fp32", "fp16", "int8", "int4")
QUANTISED = ("int8", "int4")
ACCURACY_LEVELS = (0, 1, 2, 3, 4)
BLOCK_SIZES = (16, 32, 64, 128, 256)
INT8_LAYERS = ("auto", "none", "mixed")


@dataclass(frozen=True, slots=True)
class Precision:
    """A precision and its settings; those of MatMulNBits count where it is int8 or int4.

    Attributes:
        name: One of ``PRECISIONS``.
        accuracy_level: MatMulNBits' own: 4 computes with activations rounded to int8 a block,
            0 and 1 in float32.
        block_size: How many weights along the input axis share a scale.
        int8_layers: Which layers an int4 graph keeps at 8 bits: ``"none"``; ``"auto"``, the
            embedding, ``lm_head`` and what a source of 4 bits itself holds finer; ``"mixed"``,
            also ``down_proj`` and the attention's values in the first and the last eighth of the
            layers and in every third between.
    """

    name: str = "fp32"
    accuracy_level: int = 4
    block_size: int = 32
    int8_layers: str = "auto"

    def __post_init__(self) -> None:
        """Check the bounds.

        Raises:
            ValueError: If something is out of them.
        """
        for name, allowed in (
            ("name", PRECISIONS),
            ("accuracy_level", ACCURACY_LEVELS),
            ("block_size", BLOCK_SIZES),
            ("int8_layers", INT8_LAYERS),
        ):
            if getattr(self, name) not in allowed:
                said = "precision" if name == "name" else name
                known = ", ".join(map(str, allowed))
                raise ValueError(f"{said} must be one of {known}, got {getattr(self, name)!r}")

    @property
    def is_quantised(self) -> bool:
        """Whether weights are integers with a scale a block."""
        return self.name in QUANTISED

    @property
    def bits(self) -> int:
        """Bits of a weight in most layers."""
        return {"int8": 8, "int4": 4}[self.name]

    def bits_of(self, weight: str, num_layers: int) -> int:
        """Bits of the weight called ``weight`` in a model of ``num_layers`` layers."""
        if self.name == "int4" and self.int8_layers == "mixed" and _is_mixed(weight, num_layers):
            return 8
        return self.bits

    @property
    def bits_of_vocabulary(self) -> int:
        """Bits of the embedding and of ``lm_head``."""
        return 4 if self.name == "int4" and self.int8_layers == "none" else 8


def choose(
    name: str,
    accuracy_level: int | None = None,
    block_size: int | None = None,
    int8_layers: str | None = None,
) -> Precision:
    """A precision from what a user said; None takes the default.

    Raises:
        ValueError: If something is out of its bounds, or has no meaning for this precision.
    """
    given = {
        key: value
        for key, value in (
            ("accuracy_level", accuracy_level),
            ("block_size", block_size),
            ("int8_layers", int8_layers),
        )
        if value is not None
    }
    chosen = Precision(name, **given)  # type: ignore[arg-type]  # each is of its field's type
    if given and not chosen.is_quantised:
        raise ValueError(f"{next(iter(given))} belongs to precision int8 or int4, got {name}")
    if "int8_layers" in given and name != "int4":
        raise ValueError(f"int8_layers belongs to precision int4, got {name}")
    return chosen


def _is_mixed(weight: str, num_layers: int) -> bool:
    """llama.cpp's choice for its Q4_K_M files, which also reads values and ``down_proj`` finer."""
    place = re.search(r"\.(\d+)\.", weight)
    if place is None or not re.search(r"qkv_proj|v_proj|c_attn|down_proj|fc2|fc_out", weight):
        return False
    layer, eighth = int(place[1]), num_layers // 8
    return layer < eighth or layer >= num_layers - eighth or (layer - eighth) % 3 == 2
