"""Which generator lets a draft model propose for its target."""

from os import PathLike
from typing import Protocol

from edgespec.candidates.assisted import AssistedCandidateGenerator, DraftModel
from edgespec.candidates.base import CandidateGenerator
from edgespec.candidates.grammar import GrammarCandidateGenerator
from edgespec.candidates.mixed import MixedCandidateGenerator
from edgespec.candidates.universal import UniversalAssistedCandidateGenerator
from edgespec.logits import make_draft_pick
from edgespec.model import CausalLM
from edgespec.model_folder import ModelFolder, draft_folder, open_model_folder
from edgespec.options import Options
from edgespec.session import Session
from edgespec.tokenizer import Tokenizer, require_same_token_ids, same_token_ids, sha256_of


class LoadedModel(Protocol):
    """What a target and its drafts show of themselves.

    Attributes:
        folder: What lies beside the graph.
        tokenizer: Its tokenizer, if it has one.
        max_length: The most tokens of a text, or None without a limit.
    """

    folder: ModelFolder
    tokenizer: Tokenizer | None
    max_length: int | None

    @property
    def session(self) -> Session:
        """The graph."""

    @property
    def model(self) -> CausalLM:
        """The graph with a cache behind it."""

    @property
    def known_ids(self) -> int:
        """Token ids below it stand for something."""


def draft_models(candidates: CandidateGenerator | None) -> list[DraftModel]:
    """The models that compute when ``candidates`` proposes."""
    if isinstance(candidates, MixedCandidateGenerator):
        return [model for one in candidates.generators for model in draft_models(one)]
    if isinstance(candidates, GrammarCandidateGenerator):
        return draft_models(candidates.inner)
    if isinstance(candidates, AssistedCandidateGenerator | UniversalAssistedCandidateGenerator):
        return [candidates.draft]
    return []


def require_fitting_tokenizer(
    draft: LoadedModel | str | PathLike[str] | bool,
    target: ModelFolder,
    tokenizer: Tokenizer | None,
) -> None:
    """Refuse a draft for its tokenizer before its weights are loaded.

    The draft in the target's own folder was put there for it, and may have any.

    Args:
        draft: What was named.
        target: The target's folder.
        tokenizer: The target's tokenizer, if it has one.

    Raises:
        ModelFolderError: If there is no such draft.
        VocabularyMismatchError: If its token ids are not those of ``tokenizer``.
    """
    theirs: Tokenizer | None
    if isinstance(draft, bool):
        draft_folder(target)
        return
    if isinstance(draft, str | PathLike):
        path = open_model_folder(draft).tokenizer
        if tokenizer is None or not path.is_file() or sha256_of(path) == tokenizer.sha256():
            return
        theirs = Tokenizer(path)
    else:
        theirs = draft.tokenizer
    require_same_token_ids(theirs, tokenizer)


def draft_candidates(
    draft: LoadedModel, target: LoadedModel, options: Options, prompt_length: int
) -> CandidateGenerator:
    """The candidates of ``draft`` for ``target``, in one call.

    By token ids where both mean the same by them, and otherwise by way of the text. The draft
    chooses by the rules of the call, in the target's token ids.

    Args:
        draft: The model that proposes.
        target: The model whose text it is.
        options: The settings of the call.
        prompt_length: Tokens in the prompt.

    Raises:
        ValueError: If an option names a token id that cannot be meant.
    """
    threshold = options.assistant_confidence_threshold
    ours, theirs = draft.tokenizer, target.tokenizer
    if ours is None or theirs is None or same_token_ids(ours, theirs):
        shared = min(draft.known_ids, target.known_ids)
        return AssistedCandidateGenerator(
            draft.model,
            vocab_size=shared,
            width=target.model.vocab_size,
            pick=make_draft_pick(options, prompt_length=prompt_length, vocab_limit=shared),
            eos_token_ids=options.eos_token_id,
            max_length=draft.max_length,
            assistant_confidence_threshold=threshold,
            reuse_prefix=options.reuse_prefix,
        )
    pick = make_draft_pick(options, prompt_length=prompt_length, vocab_limit=target.known_ids)
    return UniversalAssistedCandidateGenerator(
        draft.model,
        ours,
        theirs,
        width=target.model.vocab_size,
        pick=pick,
        eos_token_ids=draft.folder.manifest.eos_token_ids,
        target_eos_token_ids=[t for t in options.eos_token_id if 0 <= t < target.known_ids],
        max_length=draft.max_length,
        assistant_confidence_threshold=threshold,
        reuse_prefix=options.reuse_prefix,
    )
