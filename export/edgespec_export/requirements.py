"""Whether the packages of the extra ``export`` are installed, found out without importing them."""

import importlib.metadata
import importlib.util
from collections.abc import Mapping

from edgespec.errors import MissingExtraError

PACKAGES = {
    "torch": "torch",
    "transformers": "transformers",
    "optimum": "optimum",
    "onnx": "onnx",
    "onnx_ir": "onnx-ir",
    "onnxscript": "onnxscript",
}
"""Module names and the names that pip knows them by."""
GGUF = {"gguf": "gguf", "accelerate": "accelerate"}
"""What transformers needs besides to read GGUF files."""


def check_installed(packages: Mapping[str, str] = PACKAGES) -> None:
    """Return if every one of ``packages``, which are those of the extra, can be imported.

    Raises:
        MissingExtraError: Naming the packages that are missing.
    """
    missing = [pip_name for module, pip_name in packages.items() if not _is_importable(module)]
    if missing:
        raise MissingExtraError(
            f"exporting needs {', '.join(missing)}, not installed here; "
            'run: pip install "edgespec[export]"'
        )


def versions() -> dict[str, str]:
    """Versions of the installed tools that shape an export, by pip name."""
    names = [*PACKAGES.values(), "onnxruntime", "tokenizers"]
    return {name: importlib.metadata.version(name) for name in names}


def _is_importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:
        # A module put into sys.modules as None, or without a spec: blocked on purpose.
        return False
