"""Several processes of `accelerate launch` or torchrun: they join, the first one prints and writes, and none hangs."""

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout

from informin.distributed import gather_objects, rank


@contextmanager
def processes(again: str) -> Iterator[None]:
    """Join the processes of `accelerate launch` for a `with` block, in which only the first prints.

    Args:
        again: What to do if a process is lost, as a sentence.

    Raises:
        LostProcessError: Another process does not answer.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    from accelerate import PartialState

    from informin.training.heartbeat import Heartbeat

    state = PartialState()
    with ExitStack() as stack:
        stack.enter_context(Heartbeat(None, state.device, again=again))
        if rank() > 0:
            stack.enter_context(redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
            logging.getLogger("informin").setLevel(logging.ERROR)
        yield
        gather_objects(None)  # at once an error if another process died; the heartbeat would wait for it
