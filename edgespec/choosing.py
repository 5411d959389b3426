"""Who proposes candidates in a call: what its options come to together."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from edgespec.budget import MOST_CANDIDATES
from edgespec.candidates.base import CandidateGenerator
from edgespec.candidates.grammar import GrammarCandidateGenerator
from edgespec.candidates.mixed import MixedCandidateGenerator
from edgespec.candidates.prompt_lookup import PromptLookupCandidateGenerator
from edgespec.drafting import draft_candidates
from edgespec.errors import GraphMismatchError
from edgespec.guided import Guide
from edgespec.options import Options

if TYPE_CHECKING:
    from edgespec.generator import EdgeGenerator  # which imports this file


def get_candidate_generator(
    target: "EdgeGenerator", options: Options, prompt_length: int, guide: Guide | None = None
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
        ModelFolderError: If a draft model cannot be found.
        ValueError: If an option names what cannot be meant.
    """
    asked = list(_named(target, options, prompt_length))
    if not asked and not options.refuses_candidates:
        asked = list(_made_with(target, options, prompt_length))
    generator = MixedCandidateGenerator(asked) if len(asked) > 1 else next(iter(asked), None)
    if generator is not None and target.model.max_rows is not None:
        raise GraphMismatchError(
            f"{target.session.path} cannot verify candidates: its input 'input_ids' takes "
            f"{target.model.max_rows} token at a time; export it again (edgespec export MODEL), "
            "or leave lookup, draft and candidate_generator out"
        )
    # lookup=False asks for plain decoding; a graph that takes one row can do nothing else.
    plain = generator is None and options.refuses_candidates
    if guide is not None and not plain and target.model.max_rows is None:
        return GrammarCandidateGenerator(guide, generator)
    return generator


def _named(
    target: "EdgeGenerator", options: Options, prompt_length: int
) -> Iterator[CandidateGenerator]:
    """The generators that a call asks for."""
    if options.candidate_generator is not None:
        yield options.candidate_generator
    if options.wants_lookup:
        yield _lookup(target, options)
    if options.draft:
        draft = target.open_draft(options.draft, universal=options.universal_draft)
        yield draft_candidates(draft, target, options, prompt_length)


def _made_with(
    target: "EdgeGenerator", options: Options, prompt_length: int
) -> Iterator[CandidateGenerator]:
    """The generator that a model uses in calls that say nothing of it."""
    if target.candidate_generator is not None:
        yield target.candidate_generator
    elif target.draft is not None:
        yield draft_candidates(target.draft, target, options, prompt_length)


def _lookup(target: "EdgeGenerator", options: Options) -> CandidateGenerator:
    """Prompt lookup as a call asks for it."""
    return PromptLookupCandidateGenerator(
        options.prompt_lookup_num_tokens or MOST_CANDIDATES,
        options.max_matching_ngram_size,
        options.min_matching_ngram_size,
        options.prompt_lookup_policy,
        [target.encode(text, add_special_tokens=False) for text in options.lookup_references],
    )
