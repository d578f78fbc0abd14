"""Sentences that are read while training goes on, shared out among processes and the workers of their data loaders."""

from functools import partial
from pathlib import Path

import datasets
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader

from informin.textfiles import read_part, read_sentences
from informin.training.options import InforMinTrainingArguments
from informin.transformers_private import TrainerHooks

PARTS, PART_BYTES = 64, 2**20  # of a large plain text file, each of so many bytes or more
TEXT = datasets.Features({"text": datasets.Value("string")})


def stream_files(files: list[Path], text_column: str | None) -> datasets.IterableDataset:
    """The sentences of files, one column `text`, in shards: a file each, or a part each of a large plain text file.

    Workers of a data loader share out shards, so that one file can be read by several.
    """
    shards = []
    for file in files:
        large = file.suffix.lower() == ".txt" and file.stat().st_size >= PARTS * PART_BYTES
        parts = PARTS if large else 1
        shards += [(str(file), part, parts) for part in range(parts)]
    named = {"shards": shards, "text_column": text_column}
    return datasets.IterableDataset.from_generator(shard_rows, features=TEXT, gen_kwargs=named)


def shard_rows(shards: list[tuple], text_column: str | None):
    """The sentences of shards one after the other, as rows: of each its file, the part of it from 0, the parts.

    What follows these is not looked at: it is there for the keys of caches.
    """
    for name, part, parts, *_ in shards:
        file = Path(name)
        for sentence in read_sentences(file, text_column) if parts == 1 else read_part(file, part, parts):
            yield {"text": sentence}


def own_share(stream: datasets.IterableDataset, args: InforMinTrainingArguments) -> datasets.IterableDataset:
    """This process's rows: of as many batches as there are processes, the batch that is its own.

    All read the whole stream, so that shards of unlike size give none of them more batches than another: steps that
    not all take would end the run. What does not fill a batch of each is left out, as `dataloader_drop_last` says.
    """
    size, whole = args.train_batch_size, args.dataloader_drop_last
    own = slice(args.process_index * size, (args.process_index + 1) * size)
    # No function of its own: what workers run has to be pickled where they are not forked.
    shared = stream.map(partial(_cut, own=own), batched=True, batch_size=size * args.world_size, drop_last_batch=whole)
    return shared if stream.features is None else shared.cast(stream.features)  # which map forgets


def _cut(batch: dict[str, list], own: slice) -> dict[str, list]:
    return {name: column[own] for name, column in batch.items()}


def stream_loader(trainer: TrainerHooks) -> DataLoader:
    """Batches of a process's own share, on its device: Trainer's loader would share them out again."""
    args = trainer.args
    loader = DataLoader(
        trainer.train_dataset,
        batch_size=args.train_batch_size,
        collate_fn=trainer.collator_of_columns(),
        num_workers=args.dataloader_num_workers,
        pin_memory=args.dataloader_pin_memory,
        persistent_workers=args.dataloader_persistent_workers,
        multiprocessing_context=args.dataloader_multiprocessing_context,
        prefetch_factor=args.dataloader_prefetch_factor,
        in_order=args.dataloader_in_order,
    )
    alone = dict(num_processes=1, process_index=0, dispatch_batches=False)
    return prepare_data_loader(loader, args.device, put_on_device=True, **alone)
