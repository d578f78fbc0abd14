"""A run that resumes is bit for bit the run that never stopped, whatever its data, processes, epoch and workers.

    python -m tests.training.test_resume_matrix > table.md

prints what the tests find.
"""

import gc
import os
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from informin.training.data_options import DataArguments
from informin.training.sentences import load_sentences
from tests.conftest import make_sentences, save_bert
from tests.training.test_distributed import WORLD, train

DATA, PROCESSES = ("map-style", "stream"), (1, WORLD)
WORKERS = {
    "0 workers": {},
    "2 workers": dict(dataloader_num_workers=2),
    "2 persistent workers": dict(dataloader_num_workers=2, dataloader_persistent_workers=True),
}
STEPS, EPOCH_STEPS = 4, 2
PLACES = {"first epoch": 1, "later epoch": 3}  # the step to resume from
SIZES = (9, 6, 3)  # sentences of the files of a stream


def differences(folder: str, out: str, data: str, workers: str) -> dict[str, list[str]]:
    """By place: what differs between a run that resumes there and one that does not stop, as this process sees it."""
    options = WORKERS[workers] | dict(max_steps=STEPS, save_steps=1)
    if options.get("dataloader_num_workers"):
        options["dataloader_multiprocessing_context"] = "fork"  # others take seconds to start
    distributed = dist.is_initialized()
    options["per_device_train_batch_size"] = 8 // (WORLD if distributed else 1)
    first = not distributed or dist.get_rank() == 0

    def run(name: str, resume: str | None = None) -> dict:
        sentences = make_sentences(8 * EPOCH_STEPS + 1)
        if data == "stream":
            sentences = load_sentences(DataArguments(train_file=[f"{out}/files"], streaming=True), seed=1)
        saved = {"save_strategy": "no"} if resume else {}
        return train(folder, f"{out}/{name}", 1, resume, sentences, **options, **saved)

    whole, found = run("whole"), {}
    for place, step in PLACES.items():
        if first:
            shutil.copytree(f"{out}/whole/checkpoint-{step}", f"{out}/{step}/checkpoint-{step}")
        if distributed:
            dist.barrier()
        again = run(str(step), resume="last")
        same = {
            "batches": whole["read"][step:].equal(again["read"]),
            "random state": torch.stack(whole["states"][step:]).equal(torch.stack(again["states"])),
            "weights": all(weight.equal(again["weights"][name]) for name, weight in whole["weights"].items()),
        }
        found[place] = [name for name, equal in same.items() if not equal]
    return found


def every_cell(folder: str, out: str) -> dict:
    """`differences` by data and workers."""
    cells = {}
    gc.collect()
    gc.freeze()  # each run collects garbage, and each worker has a copy of the memory
    for number, (data, workers) in enumerate((data, workers) for data in DATA for workers in WORKERS):
        own = Path(out, str(number))
        (own / "files").mkdir(parents=True, exist_ok=True)
        if not dist.is_initialized() or dist.get_rank() == 0:
            for file, size in enumerate(SIZES):
                (own / "files" / f"{file}.txt").write_text("\n".join(make_sentences(size, seed=file)))
        if dist.is_initialized():
            dist.barrier()
        cells[data, workers] = differences(folder, str(own), data, workers)
    gc.unfreeze()
    return cells


def one_of_several(rank: int, folder: str, out: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD), MASTER_ADDR="127.0.0.1")
    dist.init_process_group("gloo", init_method=f"file://{out}/init", rank=rank, world_size=WORLD)
    torch.save(every_cell(folder, f"{out}/runs"), f"{out}/{rank}.pt")
    dist.barrier()
    os._exit(0)  # see test_distributed.worker


def several_processes(folder: str, out: Path) -> dict:
    """`every_cell` of two processes: what differs in either."""
    mp.spawn(one_of_several, (folder, str(out)), nprocs=WORLD)  # they have children
    one, other = (torch.load(out / f"{rank}.pt") for rank in range(WORLD))
    return {cell: {place: one[cell][place] + other[cell][place] for place in PLACES} for cell in one}


@pytest.fixture(scope="module")
def matrix(bert, tmp_path_factory) -> dict:
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    return {1: every_cell(str(bert), str(one)), WORLD: several_processes(str(bert), two)}


@pytest.mark.timeout(600)  # the first waits for all runs
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("processes", PROCESSES)
@pytest.mark.parametrize("data", DATA)
def test_a_resumed_run_is_the_run_that_never_stopped(matrix, data, processes, workers):
    assert matrix[processes][data, workers] == {place: [] for place in PLACES}


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        bert, out = save_bert(Path(folder, "bert")), Path(folder, "two")
        out.mkdir()
        found = {1: every_cell(str(bert), f"{folder}/one"), WORLD: several_processes(str(bert), out)}
    print(f"| data | processes | workers | {' | '.join(PLACES)} |\n|---|---|---|{'---|' * len(PLACES)}")
    for data in DATA:
        for processes in PROCESSES:
            for workers in WORKERS:
                cells = [", ".join(dict.fromkeys(each)) for each in found[processes][data, workers].values()]
                cells = [f"differ: {each}" if each else "bit-equal" for each in cells]
                print(f"| {data} | {processes} | {workers} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
