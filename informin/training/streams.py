"""Streams: sentences that are read during training, split among processes and data loader workers."""

from functools import partial
from pathlib import Path
from typing import cast

import datasets
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader

from informin.textfiles import can_split, read_part, read_prompted
from informin.training.options import InforMinTrainingArguments
from informin.transformers_private import TrainerHooks

PARTS, PART_BYTES = 64, 2**20  # a large text file is split into PARTS parts of at least PART_BYTES
TEXT = datasets.Features({"text": datasets.Value("string")})


def stream_files(
    files: list[Path], text_column: str | None, prompt_column: str | None = None
) -> datasets.IterableDataset:
    """Return a stream of the sentences in files, with the column `text`.

    Each file is one shard, and a large text file several, so that several workers can read it.
    """
    shards = []
    for file in files:
        large = file.suffix.lower() == ".txt" and file.stat().st_size >= PARTS * PART_BYTES
        parts = PARTS if large and can_split(file) else 1
        shards += [(str(file), part, parts) for part in range(parts)]
    named = {"shards": shards, "text_column": text_column, "prompt_column": prompt_column}
    return datasets.IterableDataset.from_generator(shard_rows, features=TEXT, gen_kwargs=named)


def shard_rows(shards: list[tuple], text_column: str | None, prompt_column: str | None = None):
    """Yield the sentences of shards as rows.

    Args:
        shards: For each shard the file, the index of the part, and the number of parts. Further items are ignored;
            they are part of the cache key.
        text_column: Column of a table with the sentences.
        prompt_column: Column of a table with a prompt for each sentence; None for no prompts.
    """
    for name, part, parts, *_ in shards:
        file = Path(name)
        whole = parts == 1
        for sentence in read_prompted(file, text_column, prompt_column) if whole else read_part(file, part, parts):
            yield {"text": sentence}


def stream_share(stream: datasets.IterableDataset, args: InforMinTrainingArguments) -> datasets.IterableDataset:
    """Return the rows of this process. Of every W consecutive batches, each of the W processes takes one, by rank.

    All processes read the whole stream. If they read different shards, some would get more batches than others, and
    the run would end early. With `dataloader_drop_last`, rows that do not fill W batches are dropped.
    """
    size, drop = args.train_batch_size, args.dataloader_drop_last
    own = slice(args.process_index * size, (args.process_index + 1) * size)
    # Not a nested function: workers of a data loader must be able to pickle it.
    shared = stream.map(partial(_cut, own=own), batched=True, batch_size=size * args.world_size, drop_last_batch=drop)
    return shared if stream.features is None else shared.cast(stream.features)  # map drops the features


def _cut(batch: dict[str, list], own: slice) -> dict[str, list]:
    return {name: column[own] for name, column in batch.items()}


def stream_loader(trainer: TrainerHooks) -> DataLoader:
    """Return a data loader for the rows of this process; Trainer's own loader would split them again."""
    args, rows = trainer.args, cast(datasets.IterableDataset, trainer.train_dataset)
    loader: DataLoader = DataLoader(
        rows,
        batch_size=args.train_batch_size,
        collate_fn=trainer.collator_of_columns(),
        num_workers=args.dataloader_num_workers,
        pin_memory=args.dataloader_pin_memory,
        persistent_workers=args.dataloader_persistent_workers,
        multiprocessing_context=args.dataloader_multiprocessing_context,
        prefetch_factor=args.dataloader_prefetch_factor,
        in_order=args.dataloader_in_order,
    )
    single_process = dict(num_processes=1, process_index=0, dispatch_batches=False)
    return prepare_data_loader(loader, args.device, put_on_device=True, **single_process)
