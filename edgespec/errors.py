"""Every exception that a caller of edgespec may want to catch.

EdgespecError
├── ModelFolderError      a model folder lacks a file, or a file in it cannot be read
├── GraphMismatchError    an ONNX graph's inputs or outputs are not those of a cached decoder
├── RuntimeTooOldError    the installed ONNX Runtime cannot read this graph
├── ProviderError         an execution provider was asked for and cannot be had
├── TokenizerError        a tokenizer is missing, or does not fit the model's vocabulary
├── VocabularyMismatchError   target and draft do not share token ids
├── CandidateError        a candidate generator broke its promise
├── CacheRewindError      a cache was asked for positions that it does not hold
├── NgramFileError        a file of n-grams cannot be read, written or used with this tokenizer
├── PrefixFileError       a saved prefix cannot be read, written or used with this model
├── ExactnessError        rows of a forward depend on how many there are, and must not
├── LogitsError           a model returned scores that are not numbers
├── MissingExtraError     the packages of an extra are not installed
├── AudioError            a file is no sound, or cannot be read
├── ProcessError          a generator was used in another process than it was made in
└── ExportError           a checkpoint could not be turned into a model folder
    ├── UnsupportedArchitectureError   no export route is known for it
    └── ParityError                    the written graph does not compute what the checkpoint does

A wrong argument stays a ``ValueError``. Each message is one sentence: what, expected, got, remedy.
"""


class EdgespecError(Exception):
    """Base of all errors raised on purpose by edgespec."""


class ModelFolderError(EdgespecError):
    """A model folder lacks a file, or a file in it cannot be read."""


class GraphMismatchError(EdgespecError):
    """An ONNX graph's inputs or outputs are not those of a cached decoder."""


class RuntimeTooOldError(EdgespecError):
    """The installed ONNX Runtime cannot read this graph."""


class ProviderError(EdgespecError):
    """An execution provider was asked for and cannot be had."""


class TokenizerError(EdgespecError):
    """A tokenizer is missing, or does not fit the model's vocabulary."""


class VocabularyMismatchError(EdgespecError):
    """Target and draft do not share token ids."""


class CandidateError(EdgespecError):
    """A candidate generator broke its promise."""


class CacheRewindError(EdgespecError, ValueError):
    """A cache was asked for positions that it does not hold."""


class NgramFileError(EdgespecError):
    """A file of n-grams cannot be read, written or used with this tokenizer."""


class PrefixFileError(EdgespecError):
    """A saved prefix cannot be read, written or used with this model."""


class ExactnessError(EdgespecError):
    """Rows of a forward depend on how many there are, and must not."""


class LogitsError(EdgespecError):
    """A model returned scores that are not numbers."""


class AudioError(EdgespecError):
    """A file is no sound, or cannot be read."""


class ProcessError(EdgespecError):
    """A generator was used in another process than it was made in."""


class ExportError(EdgespecError):
    """A checkpoint could not be turned into a model folder."""


class UnsupportedArchitectureError(ExportError):
    """No export route is known for a checkpoint's architecture."""


class MissingExtraError(EdgespecError):
    """The packages of an extra are not installed."""


class ParityError(ExportError):
    """The written graph does not compute what the checkpoint does."""
