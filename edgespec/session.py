"""One ONNX graph, run through IO binding: the only place that makes an ``InferenceSession``."""

import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import DTypeLike

from edgespec.errors import (
    GraphMismatchError,
    ModelFolderError,
    ProcessError,
    ProviderError,
    RuntimeTooOldError,
)
from edgespec.threads import Pool, join_pool

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
DTYPES: dict[str, DTypeLike] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}


@dataclass(frozen=True, slots=True)
class Slot:
    """An input or output of a graph.

    Attributes:
        name: Its name in the graph.
        shape: Its axes; a number where the graph fixes it, else a name or None.
        dtype: Element type.
    """

    name: str
    shape: tuple[int | str | None, ...]
    dtype: np.dtype[np.generic]


class Session:
    """A loaded graph."""

    def __init__(
        self,
        path: Path,
        *,
        provider: str = "auto",
        threads: int | None = None,
        share_threads: bool = False,
        own_threads: bool = False,
    ) -> None:
        """Load ``path``.

        Args:
            path: The ``.onnx`` file; external data is looked for beside it.
            provider: ``"cpu"``, ``"cuda"``, or ``"auto"``: CUDA where this ONNX Runtime has it.
            threads: Threads to compute with; None counts the CPUs that the process may use.
            share_threads: Work in turn with other sessions of the process, in one pool.
            own_threads: Keep out of such a pool.

        Raises:
            ModelFolderError: If the file, or the data that it refers to, is missing or broken.
            RuntimeTooOldError: If the installed ONNX Runtime cannot read the graph.
            ProviderError: If CUDA was asked for and is not what the session runs on.
        """
        self.path = path.resolve()
        wanted = _wanted_provider(provider)
        pool = join_pool(threads, share=share_threads, own=own_threads)
        self._session = _load(self.path, wanted, pool)
        self.threads, self.shares_threads = pool.threads, pool.shared
        self.provider = self._session.get_providers()[0]
        self.runtime = f"onnxruntime {ort.__version__}"
        if wanted not in self._session.get_providers():
            if provider != "auto":
                raise ProviderError(_provider_advice(wanted))
            warnings.warn(
                f"{wanted} is installed but could not be used; {self.provider} runs instead",
                RuntimeWarning,
                stacklevel=3,
            )
        self.device = "cuda" if self.provider == PROVIDERS["cuda"] else "cpu"
        self.inputs = {i.name: _slot(i) for i in self._session.get_inputs()}
        self.outputs = {o.name: _slot(o) for o in self._session.get_outputs()}
        self._pid = os.getpid()
        self._fetched_only = ort.RunOptions()
        # Without logits among the fetches this leaves the whole lm_head out of a prefill.
        self._fetched_only.only_execute_path_to_fetches = True

    def new_binding(self) -> ort.IOBinding:
        """An empty set of bound inputs and outputs."""
        return self._session.io_binding()

    def run(self, binding: ort.IOBinding, *, fetched_only: bool = False) -> None:
        """Run the graph on what is bound.

        Args:
            binding: From :meth:`new_binding`.
            fetched_only: Leave out the nodes that no bound output needs.

        Raises:
            ProcessError: In a forked child: ONNX Runtime's threads do not survive a fork.
        """
        if os.getpid() != self._pid:
            raise ProcessError(
                f"{self.path.name} was loaded in process {self._pid} and is used in {os.getpid()}; "
                "make the EdgeGenerator after the fork"
            )
        # Options cost 0.1 ms a run where there are any (onnxruntime 1.32, profiled).
        self._session.run_with_iobinding(binding, self._fetched_only if fetched_only else None)


def require_onnxruntime(path: Path, needed: str | None) -> None:
    """Return if the installed ONNX Runtime is as new as the exporter says that it must be.

    Raises:
        RuntimeTooOldError: If it is older.
    """
    if needed is not None and _version(ort.__version__) < _version(needed):
        raise RuntimeTooOldError(
            f"{path} needs onnxruntime {needed} or newer, found {ort.__version__}; "
            "pip install -U onnxruntime, or export the model again with --cache growing"
        )


def _version(text: str) -> tuple[int, ...]:
    """Major and minor number: what a graph needs comes with those."""
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def _slot(node: ort.NodeArg) -> Slot:
    if node.type not in DTYPES:
        raise GraphMismatchError(
            f"{node.name} has the element type {node.type}, "
            f"known are {', '.join(DTYPES)}; export the model again"
        )
    return Slot(node.name, tuple(node.shape), np.dtype(DTYPES[node.type]))


def _wanted_provider(provider: str) -> str:
    """The ONNX Runtime name of what the caller asked for."""
    available = ort.get_available_providers()
    if provider == "auto":
        return PROVIDERS["cuda"] if PROVIDERS["cuda"] in available else PROVIDERS["cpu"]
    if provider not in PROVIDERS:
        raise ValueError(f"provider must be 'auto', 'cpu' or 'cuda', got {provider!r}")
    if PROVIDERS[provider] not in available:
        raise ProviderError(_provider_advice(PROVIDERS[provider]))
    return PROVIDERS[provider]


def _provider_advice(wanted: str) -> str:
    """Says why ``wanted`` is not to be had, and which command changes that."""
    found = [d for d in ("onnxruntime", "onnxruntime-gpu") if _installed(d)]
    if len(found) == 2:
        return (
            f"{wanted} is not available: onnxruntime and onnxruntime-gpu are both installed and "
            "hide each other; pip uninstall -y onnxruntime onnxruntime-gpu && "
            "pip install onnxruntime-gpu"
        )
    if found == ["onnxruntime-gpu"]:
        return (
            f"{wanted} is not available though onnxruntime-gpu is installed: its CUDA or cuDNN "
            "libraries were not found; install those that its release notes name, or use "
            "provider='cpu'"
        )
    return (
        f"{wanted} is not available: this ONNX Runtime offers "
        f"{', '.join(ort.get_available_providers())}; "
        "pip uninstall -y onnxruntime && pip install onnxruntime-gpu"
    )


def _installed(distribution: str) -> bool:
    # Here, as it brings a mail parser with it: a fifth of the time that `import edgespec` took.
    from importlib.metadata import PackageNotFoundError, version

    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True


def _load(path: Path, provider: str, pool: Pool) -> ort.InferenceSession:
    """A session, or the reason why there is none in one sentence."""
    if not path.is_file():
        raise ModelFolderError(f"{path} does not exist; pass an exported model's folder or file")
    options = ort.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is said once, by the exception
    if pool.shared:
        options.use_per_session_threads = False
    else:
        options.intra_op_num_threads = pool.threads
        options.inter_op_num_threads = 1
        if not pool.spins:
            options.add_session_config_entry("session.force_spinning_stop", "1")
    try:
        # Without a fall-back, or ONNX Runtime prints each failure and tries the CPU in silence.
        return ort.InferenceSession(str(path), options, providers=[provider], enable_fallback=0)
    except Exception as error:  # ONNX Runtime's errors share no base class but this (1.32, tried)
        raise _load_error(path, str(error)) from None


_POSITION = r"^\[ONNXRuntimeError\] : \d+ : \w+ : (Load model from .*? failed:)?"


def _load_error(path: Path, said: str) -> Exception:
    """Turns ONNX Runtime's message (as worded by 1.23 to 1.32) into one of ours."""
    said = re.sub(_POSITION, "", said.strip())
    found = f"onnxruntime {ort.__version__}"
    if ir := re.search(r"IR version: (\d+), max supported IR version: (\d+)", said):
        return RuntimeTooOldError(
            f"{path} has ONNX IR version {ir[1]}, and {found} reads at most {ir[2]}; "
            "pip install -U onnxruntime, or export the model with an older IR version"
        )
    if opset := re.search(r"Opset (\d+) is under development.*?domain (\S+) is till", said):
        return RuntimeTooOldError(
            f"{path} uses opset {opset[1]} of {opset[2]}, which {found} does not know; "
            "pip install -U onnxruntime"
        )
    if re.search(r"No Op registered|not a registered|Unrecognized attribute|No opset import", said):
        return RuntimeTooOldError(
            f"{path} uses an operator that {found} does not know ({said.split('Error ')[-1]}); "
            "pip install -U onnxruntime"
        )
    if missing := re.search(r"(?:does not exist: \"|No such file or directory \[)([^\"\]]+)", said):
        return ModelFolderError(
            f"{path} keeps its weights in {Path(missing[1]).name}, which is not beside it; "
            "copy that file there under this name, or export the model again"
        )
    if "external tensors" in said:
        return ModelFolderError(
            f"{path} keeps constants of its graph in a file beside it, which {found} cannot read "
            "from there; export the model again"
        )
    if "out of bounds or can not be read in full" in said:
        return ModelFolderError(
            f"the file of weights beside {path} is missing or cut short; "
            "copy it again, or export the model again"
        )
    if re.search(r"Protobuf parsing failed|No graph was found|not have a graph", said):
        return ModelFolderError(
            f"{path} is not a whole ONNX file (damaged or cut short); copy or export it again"
        )
    return ModelFolderError(f"{path} cannot be loaded by {found}: {' '.join(said.split())[:300]}")
