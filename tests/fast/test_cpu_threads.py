"""On a CPU, batches are processed in parallel, with the same embeddings as in one thread."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import pytest
import torch

import informin.fast.threads
from informin.fast.threads import BATCHES_PER_CORE, parallel_map, use_threads

CORES = 3


@contextmanager
def cores(number: int):
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_new_thread(function):
    """Return what a function returns in a thread that starts now."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def state(_batch: int) -> tuple:
    """Return the thread and PyTorch's settings in it, after an operation on it."""
    threads = torch.get_num_threads()
    torch.ones(8, 8) @ torch.ones(8, 8)
    settings = torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    return threading.get_ident(), {threads, torch.get_num_threads()}, settings


@pytest.mark.parametrize("autocast", [False, True])
def test_threads_run_alone_in_inference_mode_with_the_autocast_of_the_caller(autocast):
    meet = threading.Barrier(CORES, timeout=120)  # passed only if CORES batches run at once

    def together(batch: int) -> tuple:
        if batch < CORES:
            meet.wait()
        return state(batch)

    number = BATCHES_PER_CORE * CORES
    with cores(CORES), torch.autocast("cpu", torch.float16, enabled=autocast), parallel_map(number) as run:
        found = list(run(together, range(number)))
    threads, used, settings = zip(*found)
    assert len(set(threads)) == CORES and threading.get_ident() not in threads
    assert all(counts == {1} for counts in used)
    assert {(inference, enabled) for inference, enabled, _ in settings} == {(True, autocast)}
    assert not autocast or {dtype for *_, dtype in settings} == {torch.float16}


@pytest.mark.parametrize("stop", [False, True])
def test_number_of_threads_is_restored_for_the_caller_and_for_new_threads(stop):
    number = BATCHES_PER_CORE * CORES
    with cores(CORES):
        with pytest.raises(KeyError) if stop else nullcontext(), parallel_map(number) as run:
            for _ in run(state, range(number)):
                if stop:
                    raise KeyError
        assert torch.get_num_threads() == CORES
        assert in_new_thread(torch.get_num_threads) == CORES


def test_setting_of_another_thread_does_not_reach_a_thread_that_runs_alone():
    def run() -> int:
        use_threads(1)
        in_new_thread(lambda: torch.set_num_threads(CORES))
        return torch.get_num_threads()

    with cores(CORES):
        assert in_new_thread(run) == 1


def test_batches_that_have_not_started_are_dropped(monkeypatch):
    """The first batch ends, and the others wait until those that have not started are canceled."""
    number = BATCHES_PER_CORE * CORES
    started, canceled = [], threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, cancel_futures=False):
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            canceled.set()
            super().shutdown()

    def compute(batch: int) -> None:
        started.append(batch)
        assert batch == 0 or canceled.wait(timeout=120)

    monkeypatch.setattr(informin.fast.threads, "ThreadPoolExecutor", Pool)
    with cores(CORES), pytest.raises(KeyError), parallel_map(number) as run:
        results = iter(run(compute, range(number)))
        next(results)
        raise KeyError
    assert 1 <= len(started) <= CORES + 1


def test_results_come_in_order_and_errors_reach_the_caller():
    number = BATCHES_PER_CORE * CORES
    last_is_done = threading.Event()

    def invert(batch: int) -> float:
        if batch == number:
            last_is_done.set()
        elif batch == 1:
            assert last_is_done.wait(timeout=120)
        return 1 / batch

    with cores(CORES), parallel_map(number) as run:
        assert list(run(invert, range(1, number + 1))) == [1 / i for i in range(1, number + 1)]
    with cores(CORES), pytest.raises(ZeroDivisionError), parallel_map(number) as run:
        list(run(invert, range(number)))


@pytest.mark.parametrize(("threads", "number"), [(1, 10**3), (CORES, BATCHES_PER_CORE * CORES - 1)])
def test_one_core_or_few_batches_run_in_the_thread_of_the_caller(threads, number):
    with cores(threads), parallel_map(number) as run:
        found = list(run(state, range(number)))
    assert {(thread, *used) for thread, used, _ in found} == {(threading.get_ident(), threads)}
