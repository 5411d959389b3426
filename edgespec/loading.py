"""A generator's graph: loaded alone, and again once it is to work in turn with a draft."""

import threading
from collections.abc import Mapping

from edgespec.model import CausalLM
from edgespec.model_folder import ModelFolder
from edgespec.prefix import Prefix
from edgespec.probe import probe
from edgespec.session import Session, require_onnxruntime
from edgespec.threads import join_pool


class Loading:
    """The session and the model on it, which may be replaced by others that share their threads.

    Whoever asks for them meanwhile waits; whoever has them goes on with what they have.
    """

    def __init__(
        self,
        folder: ModelFolder,
        *,
        provider: str,
        threads: int | None,
        own_threads: bool,
        share_threads: bool,
        max_length: int | None,
        kept: Mapping[str, Prefix],
    ) -> None:
        """Note what to load; :meth:`load` does it.

        Args:
            folder: The model's.
            provider: As for :class:`~edgespec.session.Session`, and so the next three.
            threads: Threads to compute with.
            own_threads: Never share.
            share_threads: Share from the beginning.
            max_length: The most positions that will be used.
            kept: Prefixes by name.
        """
        self._folder, self._max_length, self._kept = folder, max_length, kept
        self._provider, self._threads = provider, threads
        self._own_threads, self._shares_threads = own_threads, share_threads
        self._lock = threading.RLock()

    @property
    def session(self) -> Session:
        """The loaded graph."""
        with self._lock:
            return self._session

    @property
    def model(self) -> CausalLM:
        """That graph with a cache behind it."""
        with self._lock:
            return self._model

    def load(self) -> None:
        """Load the graph, and put an empty cache behind it."""
        require_onnxruntime(self._folder.graph, self._folder.manifest.min_onnxruntime)
        session = Session(
            self._folder.graph,
            provider=self._provider,
            threads=self._threads,
            share_threads=self._shares_threads,
            own_threads=self._own_threads,
        )
        model = CausalLM(session, self._folder.manifest, self._max_length, self._kept)
        if self._folder.made_by != "edgespec":  # ours were checked when they were exported
            probe(model)
        self._session, self._model = session, model

    def share_threads(self) -> None:
        """Load the graph again, if it was loaded to run alone and is now to work in turn.

        Raises:
            ValueError: If it cannot join the pool that there is; then it stays as it is.
        """
        with self._lock:
            if self._shares_threads or self._own_threads:
                return
            join_pool(self._threads, share=True)
            self._shares_threads = True
            if not self._session.shares_threads:
                del self._session, self._model  # so that the weights are not held twice
                self.load()
