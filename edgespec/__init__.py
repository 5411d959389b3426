"""Assisted (speculative) decoding on ONNX Runtime: the model's own text, sooner.

>>> from edgespec import EdgeGenerator
>>> result = EdgeGenerator("model.onnx").generate("text", lookup=True)  # doctest: +SKIP
"""

from edgespec.candidates.base import CandidateGenerator, Candidates
from edgespec.candidates.prompt_lookup import PromptLookupCandidateGenerator
from edgespec.errors import EdgespecError
from edgespec.generator import EdgeGenerator, Result
from edgespec.options import Options
from edgespec.seq2seq import EdgeSeq2Seq
from edgespec.speech.transcriber import EdgeTranscriber, Segment, Transcription
from edgespec.stats import Stats
from edgespec.stream import Chunk, Stream

__all__ = [
    "CandidateGenerator",
    "Candidates",
    "Chunk",
    "EdgeGenerator",
    "EdgeSeq2Seq",
    "EdgeTranscriber",
    "EdgespecError",
    "Options",
    "PromptLookupCandidateGenerator",
    "Result",
    "Segment",
    "Stats",
    "Stream",
    "Transcription",
]
