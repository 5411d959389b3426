"""Sound, and transcribers that have heard it."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgespec import EdgeTranscriber
from tests.heard import write_speech


@pytest.fixture(scope="session")
def speech_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tiny Whispers lie: target, and a draft of each kind."""
    root = tmp_path_factory.mktemp("speech")
    write_speech(root / "target")
    write_speech(root / "identical")
    write_speech(root / "random", seed=7, encoder_seed=8)
    write_speech(root / "distilled", seed=0, alone=True)
    write_speech(root / "random decoder", seed=7, alone=True)
    return root


@pytest.fixture(scope="session")
def transcriber(speech_models: Path) -> EdgeTranscriber:
    """Hears without a draft."""
    return EdgeTranscriber(speech_models / "target")


@pytest.fixture(scope="session")
def five_seconds() -> NDArray[np.float32]:
    """Noise that comes and goes: three windows of the tiny model."""
    rng = np.random.default_rng(3)
    loudness = np.abs(np.sin(np.linspace(0, 9, 80_000)))
    return (0.3 * loudness * rng.standard_normal(80_000)).clip(-1, 1).astype(np.float32)
