"""The exporter: a transformers checkpoint becomes a folder that edgespec runs without PyTorch."""

from pathlib import Path

from edgespec_export import families, folder, requirements
from edgespec_export.progress import Progress, Silent
from edgespec_export.quiet import quiet

__all__ = ["PRECISIONS", "WEIGHTS", "Progress", "export"]

PRECISIONS = ("fp32",)
WEIGHTS = ("fp32", "fp16")


def export(
    source: str | Path,
    out: str | Path | None = None,
    *,
    precision: str = "fp32",
    max_length: int | None = None,
    force: bool = False,
    weights: str = "fp32",
    check: bool = True,
    progress: Progress | None = None,
) -> Path:
    """Export a language model to a folder with ``model.onnx`` and all that it needs.

    The folder appears whole or not at all, and only if the written graph computes what the
    checkpoint computes.

    Args:
        source: A folder with a transformers checkpoint, or a name on the Hugging Face hub.
        out: The folder to make; None makes one in the working directory, named like the source.
        precision: How the graph computes; one of ``PRECISIONS``.
        max_length: Longest text in tokens, prompt included; None takes the model's own.
        force: Replace a model folder that exists at ``out``.
        weights: How the weights lie in the file: ``"fp32"``, or ``"fp16"`` for a file of half
            the size with weights rounded to float16. The graph computes in float32 either way.
        check: Compare the written graph with the checkpoint; False is for measuring alone.
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
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    if weights not in WEIGHTS:
        raise ValueError(f"weights must be one of {', '.join(WEIGHTS)}, got {weights!r}")
    if max_length is not None and max_length < 1:
        raise ValueError(f"max_length must be at least 1, got {max_length}")
    requirements.check_installed()
    name = str(source)
    target = Path(out) if out is not None else Path(Path(name).resolve().name)
    model_type = families.check_architecture(families.read_config(name))
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
            max_length=max_length,
            force=force,
            half_weights=weights == "fp16",
            check=check,
            progress=progress or Silent(),
        )
    return target
