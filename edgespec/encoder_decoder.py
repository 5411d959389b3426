"""An encoder-decoder that is loaded: its graphs, its tokenizer, and what they say of themselves."""

from os import PathLike
from typing import Any

from edgespec.encoder import CrossAttention, Encoder, Heard, OnSource, Source
from edgespec.errors import ModelFolderError, VocabularyMismatchError
from edgespec.manifest import CROSS, ENCODER
from edgespec.model import CausalLM
from edgespec.model_folder import ModelFolder, open_model_folder, require_class
from edgespec.session import Session
from edgespec.tokenizer import Tokenizer, require_same_token_ids


class EncoderDecoder:
    """A model that reads a source with one half and writes with the other.

    Attributes:
        folder: Where it lies.
        model: The decoder.
        encoder: None for a decoder that works on another model's encoder.
        tokenizer: The folder's.
        max_length: The most tokens of a text, those that start it included.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        used_by: str,
        provider: str = "auto",
        threads: int | None = None,
        own_threads: bool = False,
        max_length: int | None = None,
    ) -> None:
        """Load the folder at ``path``.

        Args:
            path: A model folder or its ``model.onnx``.
            used_by: The class that the folder must be for.
            provider: As for EdgeGenerator.
            threads: As for EdgeGenerator.
            own_threads: Share no threads: neither among the graphs nor with a draft.
            max_length: The most tokens of a text; None for the model's own.

        Raises:
            ModelFolderError: If it is no such model, or a file of it is missing.
        """
        self.folder: ModelFolder = open_model_folder(path)
        require_class(self.folder, used_by)
        given: dict[str, Any] = {"provider": provider, "threads": threads}
        # Encoder and decoder work in turn, so they share a pool as target and draft do.
        given |= {"share_threads": not own_threads, "own_threads": own_threads}
        manifest = self.folder.manifest
        limits = [n for n in (manifest.max_length, max_length) if n is not None]
        self.max_length = min(limits) if limits else 512
        self.session = Session(self.folder.graph, **given)
        self.model = CausalLM(self.session, manifest, self.max_length)
        cross = self.folder.folder / CROSS
        if not cross.is_file():
            raise ModelFolderError(f"{cross} does not exist; export the model again")
        self._cross = CrossAttention(Session(cross, **given))
        encoder = self.folder.folder / ENCODER
        self.encoder = Encoder(Session(encoder, **given)) if encoder.is_file() else None
        self.tokenizer = Tokenizer(self.folder.tokenizer)

    @property
    def known_ids(self) -> int:
        """Token ids below this stand for something; rows of logits may be wider."""
        return min(self.tokenizer.size, self.model.vocab_size)

    def encode(self, source: Source) -> Heard:
        """Read ``source`` whole, once a text.

        Raises:
            ModelFolderError: If the folder holds no encoder.
        """
        return self._own_encoder.encode(source)

    @property
    def source_shape(self) -> tuple[int | str | None, ...]:
        """The axes of what the encoder takes, the batch among them."""
        return self._own_encoder.source.shape

    @property
    def _own_encoder(self) -> Encoder:
        if self.encoder is None:
            raise ModelFolderError(
                f"{self.folder.folder} holds no {ENCODER}: it is a decoder that works on another "
                "model's encoder; pass it as draft= of that model"
            )
        return self.encoder

    def on(self, heard: Heard) -> OnSource:
        """The decoder, reading on what an encoder made of a source."""
        return OnSource(self.model, self._cross.keys_and_values(heard))

    def shares_encoder(self, target: "EncoderDecoder") -> bool:
        """Whether what ``target``'s encoder makes of a source serves this decoder too."""
        ours, theirs = self.folder.manifest.encoder_sha256, target.folder.manifest.encoder_sha256
        return self.encoder is None or (ours is not None and ours == theirs)

    def require_draft_for(self, target: "EncoderDecoder") -> None:
        """Return if this decoder can propose tokens for ``target``.

        Raises:
            VocabularyMismatchError: If their token ids differ.
            ModelFolderError: If it needs an encoder's output of another size.
        """
        require_same_token_ids(self.tokenizer, target.tokenizer)
        if self.model.vocab_size < target.known_ids:
            raise VocabularyMismatchError(
                f"{self.session.path} knows {self.model.vocab_size} token ids and "
                f"{target.session.path} {target.known_ids}; a draft must know all of its target's"
            )
        if self.shares_encoder(target) and self._cross.width != target._cross.width:
            raise ModelFolderError(
                f"{self.folder.folder} works on an encoder's output of width {self._cross.width}, "
                f"but that of {target.folder.folder} has {target._cross.width}; use a draft that "
                "was made for this model's encoder, or one with an encoder of its own"
            )
