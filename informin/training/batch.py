"""Stack a batch into the rows of one forward pass: two views, plus a masked copy for MLM.

Stacking runs in the training step, not in the data loader: the loader fetches one batch ahead, so random choices made
there would differ after a resume. It runs on the CPU; `on_device` copies the rows to the GPU without waiting for it.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerBase

from informin.distributed import to_device
from informin.errors import UsageError
from informin.objectives.term import Masking
from informin.views.view import SentenceTokens, View

IGNORED = -100  # transformers' label for positions that are not predicted
VIEW = 1  # the random numbers of views differ from those of masks, which are seeded with the same step


class TokenTables(torch.utils.data.Dataset):
    """Tokenized rows that a data loader fetches as one Arrow table per batch, for `PadRows`.

    Lists of Python numbers take several times as long. With CUDA graphs, that would be a large part of a step. The rows
    must not have a transform, which tables leave out.
    """

    def __init__(self, rows: datasets.Dataset):
        names = [name for name in ("input_ids", "attention_mask", "row") if name in rows.column_names]
        self.rows = rows.select_columns(names)
        self._tables = self.rows.with_format("arrow")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]

    def __getitems__(self, indices: list[int]) -> list[pa.Table]:
        return [self._tables[indices]]


class PadRows:
    """Pads rows to the longest of a batch, as DataCollatorWithPadding does, in a fraction of its time."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer

    def __call__(self, rows: Sequence[dict[str, Any]] | list[pa.Table]) -> dict[str, Tensor]:
        """Return `input_ids` and `attention_mask` (B, L) of B rows, and with a guide their `row` (B,).

        Args:
            rows: Rows as dictionaries, or a table of all of them; see `TokenTables`.
        """
        fill = {"input_ids": self.tokenizer.pad_token_id, "attention_mask": 0}
        side = self.tokenizer.padding_side
        if isinstance(rows[0], pa.Table):
            table = rows[0]
            batch = {name: _padded_lists(table.column(name), value, side) for name, value in fill.items()}
            row = table.column("row").to_pylist() if "row" in table.column_names else None
        else:
            batch = {name: pad_rows([row[name] for row in rows], value, side) for name, value in fill.items()}
            row = [row["row"] for row in rows] if "row" in rows[0] else None
        return batch if row is None else batch | {"row": torch.tensor(row)}


def _padded_lists(column: pa.ChunkedArray, value: int, side: str) -> Tensor:
    """Return a column of lists as (N, L); see `pad_rows`."""
    lists = column.combine_chunks()
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    tokens = lists.flatten().cast(pa.int64()).to_numpy()  # an error if a token is null
    return pad_tokens(tokens, lengths, value, side)


def pad_tokens(tokens: np.ndarray, lengths: np.ndarray, value: int, side: str) -> Tensor:
    """Return rows of lengths (N,), which follow each other in `tokens`, as (N, L); see `pad_rows`."""
    places = np.arange(lengths.max()) < lengths[:, None]
    if side == "left":
        places = places[:, ::-1]
    padded = np.full(places.shape, value, np.int64)
    padded[places] = tokens
    return torch.from_numpy(padded)


def pad_rows(rows: Sequence[Sequence[int]], value: int, side: str) -> Tensor:
    """Return rows of N lists as (N, L), padded with a value on the side `left` or `right`."""
    lengths = np.array([len(row) for row in rows])
    return pad_tokens(np.fromiter(chain.from_iterable(rows), np.int64, count=lengths.sum()), lengths, value, side)


def join_rows(first: Tensor, second: Tensor, value: int, side: str) -> Tensor:
    """Concatenate rows (N, L) and (M, K) to (N + M, max(L, K)), padded with a value on the side `left` or `right`."""
    length = max(first.shape[1], second.shape[1])
    padded = []
    for rows in (first, second):
        missing = length - rows.shape[1]
        sides = (0, missing) if side == "right" else (missing, 0)
        padded.append(pad(rows, sides, value=value))
    return torch.cat(padded)


def check_batch(batch: Any, needs_row: bool) -> None:
    """Raise UsageError for a batch of a custom collator without what training reads."""
    needed = ["input_ids", "attention_mask"] + (["row"] if needs_row else [])
    missing = [name for name in needed if name not in batch]
    if missing:
        raise UsageError(
            f"returned a batch without {' and '.join(missing)}",
            option="data_collator",
            needed=f"a dictionary with the tensors {', '.join(needed)}",
        )


class StackedViews:
    """Turns a batch into the rows of one forward pass, stacked on the batch axis.

    Args:
        tokenizer: The tokenizer of the rows. Masks and views with other tokens need it.
        masking: Which tokens to mask (`informin.objectives.Term.masking`); None masks nothing.
        view: Makes the second view of each sentence; None repeats its tokens.
        single: Encode the second view alone, for objectives that do not read both.
        tokens: Finds the tokens that a view may change.

    Attributes:
        views: 2, or 1 if views are single.
        copies: Copies of each sentence: its views and, if a further copy is masked, that one.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase | None = None,
        masking: Masking | None = None,
        view: View | None = None,
        single: bool = False,
        tokens: SentenceTokens | None = None,
    ):
        self._view = None if view is None or view.same_tokens else view
        self._tokens = tokens
        if tokens is None and tokenizer is not None:
            self._tokens = SentenceTokens(tokenizer)
        self.views = 1 if single else 2
        self._masker: TokenMasker | None = None
        if masking is not None:
            assert tokenizer is not None, "masks need a tokenizer"
            self._masker = TokenMasker(tokenizer, masking.probability)
        self._first = 0 if masking and masking.of_views else self.views  # first of the copies to mask
        self.copies = self.views + (1 if masking and not masking.of_views else 0)

    def __call__(self, batch: dict[str, Tensor], seed: int = 0) -> dict[str, Any]:
        """Stack a batch.

        Args:
            batch: `input_ids` and `attention_mask`, (B, L) each, and with a guide `row` (B,), the indices of the
                training sentences. All on the CPU.
            seed: Seed of the views and the masks. Each view has its own masks.

        Returns:
            `input_ids` and `attention_mask` (2B, L): view 1, then view 2; (3B, L) if a masked copy of each sentence
            follows. L may grow with the second views. If views are single, B rows fewer, with the `number` 1 and, if
            these views have other tokens, the sentences as `original_ids` and `original_mask`. `sentence_ids` (B,) tell
            sentences apart. With a guide also `row` (B,), a NumPy array; with masks `lm_labels`, for every row;
            with second views of the same tokens at other places also `shared` (B, L), the place of each token of view 1
            in the row of view 2, -1 if it has none.
        """
        size = len(batch["input_ids"])
        source = torch.arange(size).repeat(self.copies)  # row of `batch` for each row of the result
        ids = sentence_ids(batch["input_ids"], batch["attention_mask"])
        originals = {}
        if self._view:
            originals = {"original_ids": batch["input_ids"], "original_mask": batch["attention_mask"]}
            source[(self.views - 1) * size : self.views * size] += size
            batch = self._with_second_views(batch, step_seed(seed, VIEW))
        rows: dict[str, Any] = {name: batch[name][source] for name in ("input_ids", "attention_mask")}
        rows["sentence_ids"] = ids
        if self.views == 1:
            rows |= {"number": 1} | originals
        if "row" in batch:
            rows["row"] = batch["row"].numpy()
        if "shared" in batch:
            rows["shared"] = batch["shared"]
        if self._masker is None:
            return rows
        start = self._first * size
        masked, labels = self._masker(rows["input_ids"][start:], seed)
        rows["lm_labels"] = torch.full_like(rows["input_ids"], IGNORED)
        rows["input_ids"][start:] = masked
        rows["lm_labels"][start:] = labels
        return rows

    def _with_second_views(self, batch: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
        """Return the batch with its second views (B, L') appended and, if tokens keep their places, with `shared`."""
        assert self._view is not None and self._tokens is not None, "other tokens need a view and a tokenizer"
        second = self._view.second_views(batch, self._tokens, seed)
        tokenizer = self._tokens.tokenizer
        ones = [[1] * len(row) for row in second.tokens]
        rows = {"input_ids": second.tokens, "attention_mask": ones}
        fill = {"input_ids": tokenizer.pad_token_id, "attention_mask": 0}
        side = tokenizer.padding_side
        pairs = {
            name: join_rows(batch[name], pad_rows(rows[name], fill[name], side), fill[name], side) for name in fill
        }
        if second.places is not None:
            pairs["shared"] = _shared(second.places, pairs["attention_mask"])
        return batch | pairs


def _shared(places: Sequence[Sequence[int]], mask: Tensor) -> Tensor:
    """Return the place of each token of view 1 in the row of view 2, (B, L) int64; -1 for padding and missing tokens.

    Of a token that is repeated, the first copy counts.

    Args:
        places: See `SecondView.places`.
        mask: (2B, L), view 1, then view 2, padded on either side.
    """
    shared = torch.full_like(mask[: len(places)], -1, dtype=torch.int64)
    starts = mask.argmax(1).tolist()  # of the tokens
    for row, (kept, one, other) in enumerate(zip(places, starts, starts[len(places) :])):
        first = {one + place: other + number for number, place in reversed(list(enumerate(kept)))}
        shared[row, list(first)] = torch.tensor(list(first.values()))
    return shared


def at_shared(maps: Tensor, shared: Tensor) -> Tensor:
    """Return attention maps (B, T, H, L, L) of view 2 at the tokens of view 1, with 0 for tokens that it lacks."""
    places = shared.clamp(min=0)
    present = shared >= 0
    queries = places[:, None, None, :, None].expand_as(maps)
    keys = places[:, None, None, None, :].expand_as(maps)
    pairs = present[:, None, None, :, None] & present[:, None, None, None, :]
    return maps.gather(3, queries).gather(4, keys) * pairs


def sentence_ids(input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Return a checksum (B,) int64 of each sentence's tokens (B, L), which does not depend on the padding."""
    # A polynomial in an odd number, modulo 2^64: integer overflow is intended.
    powers = input_ids.new_full(input_ids.shape[1:], 6364136223846793005).cumprod(0)  # (L,)
    positions = (attention_mask.cumsum(1) - 1).clamp(min=0)  # in the sentence: padding may come first
    return ((input_ids + 1) * attention_mask * powers[positions]).sum(-1)


class TokenMasker:
    """BERT's masking: of the chosen tokens, 80% become [MASK], 10% a random word, 10% stay (Devlin et al., 2019)."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, probability: float):
        if tokenizer.mask_token is None:
            raise UsageError("needs masked tokens, and the tokenizer has no mask token", option="mlm_weight")
        self.collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=probability)
        self.special_ids = torch.tensor(tokenizer.all_special_ids)

    def __call__(self, input_ids: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Mask a clone of `input_ids` (N, L), on the CPU.

        Returns:
            The masked ids (N, L) and the labels (N, L): the original id at the positions to predict, -100 elsewhere.
            The mask depends on the seed, not on the global random state.
        """
        self.collator.generator = torch.Generator().manual_seed(seed)
        # torch_mask_tokens changes its argument: without the clone the contrast would encode masked sentences.
        return self.collator.torch_mask_tokens(input_ids.clone(), torch.isin(input_ids, self.special_ids))


def step_seed(*parts: int) -> int:
    """Return one seed from several non-negative numbers: run seed, optimizer step, accumulation step, process.

    Zeros at the end of the parts change nothing, so lists of other lengths must end with another number.
    """
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0])


def on_device(rows: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Return rows with their tensors on a device; see `to_device`."""
    return {name: to_device(value, device) if isinstance(value, Tensor) else value for name, value in rows.items()}
