"""Who proposes candidates in a call: what its options come to together."""

import os
from collections.abc import Iterator
from functools import lru_cache
from os import PathLike
from typing import Any, Protocol

from edgespec.arrays import TokenIds
from edgespec.budget import MOST_CANDIDATES
from edgespec.candidates.base import CandidateGenerator
from edgespec.candidates.grammar import GrammarCandidateGenerator
from edgespec.candidates.mixed import MixedCandidateGenerator
from edgespec.candidates.ngram_cache import NgramCacheCandidateGenerator
from edgespec.candidates.prompt_lookup import PromptLookupCandidateGenerator
from edgespec.candidates.suffix import SuffixCandidateGenerator
from edgespec.drafting import LoadedModel, draft_candidates
from edgespec.guided import Guide
from edgespec.ngram_store import NgramStore
from edgespec.options import Options
from edgespec.prompt import Prompt


class Target(LoadedModel, Protocol):
    """The model whose text it is.

    Attributes:
        candidate_generator: Proposes where a call names nobody.
    """

    candidate_generator: CandidateGenerator | None

    @property
    def draft(self) -> LoadedModel | None:
        """The draft model that proposes where a call names nobody."""

    def encode(self, prompt: Prompt, *, add_special_tokens: bool) -> TokenIds:
        """The prompt's token ids [T]."""

    def open_draft(self, draft: Any, *, universal: bool = False) -> LoadedModel:
        """The draft model that is meant, loaded once."""


def get_candidate_generator(
    target: Target, options: Options, prompt_length: int, guide: Guide | None = None
) -> CandidateGenerator | None:
    """Who proposes candidates for ``target`` in one call.

    All that the options name, the most promising of them each round; where they name none and
    forbid none, what ``target`` was made with.

    Args:
        target: The model whose text it is.
        options: The settings of the call.
        prompt_length: Tokens in the prompt.
        guide: The grammar that the call's text follows; what it forces is proposed too.

    Returns:
        The generator, or None for plain decoding.

    Raises:
        GraphMismatchError: If the target's graph cannot verify candidates.
        VocabularyMismatchError: If a draft model's token ids are not the target's.
        NgramFileError: If n-grams cannot be read, or were counted with another tokenizer.
        ModelFolderError: If a draft model cannot be found.
        ValueError: If an option names what cannot be meant.
    """
    asked = list(_named(target, options, prompt_length))
    if not asked and not options.refuses_candidates:
        asked = list(_made_with(target, options, prompt_length))
    generator = MixedCandidateGenerator(asked) if len(asked) > 1 else next(iter(asked), None)
    if generator is not None:
        target.model.require_verification()
    # lookup=False asks for plain decoding; a graph that cannot verify can do nothing else.
    plain = generator is None and options.refuses_candidates
    if guide is not None and not plain and target.model.cannot_verify is None:
        return GrammarCandidateGenerator(guide, generator)
    return generator


def _named(target: Target, options: Options, prompt_length: int) -> Iterator[CandidateGenerator]:
    """The generators that a call asks for."""
    if options.candidate_generator is not None:
        yield options.candidate_generator
    if options.wants("lookup"):
        yield _lookup(target, options)
    if options.wants("ngram"):
        yield _ngrams(target, options)
    if options.wants("suffix"):
        yield _suffixes(options)
    drafts = [target.open_draft(d, universal=options.universal_draft) for d in options.drafts]
    for i, draft in enumerate(drafts):
        if draft in drafts[:i]:
            raise ValueError(
                f"draft names {draft.session.path} twice; each draft needs a cache of its own"
            )
        yield draft_candidates(draft, target, options, prompt_length)


def _made_with(
    target: Target, options: Options, prompt_length: int
) -> Iterator[CandidateGenerator]:
    """The generator that a model uses in calls that say nothing of it."""
    if target.candidate_generator is not None:
        yield target.candidate_generator
    elif target.draft is not None:
        yield draft_candidates(target.draft, target, options, prompt_length)


def _lookup(target: Target, options: Options) -> CandidateGenerator:
    """Prompt lookup as a call asks for it."""
    return PromptLookupCandidateGenerator(
        options.prompt_lookup_num_tokens or MOST_CANDIDATES,
        options.max_matching_ngram_size,
        options.min_matching_ngram_size,
        options.prompt_lookup_policy,
        [target.encode(r, add_special_tokens=False) for r in options.lookup_references if len(r)],
    )


def _ngrams(target: Target, options: Options) -> CandidateGenerator:
    """N-grams as a call asks for them, from stores of the target's own tokens."""
    tokenizer_sha256 = None if target.tokenizer is None else target.tokenizer.sha256()
    stores = {"ngram_corpus": options.ngram_corpus, "ngram_past": options.ngram_past}
    for name, store in stores.items():
        if isinstance(store, NgramStore):
            store.require_tokenizer(tokenizer_sha256, name)
    corpus = options.ngram_corpus
    if isinstance(corpus, str | PathLike):
        path = os.path.abspath(os.path.expanduser(corpus))
        written_ns = os.stat(path).st_mtime_ns if os.path.isfile(path) else 0
        corpus = _loaded(path, written_ns, tokenizer_sha256)
    return NgramCacheCandidateGenerator(MOST_CANDIDATES, past=options.ngram_past, corpus=corpus)


@lru_cache(maxsize=4)
def _loaded(path: str, written_ns: int, tokenizer_sha256: str | None) -> NgramStore:
    """The file's n-grams, which nobody writes to: one copy for all calls that read it."""
    return NgramStore.load(path, tokenizer_sha256=tokenizer_sha256)


def _suffixes(options: Options) -> CandidateGenerator:
    """Suffixes as a call asks for them."""
    return SuffixCandidateGenerator(
        MOST_CANDIDATES,
        max_match_length=options.suffix_max_match_length,
        max_spec_factor=options.suffix_max_spec_factor,
        min_token_prob=options.suffix_min_token_prob,
        past=options.suffix_past,
    )
