"""What a JSON schema, a regular expression or a grammar allows after a text."""

import json
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from edgespec.arrays import Logits, TokenIds
from edgespec.errors import MissingExtraError
from edgespec.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer
    from llguidance._lib import JsonCompileOptions

JSON_STYLE: "JsonCompileOptions" = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""JSON on one line, as ``json.dumps`` writes it.

With free white space next to nothing would be forced, and a model could write blanks for ever. A
schema's own ``"x-guidance"`` wins.
"""
_LIMITS = np.array([-np.inf, np.inf], np.float32)
"""How high a score may be that is forbidden, and one that is allowed."""
_DEAD_END = "NoExtensionBias"
"""What llguidance calls a place where no token may follow, and where the text cannot end either."""


class Guide:
    """A grammar and how far a text has followed it.

    It is a logits processor: scores of tokens that the grammar forbids become minus infinity. For
    its caller it is a pure function of the tokens so far. Inside, it keeps the parser where it was
    asked last; from there it goes back to what both texts share, and on. So a refused candidate
    leaves no trace, and a step forward costs one token.

    The grammar covers what is written, not the prompt. The call's end tokens are allowed exactly
    where the grammar may end; they need not and should not be named in it. Without an end token
    :meth:`is_complete` ends the text.

    Attributes:
        option: Which option of the call it comes from.
        size: Token ids from here on are never allowed: they stand for nothing.
        eos_token_ids: [N] the end tokens that can be written.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        prompt_length: int,
        eos_token_ids: Collection[int] = (),
        json_schema: Mapping[str, Any] | str | None = None,
        regex: str | None = None,
        grammar: str | None = None,
    ) -> None:
        """Follow the one of ``json_schema``, ``regex`` and ``grammar`` that is given.

        Args:
            tokenizer: The model's.
            prompt_length: Tokens in the prompt.
            eos_token_ids: What ends the text.
            json_schema: A JSON schema, as a mapping or as text.
            regex: What the whole text must match. No look-around and no back references.
            grammar: A grammar in llguidance's variant of Lark's notation.

        Raises:
            ValueError: If none or several are given, or it cannot be followed.
            MissingExtraError: If llguidance is not installed.
        """
        given = {"json_schema": json_schema, "regex": regex, "grammar": grammar}
        options = [name for name, value in given.items() if value is not None]
        if len(options) != 1:
            raise ValueError(
                "exactly one of json_schema, regex and grammar must be given, "
                f"got {' and '.join(options) or 'none'}"
            )
        self.option = options[0]
        self.tokenizer, self.size = tokenizer, tokenizer.size
        self.prompt_length = prompt_length
        known = [token for token in eos_token_ids if 0 <= token < self.size]
        self.eos_token_ids: TokenIds = np.array(known, np.int64)
        try:
            from llguidance import LLMatcher
        except ImportError:
            raise MissingExtraError(
                f"{self.option} needs the package llguidance, which is not installed: "
                'pip install "edgespec[guided]"'
            ) from None
        vocabulary, first = _parsed(tokenizer)
        self._parsed_id = first.copy()  # [size]
        self._twins = np.flatnonzero(self._parsed_id != np.arange(self.size))
        self._firsts = self._parsed_id[self._twins]
        self._parsed_id[self.eos_token_ids] = self.size
        if json_schema is not None:
            rules = LLMatcher.grammar_from_json_schema(_as_json(json_schema), defaults=JSON_STYLE)
        elif regex is not None:
            rules = LLMatcher.grammar_from_regex(_as_text("regex", regex))
        else:
            rules = LLMatcher.grammar_from_lark(_as_text("grammar", grammar))
        self._make = partial(LLMatcher, vocabulary, rules, log_level=0)
        self._matcher = self._make()
        self._followed: TokenIds = np.empty(0, np.int64)
        if self._matcher.is_error():
            raise ValueError(f"{self.option} cannot be followed: {self._what_is_wrong()}")
        if not self._may_follow().any():
            raise ValueError(f"{self.option} cannot be followed: no text matches it")

    def __call__(self, input_ids: TokenIds, scores: Logits) -> Logits:
        """Forbid in ``scores`` [V] what may not follow ``input_ids`` [T]."""
        allowed = self.allowed(input_ids)[: len(scores)]
        scores[len(allowed) :] = -np.inf
        known = scores[: len(allowed)]
        # A fifth of the time that writing minus infinity takes where half of them are forbidden.
        np.minimum(known, _LIMITS.take(allowed.view(np.uint8)), out=known)
        return scores

    def allowed(self, input_ids: TokenIds) -> NDArray[np.bool_]:
        """[size] which tokens may follow ``input_ids`` [T]."""
        over = self._follow(input_ids)
        may_follow = self._may_follow()
        allowed, may_end = may_follow[:-1], may_follow[-1]
        if over or _is_over(may_follow):
            # Without an end token the stopping criterion cuts off what follows, whatever it is.
            allowed[:] = not len(self.eos_token_ids)
            may_end = np.True_
        allowed[self._twins] = allowed[self._firsts]
        allowed[self.eos_token_ids] = may_end
        return allowed

    def is_complete(self, input_ids: TokenIds) -> bool:
        """Whether nothing but an end token may follow ``input_ids`` [T].

        It must be a stopping criterion where a model has no end token.
        """
        return self._follow(input_ids) or _is_over(self._may_follow())

    def forced_bytes(self, input_ids: TokenIds) -> bytes:
        """The text that must follow ``input_ids`` [T], as far as it is certain; often none."""
        return b"" if self._follow(input_ids) else self._matcher.compute_ff_bytes()

    def count_allowed(self, input_ids: TokenIds, tokens: TokenIds) -> int:
        """How many leading ``tokens`` [K] may follow ``input_ids`` [T], one after the other."""
        if self._follow(input_ids):
            return 0
        text = self._text_of(tokens)
        count = self._matcher.validate_tokens(text.tolist())
        if count == len(text) < len(tokens):
            self._follow(np.append(input_ids, tokens[:count]))
            return count + int(self._may_follow()[-1])
        return count

    def _follow(self, input_ids: TokenIds) -> bool:
        """Bring the parser behind ``input_ids`` [T], wherever it stands.

        Returns:
            Whether the text has ended; the parser then stands before its end token, or, where no
            end token can be written, before what was written beyond its end.

        Raises:
            ValueError: If the grammar forbids one of the tokens, or is too complex.
        """
        written = input_ids[self.prompt_length :]
        text = self._text_of(written)
        both = min(len(text), len(self._followed))
        unlike = np.flatnonzero(text[:both] != self._followed[:both])
        same = int(unlike[0]) if unlike.size else both
        if same < len(self._followed):
            self._matcher.rollback(len(self._followed) - same)
        taken = self._matcher.try_consume_tokens(text[same:].tolist())
        self._followed = text[: same + taken]
        if self._matcher.is_error():
            self._give_up()
        if len(self._followed) < len(text):
            if not len(self.eos_token_ids) and _is_over(self._may_follow()):
                return True
            raise ValueError(
                f"{self.option} forbids the token {written[len(self._followed)]}, "
                f"which stands behind {len(self._followed)} new tokens"
            )
        return len(text) < len(written)

    def _text_of(self, tokens: TokenIds) -> TokenIds:
        """The ``tokens`` [N] before an end token, as the parser knows them."""
        parsed = self._parsed_id[tokens]
        ends = np.flatnonzero(parsed == self.size)
        return parsed[: ends[0]] if ends.size else parsed

    def _may_follow(self) -> NDArray[np.bool_]:
        """[size + 1] which tokens may follow; the last one is the parser's own end token.

        None at all where the vocabulary lacks what would have to follow.
        """
        packed = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            if self._what_is_wrong() != _DEAD_END:
                self._give_up()
            self._start_anew()
            return np.zeros(self.size + 1, np.bool_)
        bits = np.unpackbits(packed, count=self.size + 1, bitorder="little")
        return bits.view(np.bool_)

    def _start_anew(self) -> None:
        """Forget the text; a parser that failed once is of no use any more, nor are its copies."""
        self._matcher, self._followed = self._make(), np.empty(0, np.int64)

    def _give_up(self) -> NoReturn:
        """Say what is wrong with the parser, and leave a sound one behind."""
        wrong, count = self._what_is_wrong(), len(self._followed)
        self._start_anew()
        raise ValueError(
            f"{self.option} cannot be followed any further than {count} new tokens: {wrong}"
        )

    def _what_is_wrong(self) -> str:
        """The parser's complaint without its state and the place in what we made of the option."""
        said = self._matcher.get_error().split("\nerror: ")[-1]
        return said.splitlines()[0]


def _is_over(may_follow: NDArray[np.bool_]) -> bool:
    """Whether of the tokens [size + 1] only the parser's end token may follow."""
    return bool(may_follow[-1] and not may_follow[:-1].any())


def _as_text(option: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{option} must be a string, got {value!r}")
    return value


def _as_json(schema: object) -> str:
    """The schema as JSON text.

    Raises:
        ValueError: If it is none.
    """
    if not isinstance(schema, str | Mapping):
        raise ValueError(f"json_schema must be a mapping or JSON text, got {schema!r}")
    try:
        return json.dumps(json.loads(schema) if isinstance(schema, str) else dict(schema))
    except (TypeError, ValueError) as error:
        raise ValueError(f"json_schema must be JSON: {error}") from None


def _first_alike(tokenizer: Tokenizer) -> TokenIds:
    """[size] for each token the first that spells the same; llguidance allows only one of them."""
    first: dict[bytes, int] = {}
    return np.array(
        [first.setdefault(s, t) if s else t for t, s in enumerate(tokenizer.spelling)], np.int64
    )


class _Vocabulary:
    """A tokenizer in the shape that llguidance asks for.

    Behind the tokenizer's own it has tokens that are never written: the parser's end token, and
    every byte that has no token. llguidance takes for granted that any text can be spelt.
    """

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        names = {token: name for name, token in tokenizer.ids().items()}
        spelling, self._first = tokenizer.spelling, _first_alike(tokenizer).tolist()
        self.tokens = [s if self._first[t] == t else b"" for t, s in enumerate(spelling)]
        self.eos_token_id = len(self.tokens)
        self.tokens.append(b"<|the parser's own end|>")
        single = {s for s in spelling if len(s) == 1}
        self.tokens += [bytes([b]) for b in range(256) if bytes([b]) not in single]
        self._ids = {s: t for t, s in enumerate(self.tokens) if s and t != self.eos_token_id}
        self._longest = max(map(len, self._ids))
        # What spells no text has a name, by which a grammar can ask for it.
        special = [token for token in sorted(names) if not spelling[token]]
        for token in special:
            self.tokens[token] = names[token].encode()
        self.special_token_ids = [*special, self.eos_token_id]

    def __call__(self, text: str) -> list[int]:
        """The ids that spell ``text`` to the byte, as the tokenizer would where it can."""
        data, spelling = text.encode(), self._tokenizer.spelling
        # Many add a space to the start of a text; behind a new line it is not in the way.
        for lead in ("", "\n"):
            ids: list[int] = []
            missing = len(data)
            for token in self._tokenizer.encode(lead + text, add_special_tokens=False)[::-1]:
                if missing <= 0:
                    break
                ids.insert(0, self._first[token])
                missing -= len(spelling[token])
            if b"".join(spelling[token] for token in ids) == data:
                return ids
        return self._by_longest(data)

    def _by_longest(self, data: bytes) -> list[int]:
        """The ids that spell ``data``, each the longest that fits."""
        ids, at = [], 0
        while at < len(data):
            sizes = range(min(self._longest, len(data) - at), 0, -1)
            size = next(size for size in sizes if data[at : at + size] in self._ids)
            ids.append(self._ids[data[at : at + size]])
            at += size
        return ids


def _parsed(tokenizer: Tokenizer) -> "tuple[LLTokenizer, TokenIds]":
    """``tokenizer`` as llguidance knows it, and the first token alike for each [size].

    Made once for a tokenizer: it takes a tenth of a second.
    """
    from llguidance import LLTokenizer, TokenizerWrapper

    if tokenizer not in _PARSED:
        made = LLTokenizer(TokenizerWrapper(_Vocabulary(tokenizer)))
        _PARSED[tokenizer] = made, _first_alike(tokenizer)
    return _PARSED[tokenizer]


_PARSED: "WeakKeyDictionary[Tokenizer, tuple[LLTokenizer, TokenIds]]" = WeakKeyDictionary()
