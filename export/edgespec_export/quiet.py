"""Keeps the libraries' own notes off the user's screen while they work for us."""

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings, log lines below ERROR and progress bars, whoever they come from.

    Exceptions pass through unchanged, and everything is as before on leaving.
    """
    # Read by huggingface_hub when it is first imported, so it is set before anything imports it.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    # Read by tqdm when it is first imported: transformers' GGUF loader has a bar of its own.
    os.environ.setdefault("TQDM_DISABLE", "1")
    disabled = logging.root.manager.disable
    # PyTorch sets its loggers' levels when it is imported, which may happen within, so levels
    # set on those loggers beforehand would not last.
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # They warn of deprecations among themselves, differently in each version; no
            # narrower filter than "whatever they say while we call them" would last.
            warnings.simplefilter("ignore")
            with _without_progress_bars():
                yield
    finally:
        logging.disable(disabled)


@contextlib.contextmanager
def _without_progress_bars() -> Iterator[None]:
    from transformers.utils import logging as transformers_logging

    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
