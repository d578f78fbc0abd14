"""Collectives between processes: which group they use."""

import torch

from informin import distributed


def test_tensors_on_a_cpu_do_not_use_the_group_of_the_gpus(monkeypatch):
    """With NCCL, the default group has no backend for them."""
    calls = []
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(distributed, "_processors", lambda world: "processors")
    monkeypatch.setattr(distributed.dist, "all_reduce", lambda x, group=None: calls.append((x.device.type, group)))
    distributed.sum_over_processes(torch.ones(3))
    distributed.sum_over_processes(torch.ones(3, device="meta"))
    assert calls == [("cpu", "processors"), ("meta", None)]
