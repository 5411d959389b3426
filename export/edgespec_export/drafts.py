"""A draft that an export puts beside its target: what is asked for, and how it will serve."""

import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.errors import VocabularyMismatchError
from edgespec.tokenizer import Tokenizer, require_same_token_ids
from edgespec_export import families, folder
from edgespec_export.precision import Precision, choose
from edgespec_export.progress import Progress

_LAYERS = re.compile(r"layers:(\d+)")
_PRECISION = re.compile(r"(fp|bf|int)\d+")


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft that is to be exported.

    Attributes:
        source: Its checkpoint; None for the target's own.
        model_type: As its configuration says.
        precision: How its graph computes.
        layers: How many of the first layers it has, weights shared with the target; None for all.
    """

    source: str | None
    model_type: str
    precision: Precision
    layers: int | None


def plan(
    asked: str,
    *,
    config: dict[str, Any],
    precision: Precision,
    draft_precision: str | None,
) -> Draft:
    """What ``asked`` means for a target; nothing is loaded but a configuration.

    Args:
        asked: ``"layers:N"``, a precision, or a source as :func:`edgespec_export.export` takes it.
        config: The target's ``config.json``.
        precision: The target's.
        draft_precision: What the caller said of the draft's, if anything.

    Raises:
        ValueError: If it cannot be meant.
        ExportError: If the draft's architecture cannot be exported.
    """
    wanted = precision if draft_precision is None else choose(draft_precision)
    if layers := _LAYERS.fullmatch(asked):
        count = config.get("num_hidden_layers") or config.get("n_layer") or 0
        if not 1 <= int(layers[1]) < count:
            raise ValueError(
                f"draft layers:N must keep 1 to {count - 1} of the {count} layers, got {layers[1]}"
            )
        if wanted != precision:
            raise ValueError(
                f"draft {asked} shares the target's weights, so its precision is {precision.name}, "
                f"got {wanted.name}"
            )
    elif _PRECISION.fullmatch(asked):
        if draft_precision not in (None, asked):
            raise ValueError(f"draft {asked} is a precision, got draft_precision {draft_precision}")
        if asked == precision.name:
            raise ValueError(f"draft {asked} would be its target once more; choose a cheaper one")
        wanted = choose(asked)
    else:
        model_type = families.check_architecture(families.read_config(asked))
        return Draft(asked, model_type, wanted, None)
    kept = int(layers[1]) if layers else None
    return Draft(None, str(config["model_type"]), wanted, kept)


def serves(model: Path) -> str:
    """Which generator lets the draft in the folder ``model`` propose, and why.

    The tokenizers are compared by content, as the runtime compares them when it loads the two.
    """
    target, draft = (Tokenizer(place / "tokenizer.json") for place in (model, model / folder.DRAFT))
    try:
        require_same_token_ids(draft, target)
    except VocabularyMismatchError as error:
        first = str(error).split(";")[0]
        return f"universal: it proposes by way of the text, as {first}"
    return "assisted: it proposes token ids, which mean the same to both"


class DraftProgress:
    """Tells of a draft's steps as such."""

    def __init__(self, progress: Progress) -> None:
        """Tell ``progress``."""
        self._progress = progress

    def step(self, name: str) -> AbstractContextManager[object]:
        """A context that lasts as long as the step called ``name``."""
        return self._progress.step(f"draft: {name}")
