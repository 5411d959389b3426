"""EdgeGenerator: text in, text out."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from edgespec.arrays import TokenIds
from edgespec.budgeting import Budgets
from edgespec.candidates.base import CandidateGenerator
from edgespec.chat_template import ChatTemplate, Message
from edgespec.choosing import get_candidate_generator
from edgespec.constraint import constrained
from edgespec.decode import TargetModel
from edgespec.defaults import resolve
from edgespec.drafting import require_fitting_tokenizer
from edgespec.errors import TokenizerError, VocabularyMismatchError
from edgespec.exact import InPairs, require_exact
from edgespec.loading import Loading
from edgespec.model import CausalLM
from edgespec.model_folder import (
    ModelFolder,
    draft_folder,
    open_model_folder,
    require_class,
)
from edgespec.options import GenerateOptions, Options
from edgespec.prefixes import Prefixes
from edgespec.prompt import Batch, Prompt, as_row, is_batch, require_ids
from edgespec.session import Session
from edgespec.shortlist import shortlisted
from edgespec.stats import Stats
from edgespec.stopping import FinishReason
from edgespec.stream import Stream
from edgespec.tokenizer import Tokenizer, require_same_token_ids, same_token_ids

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True, slots=True)
class Result:
    """What a call has written.

    Attributes:
        text: The new text, without the prompt, end tokens and stop string.
        tokens: [N] its token ids, the end token included.
        finish_reason: "eos", "stop", "length", "time" or "cancelled".
        stats: What happened in each round, and what it brought.
    """

    text: str
    tokens: TokenIds
    finish_reason: FinishReason
    stats: Stats

    def __str__(self) -> str:
        """The text."""
        return self.text


class EdgeGenerator:
    """A language model on ONNX Runtime that writes its own text, sooner.

    A generator may be used from several threads and for several streams at a time; they take
    turns, and each switch costs reading what differs between their texts.

    Attributes:
        prefixes: Starts of texts that are kept, so that no call has to read them again.
    """

    def __init__(
        self,
        path: str | PathLike[str] | None = None,
        *,
        provider: str = "auto",
        threads: int | None = None,
        own_threads: bool = False,
        max_length: int | None = None,
        draft: "Draft | None" = None,
        universal_draft: bool = False,
        candidate_generator: CandidateGenerator | None = None,
    ) -> None:
        """Load a model.

        Args:
            path: A model folder or its ``.onnx`` file; None is the embedded model.
            provider: ``"cpu"``, ``"cuda"``, or ``"auto"``: CUDA where this ONNX Runtime has it.
            threads: Threads to compute with; None counts the CPUs that the process may use.
            own_threads: Share no threads with a draft model. Sharing is faster, but ONNX Runtime
                then refuses the sessions that other libraries of the process make later.
            max_length: The most tokens of a text, prompt included; None for the model's own.
            draft: A draft model that proposes candidates in every call that says nothing else: a
                model folder, an EdgeGenerator, or True for the one in this model's folder.
            universal_draft: Let that draft propose by way of the text if its tokenizer is another.
            candidate_generator: Proposes candidates in every call that names no other.

        Raises:
            ModelFolderError: If there is no model at ``path``, or it is broken.
            GraphMismatchError: If its graph is not a decoder with a cache.
            RuntimeTooOldError: If the installed ONNX Runtime cannot read it.
            ProviderError: If CUDA was asked for and cannot be had.
            TokenizerError: If its tokenizer does not fit.
            VocabularyMismatchError: If the draft has other token ids, without ``universal_draft``.
        """
        self._made_with: dict[str, Any] = {
            "path": path,
            "provider": provider,
            "threads": threads,
            "own_threads": own_threads,
            "max_length": max_length,
            "draft": draft,
            "universal_draft": universal_draft,
            "candidate_generator": candidate_generator,
        }
        if max_length is not None and not (isinstance(max_length, int) and max_length >= 2):
            raise ValueError(f"max_length must be at least 2, got {max_length!r}")
        if draft is False:
            draft = None
        if draft is not None and candidate_generator is not None:
            raise ValueError(
                "draft and candidate_generator exclude each other: both propose candidates"
            )
        if universal_draft and draft is None:
            raise ValueError(
                "universal_draft has no effect without draft=...; name the draft model"
            )
        self.folder: ModelFolder = open_model_folder(path)
        require_class(self.folder, "EdgeGenerator")
        own = self.folder.manifest.max_length
        self.max_length = min((n for n in (own, max_length) if n is not None), default=None)
        self.prefixes = Prefixes(self)
        self._loading = Loading(
            self.folder,
            provider=provider,
            threads=threads,
            own_threads=own_threads,
            share_threads=draft is not None,
            max_length=self.max_length,
            kept=self.prefixes.by_name,
        )
        self.tokenizer = self._tokenizer()
        if draft is not None:
            _require_draft(draft)
        if draft is not None and not universal_draft:
            # Before anything is loaded: a pool that is shared cannot be given up again.
            require_fitting_tokenizer(draft, self.folder, self.tokenizer)
        self._loading.load()
        self._require_width()
        self.candidate_generator = candidate_generator
        self._budgets = Budgets()
        self._is_exact = False
        self._drafts: dict[str, EdgeGenerator] = {}
        self._opening = threading.Lock()
        self.draft: EdgeGenerator | None = None
        if draft is not None:
            self.draft = self.open_draft(draft, universal=universal_draft)

    @property
    def session(self) -> Session:
        """The loaded graph; another one once it shares its threads with a draft."""
        return self._loading.session

    @property
    def model(self) -> CausalLM:
        """That graph with a cache behind it."""
        return self._loading.model

    def _tokenizer(self) -> Tokenizer | None:
        """The folder's tokenizer, if it has one: a graph alone takes token ids."""
        if not self.folder.tokenizer.is_file():
            return None
        return Tokenizer(self.folder.tokenizer)

    def _require_width(self) -> None:
        """Refuse a tokenizer with more tokens than the model scores."""
        if self.tokenizer is not None and self.tokenizer.size > self.model.vocab_size:
            raise TokenizerError(
                f"{self.folder.tokenizer} has {self.tokenizer.size} token ids, but "
                f"{self.session.path} scores {self.model.vocab_size}; it belongs to another model: "
                "copy the tokenizer.json of this one"
            )

    @property
    def known_ids(self) -> int:
        """Token ids below this stand for something; rows of logits may be wider."""
        return self.model.vocab_size if self.tokenizer is None else self.tokenizer.size

    def open_draft(self, draft: "Draft", *, universal: bool = False) -> "EdgeGenerator":
        """The draft model that is meant, loaded once.

        The one in this model's folder may have another tokenizer: it was put there for this model.

        Raises:
            ValueError: If ``draft`` is no model, or this one.
            VocabularyMismatchError: If its token ids are not this model's, unless ``universal``.
        """
        _require_draft(draft)
        universal = universal or draft is True
        if draft is self:
            raise ValueError(
                "draft must be another EdgeGenerator than its target: each needs a cache of its own"
            )
        if isinstance(draft, EdgeGenerator):
            opened = draft
        else:
            opened = self._opened(draft, universal=universal)
        if not universal or same_token_ids(opened.tokenizer, self.tokenizer):
            require_same_token_ids(opened.tokenizer, self.tokenizer)
            if opened.model.vocab_size < self.known_ids:
                raise VocabularyMismatchError(
                    f"{opened.session.path} knows {opened.model.vocab_size} token ids and "
                    f"{self.session.path} {self.known_ids}; a draft must know all of its target's"
                )
        self._loading.share_threads()
        opened._loading.share_threads()
        return opened

    def _opened(self, draft: str | PathLike[str] | bool, *, universal: bool) -> "EdgeGenerator":
        """The draft in a folder, loaded once."""
        path = str(draft_folder(self.folder) if isinstance(draft, bool) else draft)
        with self._opening:
            if path not in self._drafts:
                if not universal:
                    require_fitting_tokenizer(draft, self.folder, self.tokenizer)
                self._drafts[path] = EdgeGenerator(
                    path,
                    provider=self.session.device,
                    threads=self._made_with["threads"],
                    own_threads=self._made_with["own_threads"],
                )
            return self._drafts[path]

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled by what it was made with: the copy loads the model again."""
        return _make, (self._made_with,)

    @overload
    def generate(self, prompt: Prompt, **options: "Unpack[GenerateOptions]") -> Result: ...

    @overload
    def generate(self, prompt: Batch, **options: "Unpack[GenerateOptions]") -> list[Result]: ...

    def generate(
        self, prompt: Prompt | Batch, **options: "Unpack[GenerateOptions]"
    ) -> Result | list[Result]:
        """Continue a prompt.

        Args:
            prompt: A text, or its token ids [T]. A list of texts is a batch: they are continued
                one after the other, each as if alone.
            **options: See :class:`edgespec.options.Options`. What is left out comes from the
                model's ``generation_config.json``.

        Returns:
            The result; for a batch a list of them, in order.

        Raises:
            ValueError: If an option is unknown or cannot be meant, or the prompt is empty or too
                long.
        """
        if is_batch(prompt):
            return [self.generate(one, **options) for one in prompt]
        stream = self.stream(cast(Prompt, prompt), **options)
        return Result(*stream.read_all(), stream.stats)

    def chat(self, messages: Sequence[Message], **options: "Unpack[GenerateOptions]") -> Result:
        """Answer a conversation, laid out by the model's own chat template.

        Args:
            messages: ``{"role": "user", "content": "..."}`` and so on, oldest first.
            **options: As for :meth:`generate`.
        """
        options.setdefault("add_special_tokens", False)  # the template spells them out
        return self.generate(self.chat_prompt(messages), **options)

    @property
    def has_chat_template(self) -> bool:
        """Whether :meth:`chat` has a template to lay out a conversation with."""
        return ChatTemplate(self.folder.folder).exists

    def chat_prompt(self, messages: Sequence[Message], **variables: object) -> str:
        """The prompt that a conversation makes, for :meth:`stream`."""
        return ChatTemplate(self.folder.folder).render(messages, **variables)

    def stream(self, prompt: Prompt, **options: "Unpack[GenerateOptions]") -> Stream:
        """Continue a prompt, a chunk a round; the arguments are those of :meth:`generate`.

        What is wrong with the arguments is said here, before the first chunk.
        """
        chosen = resolve(options, self._defaults(), proposes=self._proposes)
        tokens = self.encode(prompt, add_special_tokens=chosen.add_special_tokens)
        chosen, guide = constrained(chosen, self.tokenizer, len(tokens))
        # First, as a draft that is used for the first time has this model loaded again.
        candidates = get_candidate_generator(self, chosen, len(tokens), guide)
        model = self.model
        return Stream(
            self._target(model, chosen),
            self.tokenizer,
            tokens,
            self._fit(chosen, len(tokens)),
            known_ids=self.known_ids,
            candidates=candidates,
            budget=self._budgets.of(chosen, self.folder, self.session),
            lock=model.lock,
        )

    @property
    def _proposes(self) -> Literal["draft", "generator"] | None:
        """Who proposes in calls that name nobody."""
        if self.draft is not None:
            return "draft"
        return None if self.candidate_generator is None else "generator"

    def _defaults(self) -> dict[str, Any]:
        """What the model folder says of how to generate."""
        manifest = self.folder.manifest
        said = {n: v for n, v in self.folder.generation_config.items() if v is not None}
        return {"eos_token_id": manifest.eos_token_ids, **said}

    def encode(self, prompt: Prompt, *, add_special_tokens: bool) -> TokenIds:
        """The prompt's token ids [T].

        Raises:
            ValueError: If there are none, or they are not ids of this model.
            TokenizerError: If the prompt is text and there is no tokenizer.
        """
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise TokenizerError(
                    f"{self.folder.tokenizer} does not exist; copy it from the checkpoint, "
                    "or pass token ids"
                )
            tokens = self.tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
        else:
            tokens = as_row(prompt)
        return require_ids(tokens, self.model.vocab_size)

    def _fit(self, options: Options, prompt_length: int) -> Options:
        """``options`` with ``max_length`` set: the nearest of all limits.

        Raises:
            ValueError: If the prompt leaves no room.
        """
        limits = [n for n in (options.max_length, self.max_length) if n is not None]
        longest = min(limits, default=None)
        if longest is not None and prompt_length >= longest:
            raise ValueError(
                f"the prompt has {prompt_length} tokens and the longest text {longest}, which "
                "leaves no room for a new one; shorten the prompt or raise max_length"
            )
        new = options.max_new_tokens
        if new is not None:
            longest = min(prompt_length + new, longest or prompt_length + new)
        if longest is None:
            raise ValueError(
                "max_new_tokens must be given: nothing in the model's folder says how long a text "
                "it can hold"
            )
        return replace(options, max_length=longest)

    def _target(self, model: CausalLM, options: Options) -> TargetModel:
        """The model as the loop reads it.

        Raises:
            ExactnessError: If ``exact`` was asked for and the machine's kernels do not allow it.
        """
        if not options.exact:
            return shortlisted(model, options, self.known_ids)
        if not self._is_exact:
            with model.lock:
                require_exact(model)
            self._is_exact = True
        return InPairs(model)


Draft = EdgeGenerator | str | PathLike[str] | bool
"""A draft model: loaded, its folder, or True for the one that lies in its target's folder."""


def _require_draft(draft: object) -> None:
    """Refuse what is no draft model: a generator of candidates is often taken for one."""
    if not isinstance(draft, EdgeGenerator | str | PathLike | bool):
        raise ValueError(
            "draft must be a model folder, an EdgeGenerator or True, got "
            f"{type(draft).__name__}; what proposes without a model is a candidate_generator"
        )


def _make(made_with: dict[str, Any]) -> EdgeGenerator:
    return EdgeGenerator(**made_with)
