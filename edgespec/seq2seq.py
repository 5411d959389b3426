"""EdgeSeq2Seq: a text in, another text out, by an encoder-decoder such as T5."""

from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np

from edgespec.arrays import TokenIds
from edgespec.budgeting import Budgets
from edgespec.choosing import get_candidate_generator
from edgespec.constraint import constrained
from edgespec.defaults import resolve
from edgespec.encoder import Heard
from edgespec.encoder_decoder import EncoderDecoder
from edgespec.errors import ModelFolderError
from edgespec.generator import EdgeGenerator, Result
from edgespec.model_folder import draft_folder
from edgespec.options import GenerateOptions, Options
from edgespec.prompt import Batch, Prompt, as_row, is_batch, require_ids
from edgespec.stream import Stream

if TYPE_CHECKING:
    from typing_extensions import Unpack


class EdgeSeq2Seq:
    """A text-to-text model on ONNX Runtime that writes its own text, sooner.

    It reads the prompt whole with its encoder and writes a new text with its decoder. Summaries,
    corrections and translations copy from what was read, so prompt lookup searches there too.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        draft: "EdgeSeq2Seq | str | PathLike[str] | bool | None" = None,
        provider: str = "auto",
        threads: int | None = None,
        own_threads: bool = False,
        max_length: int | None = None,
    ) -> None:
        """Load a model.

        Args:
            path: A model folder that ``edgespec export`` made of a T5 checkpoint.
            draft: A draft model that proposes in every call that says nothing else: another
                EdgeSeq2Seq or its folder, or True for the one in this model's folder.
            provider: ``"cpu"``, ``"cuda"``, or ``"auto"``: CUDA where this ONNX Runtime has it.
            threads: Threads to compute with; None counts the CPUs that the process may use.
            own_threads: Share no threads among the graphs. Sharing is faster, but ONNX Runtime
                then refuses the sessions that other libraries of the process make later.
            max_length: The most tokens of a new text; None for the model's own.

        Raises:
            ModelFolderError: If there is no such model at ``path``, or it is broken.
            VocabularyMismatchError: If the draft's token ids are not this model's.
        """
        self._given: dict[str, Any] = {
            "used_by": type(self).__name__,
            "provider": provider,
            "threads": threads,
            "own_threads": own_threads,
        }
        self.model = EncoderDecoder(path, max_length=max_length, **self._given)
        start = self.model.folder.manifest.decoder_start_token_id
        if start is None:
            raise ModelFolderError(
                f"{self.model.folder.folder} names no decoder_start_token_id, with which a text "
                "starts; export the model again"
            )
        self._start = np.array([start], np.int64)
        self._budgets = Budgets()
        self._drafts: dict[str, EncoderDecoder] = {}
        self.draft = None if draft is None or draft is False else self.open_draft(draft)

    def open_draft(self, draft: object) -> EncoderDecoder:
        """The draft model that is meant, loaded once.

        Raises:
            ModelFolderError: If there is none.
            VocabularyMismatchError: If its token ids are not this model's.
        """
        if isinstance(draft, EncoderDecoder):
            opened = draft
        elif isinstance(draft, EdgeSeq2Seq):
            opened = draft.model
        else:
            path = str(draft_folder(self.model.folder) if draft is True else draft)
            if path not in self._drafts:
                self._drafts[path] = EncoderDecoder(path, **self._given)
            opened = self._drafts[path]
        if opened is self.model:
            raise ValueError("draft must be another model than its target: each needs a cache")
        opened.require_draft_for(self.model)
        return opened

    @overload
    def generate(self, prompt: Prompt, **options: "Unpack[GenerateOptions]") -> Result: ...

    @overload
    def generate(self, prompt: Batch, **options: "Unpack[GenerateOptions]") -> list[Result]: ...

    def generate(
        self, prompt: Prompt | Batch, **options: "Unpack[GenerateOptions]"
    ) -> Result | list[Result]:
        """Write the text that answers a prompt.

        Args:
            prompt: A text, or its token ids [N]. A list of texts is a batch: they are answered
                one after the other, each as if alone.
            **options: See :class:`edgespec.options.Options`; lengths count the new text.

        Returns:
            The result; for a batch a list of them, in order.

        Raises:
            ValueError: If an option is unknown or cannot be meant, or the prompt is empty.
        """
        if is_batch(prompt):
            return [self.generate(one, **options) for one in prompt]
        stream = self.stream(cast(Prompt, prompt), **options)
        return Result(*stream.read_all(), stream.stats)

    def stream(self, prompt: Prompt, **options: "Unpack[GenerateOptions]") -> Stream:
        """Write a text, a chunk a round; the arguments are those of :meth:`generate`.

        What is wrong with the arguments is said here, before the first chunk.
        """
        said = {n: v for n, v in self.model.folder.generation_config.items() if v is not None}
        chosen = resolve(
            options,
            {"eos_token_id": self.model.folder.manifest.eos_token_ids, **said},
            proposes=None if self.draft is None else "draft",
        )
        for name in ("exact", "universal_draft"):
            if getattr(chosen, name):
                raise ValueError(f"{name} cannot be had with an encoder-decoder; leave it out")
        source = self.encode(prompt, add_special_tokens=chosen.add_special_tokens)
        chosen, guide = constrained(chosen, self.model.tokenizer, len(self._start))
        if chosen.wants("lookup"):
            chosen = replace(chosen, lookup_references=(source.tolist(), *chosen.lookup_references))
        reader = _Reader(self.model, source, self.model.encode(source), self)
        # It asks of an EdgeGenerator what a reader has.
        target = cast(EdgeGenerator, reader)
        return Stream(
            reader.model,
            self.model.tokenizer,
            self._start,
            self._fit(chosen),
            known_ids=self.model.known_ids,
            candidates=get_candidate_generator(target, chosen, len(self._start), guide),
            budget=self._budgets.of(chosen, self.model.folder, self.model.session),
            lock=self.model.model.lock,
        )

    def encode(self, text: Prompt, *, add_special_tokens: bool) -> TokenIds:
        """The token ids [N] of a text.

        Raises:
            ValueError: If there are none, or they are not ids of this model.
        """
        if isinstance(text, str):
            encode = self.model.tokenizer.encode
            tokens = encode(text, add_special_tokens=add_special_tokens)
        else:
            tokens = as_row(text)
        return require_ids(tokens, self.model.model.vocab_size)

    def _fit(self, options: Options) -> Options:
        """``options`` with ``max_length`` set: the nearest of all limits, the first token in it."""
        new = options.max_new_tokens
        limits = [self.model.max_length, options.max_length, None if new is None else new + 1]
        longest = min(n for n in limits if n is not None)
        if longest < 2:
            raise ValueError(f"max_length must be at least 2 here, got {longest}")
        return replace(options, max_length=longest)


class _Reader:
    """One text being written, with all that the choice of candidates asks of an EdgeGenerator."""

    def __init__(
        self, model: EncoderDecoder, source: TokenIds, heard: Heard, owner: EdgeSeq2Seq
    ) -> None:
        """``model`` has read ``source`` and writes for ``owner``."""
        self._loaded, self._owner = model, owner
        self._source, self._heard = source, heard
        self.model = model.on(heard)
        self.session, self.folder, self.tokenizer = model.session, model.folder, model.tokenizer
        self.known_ids, self.max_length = model.known_ids, model.max_length
        self.candidate_generator = None

    @property
    def draft(self) -> "_Reader | None":
        """The draft that proposes where a call says nothing."""
        return None if self._owner.draft is None else self.open_draft(self._owner.draft)

    def open_draft(self, draft: object, *, universal: bool = False) -> "_Reader":
        """A draft that has read the same source, with the target's encoder where that serves."""
        opened = self._owner.open_draft(draft)
        shares = opened.shares_encoder(self._loaded)
        heard = self._heard if shares else opened.encode(self._source)
        return _Reader(opened, self._source, heard, self._owner)

    def encode(self, text: Prompt, *, add_special_tokens: bool) -> TokenIds:
        """The token ids of a reference."""
        return self._owner.encode(text, add_special_tokens=add_special_tokens)
