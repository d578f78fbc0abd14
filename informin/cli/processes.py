"""Several processes of torchrun or `accelerate launch`: they work together, and only the first one prints."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout


@contextmanager
def processes() -> Iterator[None]:
    """Join the processes for a `with` block, in which only the first prints."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    from accelerate import PartialState

    state = PartialState()
    if state.is_main_process:
        yield
    else:
        logging.getLogger("informin").setLevel(logging.ERROR)
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            yield
    state.destroy_process_group()
