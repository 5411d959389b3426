"""A call's json_schema, regex or grammar put into effect."""

from dataclasses import replace

from edgespec.errors import TokenizerError
from edgespec.guided import Guide
from edgespec.options import CONSTRAINTS, Options
from edgespec.tokenizer import Tokenizer


def constrained(
    options: Options, tokenizer: Tokenizer | None, prompt_length: int
) -> tuple[Options, Guide | None]:
    """The options with the rules that their constraint means, and the guide that gives them.

    It is the last logits processor: what it forbids, nothing can allow again.

    Args:
        options: The settings of the call.
        tokenizer: The target's.
        prompt_length: Tokens in the prompt.

    Raises:
        ValueError: If the constraint cannot be followed.
        TokenizerError: If there is no tokenizer.
        MissingExtraError: If llguidance is not installed.
    """
    said = {name: getattr(options, name) for name in CONSTRAINTS}
    asked = [name for name, value in said.items() if value is not None]
    if not asked:
        return options, None
    if tokenizer is None:
        raise TokenizerError(
            f"{asked[0]} needs the model's tokenizer, and its folder has no tokenizer.json; "
            "copy it there"
        )
    guide = Guide(
        tokenizer, prompt_length=prompt_length, eos_token_ids=options.eos_token_id, **said
    )
    ends = () if len(guide.eos_token_ids) else (guide.is_complete,)
    return replace(
        options,
        logits_processors=(*options.logits_processors, guide),
        stopping_criteria=(*options.stopping_criteria, *ends),
    ), guide
