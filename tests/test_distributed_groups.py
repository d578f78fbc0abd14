"""Collectives between processes: which group they use, how long they wait, and errors of one process."""

import torch

from informin import distributed
from tests.support import forked


def test_tensors_on_a_cpu_do_not_use_the_group_of_the_gpus(monkeypatch):
    """With NCCL, the default group has no backend for them."""
    calls = []
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(distributed, "_processors", lambda world: "processors")
    monkeypatch.setattr(distributed.dist, "all_reduce", lambda x, group=None: calls.append((x.device.type, group)))
    distributed.sum_over_processes(torch.ones(3))
    distributed.sum_over_processes(torch.ones(3, device="meta"))
    assert calls == [("cpu", "processors"), ("meta", None)]


WAITING = """
import sys, time
from datetime import timedelta
from types import SimpleNamespace
import torch.distributed as dist
from informin import distributed
from informin.distributed import first_of_machine_first

rank, order = int(sys.argv[1]), sys.argv[3]
dist.init_process_group("gloo", f"file://{sys.argv[2]}", timedelta(seconds=120), 2, rank)
dist.barrier()
# From now on, only collectives of the default group time out: a busy machine may need longer to form another group.
dist.group.WORLD.set_timeout(timedelta(seconds=1))
with first_of_machine_first(SimpleNamespace(local_process_index=rank)):
    assert distributed._patient.cache_info().currsize == 1, "forming the group would have the default timeout"
    time.sleep(0 if rank else 2)
    with open(order, "a") as file:
        file.write(str(rank))
"""


def test_the_first_process_may_take_longer_than_the_timeout_of_the_run(tmp_path):
    """The timeout is half an hour by default, and a guide can need longer."""
    arguments = [str(tmp_path / "store"), str(tmp_path / "order")]
    started = [forked.python(WAITING, [rank, *arguments]) for rank in (0, 1)]
    done = [forked.run(process) for process in started]
    assert [one.returncode for one in done] == [0, 0], done[0].stderr + done[1].stderr
    assert (tmp_path / "order").read_text() == "01"


FAILING = """
import sys
from datetime import timedelta
import torch.distributed as dist
from informin.distributed import first_only, on_first
from informin.files import only_writer

rank = int(sys.argv[1])
dist.init_process_group("gloo", f"file://{sys.argv[2]}", timedelta(seconds=60), 2, rank)
print(on_first(lambda: rank + 5))
with first_only(only_writer("x.npy")):
    print("locked")
try:
    on_first(lambda: open("missing"))
except Exception as error:
    print(type(error).__name__, "missing" in str(error))
"""


def test_an_error_in_the_first_process_is_raised_in_all(tmp_path):
    """Otherwise the others would wait for it. Only the first process works and locks."""
    started = [forked.python(FAILING, [rank, tmp_path / "store"], cwd=tmp_path) for rank in (0, 1)]
    printed = [forked.run(process).stdout for process in started]
    assert printed == ["5\nlocked\nFileNotFoundError True\n", "5\nlocked\nUsageError True\n"]
