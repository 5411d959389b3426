"""The exporter: a transformers checkpoint becomes a folder that edgespec runs without PyTorch."""

from pathlib import Path

from edgespec_export import drafts, families, folder, requirements
from edgespec_export.precision import PRECISIONS, choose
from edgespec_export.progress import Progress, Silent
from edgespec_export.quiet import quiet

__all__ = ["CACHES", "PRECISIONS", "WEIGHTS", "Progress", "export"]

CACHES = ("in_place", "static", "growing")
WEIGHTS = ("fp32", "fp16")


def export(
    source: str | Path,
    out: str | Path | None = None,
    *,
    cache: str = "in_place",
    precision: str = "fp32",
    accuracy_level: int | None = None,
    block_size: int | None = None,
    int8_layers: str | None = None,
    max_length: int | None = None,
    force: bool = False,
    weights: str = "fp32",
    check: bool = True,
    draft: str | Path | None = None,
    draft_precision: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Export a language model to a folder with ``model.onnx`` and all that it needs.

    The folder appears whole or not at all, and only if the written graph computes what the
    checkpoint computes.

    Args:
        source: A folder with a transformers checkpoint, a GGUF file, or a name on the Hugging
            Face hub.
        out: The folder to make; None makes one in the working directory, named like the source.
        cache: The layout of the key/value cache, one of ``CACHES``: ``"in_place"`` for ONNX
            Runtime, ``"static"`` for batches of texts of different lengths, ``"growing"`` for old
            runtimes and other tools.
        precision: How the graph computes; one of ``PRECISIONS``. ``"fp16"`` is for CUDA.
        accuracy_level: How int8 and int4 products compute: 4, the default, with activations
            rounded to int8 a block, which is fastest; 0 in float32.
        block_size: Weights that share a scale in int8 and int4; 32 by default.
        int8_layers: Which layers int4 keeps at 8 bits: ``"auto"``, the default, the embedding,
            ``lm_head`` and what a source of 4 bits itself holds finer; ``"mixed"``, also
            ``down_proj`` and the attention's values in the first and the last eighth of the
            layers and in every third between; ``"none"``.
        max_length: Longest text in tokens, prompt included; None takes the model's own.
        force: Replace a model folder that exists at ``out``.
        weights: How the weights lie in the file: ``"fp32"``, or ``"fp16"`` for a file of half
            the size with weights rounded to float16. The graph computes in float32 either way.
        draft: A draft model for the folder's ``draft/``: another source; ``"layers:N"``, the first
            N layers and the head of this one; or a precision, this one quantised.
        draft_precision: How the graph of a draft from another source computes; None for as the
            target's.
        check: Compare the written graph with the checkpoint; False keeps what it would refuse.
        progress: Is told of each step; None shows nothing.

    Returns:
        The folder that was made.

    Raises:
        ValueError: If an argument is out of its bounds.
        MissingExtraError: If packages of the extra ``export`` are not installed.
        UnsupportedArchitectureError: If the architecture cannot be exported; nothing was loaded.
        ModelFolderError: If ``source`` is a folder without a readable configuration.
        TokenizerError: If no ``tokenizer.json`` can be made, or it does not fit the model.
        ParityError: If the graph does not compute what the checkpoint does.
        ExportError: If anything else stands in the way.
    """
    if cache not in CACHES:
        raise ValueError(f"cache must be one of {', '.join(CACHES)}, got {cache!r}")
    chosen = choose(precision, accuracy_level, block_size, int8_layers)
    if weights not in WEIGHTS:
        raise ValueError(f"weights must be one of {', '.join(WEIGHTS)}, got {weights!r}")
    if weights == "fp16" and precision != "fp32":
        raise ValueError(f"weights='fp16' belongs to precision fp32, got {precision}")
    if precision == "fp16" and cache != "in_place":
        raise ValueError(f"precision fp16 needs the cache in_place, got {cache}")
    if max_length is not None and max_length < 1:
        raise ValueError(f"max_length must be at least 1, got {max_length}")
    requirements.check_installed()
    name = str(source)
    target = Path(out) if out is not None else Path(folder.name_of(name))
    config = families.read_config(name)
    model_type = families.check_architecture(config)
    asked = None
    if draft is not None:
        asked = drafts.plan(
            str(draft), config=config, precision=chosen, draft_precision=draft_precision
        )
    elif draft_precision is not None:
        raise ValueError(f"draft_precision {draft_precision!r} was given without a draft")
    folder.check_place(target, force=force)
    with quiet():
        # Imported here: this package is to be importable without the extra, and PyTorch takes
        # seconds to import.
        from edgespec_export import encoder_decoder, pipeline

        run = encoder_decoder.run if model_type in families.ENCODER_DECODERS else pipeline.run
        run(
            name,
            target,
            model_type=model_type,
            cache=cache,
            precision=chosen,
            max_length=max_length,
            force=force,
            half_weights=weights == "fp16",
            check=check,
            progress=progress or Silent(),
            draft=asked,
        )
    return target
