"""Features and rules of time are transformers' own."""

import warnings
from typing import Any

import numpy as np
import pytest

from edgespec.speech.features import log_mel, mel_filters
from edgespec.speech.rules import TimeRules

pytestmark = pytest.mark.export

NO_TIMES, END, V = 40, 30, 80


@pytest.mark.parametrize("num_mels", [80, 128])
@pytest.mark.parametrize("count", [0, 999, 160_001, 480_000])
def test_features_equal_the_feature_extractors(num_mels: int, count: int) -> None:
    from transformers import WhisperFeatureExtractor

    sound = np.random.default_rng(count).standard_normal(count).astype(np.float32)
    sound *= np.linspace(0, 0.3, count, dtype=np.float32)
    extractor: Any = WhisperFeatureExtractor
    extractor = extractor(feature_size=num_mels)
    theirs = extractor(sound, sampling_rate=16_000, return_tensors="np").input_features[0]
    ours = log_mel(sound, num_mels, 3000)
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() < 1e-5
    assert np.abs(mel_filters(num_mels) - extractor.mel_filters).max() < 1e-8


def test_rules_of_time_forbid_what_transformers_forbids() -> None:
    import torch
    from transformers import GenerationConfig, WhisperTimeStampLogitsProcessor

    rng = np.random.default_rng(0)
    config_class: Any = GenerationConfig
    config = config_class(
        eos_token_id=END, no_timestamps_token_id=NO_TIMES, max_initial_timestamp_index=5
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = WhisperTimeStampLogitsProcessor(config, begin_index=2)
    ours = TimeRules(2, NO_TIMES + 1, NO_TIMES, END, latest_start=5)
    kinds = set()
    for _ in range(400):
        length = int(rng.integers(0, 7))
        is_time = rng.random(length) < 0.5
        times = np.sort(rng.integers(NO_TIMES + 1, V, length))
        tokens = np.append([1, 2], np.where(is_time, times, rng.integers(0, END, length)))
        scores = (3 * rng.standard_normal(V)).astype(np.float32)
        expected = theirs(torch.from_numpy(tokens)[None], torch.from_numpy(scores)[None])[0].numpy()
        np.testing.assert_array_equal(ours(tokens.astype(np.int64), scores.copy()), expected)
        kinds.add(tuple(is_time[-2:].tolist()))
    assert len(kinds) == 7
