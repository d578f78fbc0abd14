"""A resumed run equals a run without interruption bit for bit, for any data, number of processes, workers and view.

The tests run some of the cells. This command runs all of them and prints a table:

    python -m tests.training.test_resume_matrix > table.md
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from datasets import Dataset

from informin.training import data as training_sentences
from informin.training.data import load_sentences
from informin.training.inputs import DataArguments
from informin.views import VIEWS
from tests.conftest import make_sentences, save_bert
from tests.support import forked
from tests.training.test_distributed import WORLD, train

DATA, PROCESSES = ("map-style", "stream"), (1, WORLD)
WORKERS = {
    "0 workers": {},
    "2 workers": dict(dataloader_num_workers=2),
    "2 persistent workers": dict(dataloader_num_workers=2, dataloader_persistent_workers=True),
}
OPTIONS = {"crop": dict(crop_spans="independent")}
STEPS, EPOCH_STEPS = 4, 2
PLACES = {"first epoch": 1, "later epoch": 3}  # the step to resume from
# The cells that are tested for each number of processes, and where their runs are resumed. Other tests resume runs with
# map-style data: test_resuming.py and test_distributed.py without workers, test_threads_in_training.py with workers.
TESTED = {
    1: {("map-style", "2 persistent workers", "augment"): ["later epoch"], ("stream", "2 workers", "pair"): [*PLACES]},
    WORLD: {("stream", "2 persistent workers", "crop"): ["later epoch"]},
}
EVERY = {(data, workers, view): [*PLACES] for data in DATA for workers in WORKERS for view in VIEWS}
SIZES = (9, 6, 3)  # sentences of the files of a stream


def differences(folder: str, out: str, data: str, workers: str, view: str, places: list[str]) -> dict[str, list[str]]:
    """Return, per place, what differs between a run that resumes there and a run without interruption.

    The buffer in which a stream is shuffled is smaller than the stream, so that it is filled again.
    """
    options = WORKERS[workers] | dict(max_steps=STEPS, view=view) | OPTIONS.get(view, {})
    columns = VIEWS[view].columns
    if options.get("dataloader_num_workers"):
        options["dataloader_multiprocessing_context"] = "fork"  # others take seconds to start
    distributed = dist.is_initialized()
    options["per_device_train_batch_size"] = 8 // (WORLD if distributed else 1)
    first = not distributed or dist.get_rank() == 0

    def run(name: str, resume: str | None = None) -> dict:
        sentences: Any = make_sentences(8 * EPOCH_STEPS + 1)
        sentences = list(zip(sentences, sentences[::-1])) if columns else sentences
        if data == "stream":
            with patch.object(training_sentences, "BUFFER", 5):
                files = DataArguments(train_file=[f"{out}/files"], streaming=True)
                sentences = load_sentences(files, seed=1, columns=columns)
        saved = {"save_strategy": "no", "save_steps": None} if resume else {"save_steps": 1}
        return train(folder, f"{out}/{name}", 1, resume, sentences, **options, **saved)

    whole, found = run("whole"), {}
    for place in places:
        step = PLACES[place]
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


def differences_of(cells: dict[tuple[str, str, str], list[str]], folder: str, out: str) -> dict:
    """Return `differences` per cell."""
    found = {}
    for number, ((data, workers, view), places) in enumerate(cells.items()):
        own = Path(out, str(number))
        (own / "files").mkdir(parents=True, exist_ok=True)
        if not dist.is_initialized() or dist.get_rank() == 0:
            for file, size in enumerate(SIZES):
                texts = {name: make_sentences(size, seed=file + 9 * place) for place, name in columns_of(view)}
                Dataset.from_dict(texts).to_csv(own / "files" / f"{file}.csv")
        if dist.is_initialized():
            dist.barrier()
        found[data, workers, view] = differences(folder, str(own), data, workers, view, places)
    return found


def columns_of(view: str) -> list[tuple[int, str]]:
    return list(enumerate(VIEWS[view].columns or ("text",)))


def one_of_several(rank: int, cells: dict[tuple[str, str, str], list[str]], folder: str, out: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD), MASTER_ADDR="127.0.0.1")
    dist.init_process_group("gloo", init_method=f"file://{out}/init", rank=rank, world_size=WORLD)
    torch.save(differences_of(cells, folder, f"{out}/runs"), f"{out}/{rank}.pt")
    dist.barrier()
    os._exit(0)  # see test_distributed.worker


def differences_of_several(cells: dict[tuple[str, str, str], list[str]], folder: str, out: str) -> dict:
    """Return `differences` per cell of two processes: what differs in either."""
    forked.ranks(one_of_several, (cells, folder, out), WORLD)
    one, other = (torch.load(f"{out}/{rank}.pt") for rank in range(WORLD))
    return {cell: {place: one[cell][place] + other[cell][place] for place in places} for cell, places in cells.items()}


@pytest.mark.parametrize("processes", TESTED)
def test_a_resumed_run_equals_a_run_without_interruption(bert, tmp_path, processes):
    find = differences_of if processes == 1 else differences_of_several
    assert find(TESTED[processes], str(bert), str(tmp_path)) == {
        cell: {place: [] for place in places} for cell, places in TESTED[processes].items()
    }


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        bert, out = str(save_bert(Path(folder, "bert"))), Path(folder, "two")
        out.mkdir()
        found = {1: differences_of(EVERY, bert, f"{folder}/one"), WORLD: differences_of_several(EVERY, bert, str(out))}
    print(f"| data | processes | workers | view | {' | '.join(PLACES)} |\n|---|---|---|---|{'---|' * len(PLACES)}")
    for processes in PROCESSES:
        for (data, workers, view), places in found[processes].items():
            cells = [", ".join(dict.fromkeys(each)) for each in places.values()]
            cells = [f"differ: {each}" if each else "bit-equal" for each in cells]
            print(f"| {data} | {processes} | {workers} | {view} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
