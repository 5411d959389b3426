"""Assisted (speculative) decoding on ONNX Runtime: the model's own text, sooner.

>>> from edgespec import EdgeGenerator
>>> result = EdgeGenerator("model.onnx").generate("text", lookup=True)  # doctest: +SKIP
"""

from edgespec.candidates.assisted import AssistedCandidateGenerator
from edgespec.candidates.base import CandidateGenerator, Candidates
from edgespec.candidates.grammar import GrammarCandidateGenerator
from edgespec.candidates.mixed import MixedCandidateGenerator
from edgespec.candidates.ngram_cache import NgramCacheCandidateGenerator
from edgespec.candidates.prompt_lookup import PromptLookupCandidateGenerator
from edgespec.candidates.suffix import PastOutputs, SuffixCandidateGenerator
from edgespec.candidates.universal import UniversalAssistedCandidateGenerator
from edgespec.choosing import get_candidate_generator
from edgespec.errors import EdgespecError
from edgespec.generator import EdgeGenerator, Result
from edgespec.ngram_store import NgramStore
from edgespec.options import Options
from edgespec.seq2seq import EdgeSeq2Seq
from edgespec.speech.transcriber import EdgeTranscriber, Segment, Transcription
from edgespec.stats import Stats
from edgespec.stream import Chunk, Stream

__all__ = [
    "AssistedCandidateGenerator",
    "CandidateGenerator",
    "Candidates",
    "Chunk",
    "EdgeGenerator",
    "EdgeSeq2Seq",
    "EdgeTranscriber",
    "EdgespecError",
    "GrammarCandidateGenerator",
    "MixedCandidateGenerator",
    "NgramCacheCandidateGenerator",
    "NgramStore",
    "Options",
    "PastOutputs",
    "PromptLookupCandidateGenerator",
    "Result",
    "Segment",
    "Stats",
    "Stream",
    "SuffixCandidateGenerator",
    "Transcription",
    "UniversalAssistedCandidateGenerator",
    "get_candidate_generator",
]
