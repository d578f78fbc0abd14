"""Show progress bars in terminals and notebooks only."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


def hidden() -> bool | None:
    """Return the value of tqdm's `disable`: False in a notebook, otherwise None: show bars in a terminal only."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return False if shell is not None and "IPKernelApp" in shell.config else None


@contextmanager
def without_bars() -> Iterator[None]:
    """Hide transformers' bars for each saved file inside the block."""
    from transformers.utils import logging  # not imported by every command

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
