"""Check that loss and gradient do not depend on how a batch is computed.

    python -m experiments.benchmarks.equality --model_name MODEL --train_file FILE

For each objective, one batch of real sentences is computed without padding, in chunks of rows, and over 1, 2 and 3
processes. Dropout is off, since its random numbers differ; a masked word distinguishes the two views instead. Each way
is compared with one process that computes padded rows at once: the difference of the loss, and the largest difference
of the gradient as a fraction of the largest gradient. A queue is empty in the first step, so it has no row.
tests/fast/test_packing.py, tests/training/test_gradient_cache.py and tests/training/test_distributed.py check the
same on small encoders, with queues, and that recomputed chunks reuse their dropout masks.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from experiments.benchmarks.report import report
from informin.cli.train_options import parse
from informin.fast.attention import ViewDropout
from informin.texts import read_texts
from trainer_informin import InforMinTrainer

SIZE = 24  # batch size, also of general sentences, so that each process gets equally many
OBJECTIVES = {
    "simcse": dict(objective="simcse"),
    "simcse, mlm": dict(objective="simcse", mlm_weight=0.1),
    "informin": dict(objective="informin", reconstruction_weight=0.4),
    "informin, paper form": dict(
        objective="informin", reconstruction_weight=0.1, reconstruction_form="paper", mlm_weight=0.1
    ),
    "scd": dict(objective="scd"),
    "micse": dict(
        objective="micse", queue_size=0, attention_mi_layers=[0, 1], max_seq_length=8
    ),  # all pairs of 8 tokens
    "adapt": dict(objective="guided", guided_weight=1, guided_neighbors=5, replay_weight=40, replay_size=SIZE),
    "guided contrast": dict(objective="simcse", false_negative_fraction=0.1, distillation_weight=1),
}
WAYS = {
    "packed": dict(padding_free=True),
    "chunks": dict(gradient_cache_chunk_size=10),
    "packed, chunks": dict(padding_free=True, gradient_cache_chunk_size=10),
    "2 processes": dict(processes=2),
    "3 processes": dict(processes=3),
    "3 processes, packed, chunks": dict(processes=3, padding_free=True, gradient_cache_chunk_size=10),
}
# View dropout and attention maps need padded rows, and attention maps need all rows at once.
REFUSED = {"scd": {"padding_free"}, "micse": {"padding_free", "gradient_cache_chunk_size"}}


def build(args: argparse.Namespace, options: dict, folder: str) -> InforMinTrainer:
    lines = list(read_texts(args.train_file))[: args.sentences]
    run = dict(output_dir=folder, use_cpu=True, bf16=False, eval_strategy="no", report_to="none", seed=1)
    run |= dict(per_device_train_batch_size=SIZE, projection_head="none", disable_tqdm=True, logging_steps=10**6)
    run |= {"model_name": args.model_name, "padding_free": False, "max_seq_length": 32}
    given = parse([], run | options)
    trainer = InforMinTrainer(
        args.model_name, given.args, train_dataset=lines, objective=given.objective, view=given.view
    )
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(module, ViewDropout):
            module.rates = (0.0,) * len(module.rates)
    trainer.model.train()
    return trainer


def rows_of(trainer: InforMinTrainer) -> dict[str, Any]:
    """Return a stacked batch whose second views have a masked word."""
    batches = iter(trainer.get_train_dataloader())
    (rows,), _ = trainer.get_batch_samples(batches, 1, torch.device("cpu"))
    if trainer._stack_views.views == 2:
        rows["input_ids"][SIZE : 2 * SIZE, 2] = trainer.processing_class.mask_token_id
    return rows


def share(rows: dict[str, Any], rank: int, processes: int) -> dict[str, Any]:
    """Return the rows of a process, from every view."""
    own = {}
    for name, x in rows.items():
        part = torch.as_tensor(x).unflatten(0, (-1, SIZE)).chunk(processes, dim=1)[rank].flatten(0, 1)
        own[name] = part if isinstance(x, Tensor) else part.numpy()
    return own


def measure(rank: int, args: argparse.Namespace, options: dict, processes: int, folder: str) -> None:
    """Save loss and gradients of the whole batch to FOLDER/found.pt. A single process also saves the rows."""
    torch.set_num_threads(1)
    if processes > 1:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(processes), MASTER_ADDR="127.0.0.1")
        dist.init_process_group("gloo", init_method=f"file://{folder}/init", rank=rank, world_size=processes)
    trainer = build(args, options, f"{folder}/run")
    rows = Path(folder).parent / "rows.pt"
    if not rows.exists():
        torch.save(rows_of(trainer), rows)
    own = share(torch.load(rows, weights_only=False), rank, processes)
    model = DistributedDataParallel(trainer.model) if processes > 1 else trainer.model
    loss = trainer.compute_loss(model, own)
    loss.backward()
    mean = loss.detach() / processes
    if processes > 1:
        dist.all_reduce(mean)
    if rank == 0:
        gradients = {name: x.grad for name, x in trainer.model.named_parameters() if x.grad is not None}
        torch.save((mean, gradients), f"{folder}/found.pt")
    if processes > 1:
        dist.barrier()
        os._exit(0)  # tearing down gloo's process group can hang


def found_by(args: argparse.Namespace, options: dict, folder: Path) -> tuple[Tensor, dict[str, Tensor]]:
    folder.mkdir()
    options = dict(options)
    processes = options.pop("processes", 1)
    mp.spawn(measure, (args, options, processes, str(folder)), nprocs=processes)
    return torch.load(folder / "found.pt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", required=True)
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--sentences", type=int, default=240)
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=list(OBJECTIVES))
    args = parser.parse_args()
    measured, table = {}, []
    for name in args.objectives:
        options, cells = OBJECTIVES[name], []
        with tempfile.TemporaryDirectory() as folder:
            loss, gradients = found_by(args, options, Path(folder) / "reference")
            scale = max(x.abs().max().item() for x in gradients.values())
            for way, how in WAYS.items():
                if REFUSED.get(name, set()) & set(how):
                    cells.append("refused")
                    continue
                other, others = found_by(args, options | how, Path(folder) / way.replace(", ", "-").replace(" ", "-"))
                assert others.keys() == gradients.keys()
                apart = max((others[key] - x).abs().max().item() for key, x in gradients.items()) / scale
                measured[f"{name}, {way}"] = {"loss": (other - loss).item(), "gradient": apart}
                cells.append(f"{abs(other - loss).item():.0e}, {apart:.0e}")
        table.append([name, f"{loss.item():.4f}", *cells])
        print(table[-1], flush=True)
    title = f"Loss and gradient of one batch of {SIZE}, read in several ways, less those of padded rows read at once"
    print(report("equality", title, ("objective", "loss", *WAYS), table, measured))


if __name__ == "__main__":
    main()
