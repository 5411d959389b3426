"""The toy models, built and loaded once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgespec import EdgeGenerator
from tests.folders import (
    EOS,
    byte_tokenizer,
    metaspace_tokenizer,
    write_folder,
    write_in_place_folder,
)
from tests.toylm import HASH, MARKOV


@pytest.fixture(scope="session", autouse=True)
def _no_cache_of_the_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests measure stays out of the user's cache folder."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("EDGESPEC_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the toys lie: hash, markov, flat, in_place, int4, static, text and metaspace."""
    root = tmp_path_factory.mktemp("models")
    write_folder(root / "hash", HASH)
    write_folder(root / "markov", MARKOV)
    write_folder(root / "flat", HASH, height=1.0)
    write_in_place_folder(root / "in_place")
    write_in_place_folder(root / "int4", int4=True)
    write_in_place_folder(root / "static", layout="static")
    write_folder(root / "text", MARKOV, 257, tokenizer=byte_tokenizer(), eos=EOS)
    write_folder(root / "metaspace", MARKOV, 265, tokenizer=metaspace_tokenizer(adds_bos=True))
    return root


@pytest.fixture(scope="session")
def hash_model(models: Path) -> EdgeGenerator:
    """Every token depends on all before it."""
    return EdgeGenerator(models / "hash")


@pytest.fixture(scope="session")
def markov(models: Path) -> EdgeGenerator:
    """Counts upwards."""
    return EdgeGenerator(models / "markov")


@pytest.fixture(scope="session")
def flat(models: Path) -> EdgeGenerator:
    """As ``hash_model``, but little surer of one token than of the others."""
    return EdgeGenerator(models / "flat")


@pytest.fixture(scope="session")
def in_place(models: Path) -> EdgeGenerator:
    """Random weights around GroupQueryAttention, its cache in one buffer."""
    return EdgeGenerator(models / "in_place")


@pytest.fixture(scope="session")
def int4(models: Path) -> EdgeGenerator:
    """The same in four bits."""
    return EdgeGenerator(models / "int4")


@pytest.fixture(scope="session")
def static(models: Path) -> EdgeGenerator:
    """The same weights around TensorScatter and Attention."""
    return EdgeGenerator(models / "static")


@pytest.fixture(scope="session")
def text_model(models: Path) -> EdgeGenerator:
    """Counts upwards in bytes: after "abc" comes "defgh"."""
    return EdgeGenerator(models / "text")
