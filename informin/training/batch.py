"""Stack a batch into the rows of one forward pass: two views, plus a masked copy for MLM.

Stacking runs in the training step, not in the data loader: the loader fetches one batch ahead, so random choices made
there would differ after a resume. It runs on the CPU; `on_device` copies the rows to the GPU without waiting for it.
"""

from collections.abc import Collection, Sequence
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
from informin.views.view import MASK, SentenceTokens, View, ViewRows

IGNORED = -100  # transformers' label for positions that are not predicted
VIEW = 1  # the random numbers of views differ from those of masks, which are seeded with the same step
TOKENS = ("input_ids", "attention_mask")
ROWS = ("row", "second_row")  # of the first and of the second text, as a guide counts them


def names_to_read(columns: Sequence[str], available: Collection[str] = ()) -> list[str]:
    """Return the names of the columns that a training step reads from tokenized rows.

    Args:
        columns: `View.columns`.
        available: Names of all columns of the rows. Those that a guide added are read, too.
    """
    further = [f"{column}_{name}" for column in columns[1:] for name in TOKENS]
    return [*TOKENS, *further, *(name for name in ROWS if name in available)]


class TokenTables(torch.utils.data.Dataset):
    """Tokenized rows that a data loader fetches as one Arrow table per batch, for `PadRows`.

    Lists of Python numbers take several times as long. With CUDA graphs, that would be a large part of a step. The rows
    must not have a transform, which tables leave out.
    """

    def __init__(self, rows: datasets.Dataset, names: Sequence[str]):
        self.rows = rows.select_columns(list(names))
        self._tables = self.rows.with_format("arrow")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]

    def __getitems__(self, indices: list[int]) -> list[pa.Table]:
        return [self._tables[indices]]


class PadRows:
    """Pads rows to the longest of a batch, as DataCollatorWithPadding does, in a fraction of its time.

    Args:
        tokenizer: The tokenizer of the rows.
        names: What a step reads; see `names_to_read`. Default: one text, without a guide.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, names: Sequence[str] = TOKENS):
        self.tokenizer, self.names = tokenizer, names

    def __call__(self, rows: Sequence[dict[str, Any]] | list[pa.Table]) -> dict[str, Tensor]:
        """Return token ids and attention masks (B, L) of B rows, and with a guide their indices (B,).

        Args:
            rows: Rows as dictionaries, or a table of all of them; see `TokenTables`.
        """
        side = self.tokenizer.padding_side
        batch = {}
        for name in self.names:
            value = 0 if name.endswith("mask") else self.tokenizer.pad_token_id
            if isinstance(rows[0], pa.Table):
                column = rows[0].column(name)
                batch[name] = torch.tensor(column.to_pylist()) if name in ROWS else _padded_lists(column, value, side)
            else:
                cells = [row[name] for row in rows]
                batch[name] = torch.tensor(cells) if name in ROWS else pad_rows(cells, value, side)
        return batch


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


def join_rows(rows: Sequence[Tensor], value: int, side: str) -> Tensor:
    """Concatenate rows (N, L), (M, K), ... to (N + M + ..., max(L, K, ...)), padded with a value on one side."""
    length = max(one.shape[1] for one in rows)
    padded = []
    for one in rows:
        missing = length - one.shape[1]
        padded.append(pad(one, (0, missing) if side == "right" else (missing, 0), value=value))
    return torch.cat(padded)


def check_batch(batch: Any, needed: Sequence[str]) -> None:
    """Raise UsageError for a batch of a custom collator without what training reads."""
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
        tokens: The tokenizer of the rows, and which tokens a view may change.
        masking: Which tokens to mask (`informin.objectives.Term.masking`); None masks nothing.
        view: Makes the two views of each sentence; None repeats its tokens.
        encodes_once: Encode the second view alone, for objectives that do not read both.

    Attributes:
        views: Number of views that are encoded, 2 or 1.
        copies: Copies of each sentence: its views and, if a further copy is masked, that one.
    """

    def __init__(
        self,
        tokens: SentenceTokens,
        masking: Masking | None = None,
        view: View | None = None,
        encodes_once: bool = False,
    ):
        tokenizer = tokens.tokenizer
        if view is not None and view.masks_tokens and tokenizer.mask_token is None:
            raise UsageError(f"is {view.name}, and the tokenizer has no mask token", option="view")
        self._tokens, self._tokenizer = tokens, tokenizer
        self._view = None if view is None or view.same_tokens else view
        self._masker = None if masking is None else TokenMasker(tokenizer, masking.probability)
        self._fill = {"input_ids": tokenizer.pad_token_id, "attention_mask": 0}  # values of padding
        self.views = 1 if encodes_once else 2
        self._first = 0 if masking and masking.of_views else self.views  # first of the copies to mask
        self.copies = self.views + (1 if masking and not masking.of_views else 0)

    def __call__(self, batch: dict[str, Tensor], seed: int = 0) -> dict[str, Any]:
        """Stack a batch.

        Args:
            batch: `input_ids` and `attention_mask`, (B, L) each, and with a guide `row` (B,), the indices of the
                training sentences; also those of further texts. All on the CPU.
            seed: Seed of the views and the masks. Each view has its own masks.

        Returns:
            `input_ids` and `attention_mask` (2B, L): view 1, then view 2; (3B, L) if a masked copy of each sentence
            follows. L may grow with the views. If only view 2 is encoded, B rows fewer. Beside them

            * `sentence_ids` (B,), equal for equal sentences, and for pairs `second_ids` (B,) of the second texts;
            * `number_of_views`, if it is 1;
            * `original_ids` and `original_mask`, (B, L'), the sentences, if the first view has other tokens or masks;
            * with a guide `row` (B,), a NumPy array, and for pairs `second_row`;
            * with masks `lm_labels`, for every row: the token to predict, or -100;
            * `shared` (B, L), if the views have the same tokens at other places: the place of each token of view 1 in
              the row of view 2, -1 if it has none;
            * `factors`, a list with those of each row (`ViewRows`), if the view scales embeddings.
        """
        size = len(batch["input_ids"])
        rows: dict[str, Any] = {name: batch[name].numpy() for name in ROWS if name in batch}
        rows["sentence_ids"] = sentence_ids(batch["input_ids"], batch["attention_mask"])
        if self.views == 1:
            rows["number_of_views"] = 1
        copies = [batch] * self.copies
        made: tuple[ViewRows | None, ViewRows] | None = None
        if self._view:
            made = self._view.both_views(batch, self._tokens, step_seed(seed, VIEW))
            padded = [batch if view is None else self._padded(view) for view in made]
            copies[: self.views] = padded[-self.views :]
            if self._view.scales_embeddings:
                rows["factors"] = [own for view in made[-self.views :] for own in factors_of(view, size)]
            if self._view.columns:
                rows["second_ids"] = sentence_ids(padded[1]["input_ids"], padded[1]["attention_mask"])
        if copies[0] is not batch or self._first == 0:
            rows |= {"original_ids": batch["input_ids"], "original_mask": batch["attention_mask"]}
        for name, value in self._fill.items():
            rows[name] = join_rows([copy[name] for copy in copies], value, self._tokenizer.padding_side)
        if made is not None and made[1].places is not None and self.views == 2:
            first = None if made[0] is None else made[0].places
            rows["shared"] = _shared(first, made[1].places, rows["attention_mask"][: 2 * size])
        if self._masker is None:
            return rows
        start = self._first * size
        masked, labels = self._masker(rows["input_ids"][start:], seed)
        rows["lm_labels"] = torch.full_like(rows["input_ids"], IGNORED)
        rows["input_ids"][start:] = masked
        rows["lm_labels"][start:] = labels
        return rows

    def _padded(self, view: ViewRows) -> dict[str, Tensor]:
        ones = [[1] * len(row) for row in view.tokens]
        lists = {"input_ids": view.tokens, "attention_mask": ones}
        return {name: pad_rows(lists[name], value, self._tokenizer.padding_side) for name, value in self._fill.items()}


def factors_of(view: ViewRows | None, number: int) -> Sequence[Tensor | None]:
    """Return the factors of each row of a view; None for 1."""
    return [None] * number if view is None or view.factors is None else view.factors


def _shared(first: Sequence[Sequence[int]] | None, second: Sequence[Sequence[int]], mask: Tensor) -> Tensor:
    """Return the place of each token of view 1 in the row of view 2, (B, L) int64; -1 for padding and missing tokens.

    Of a token that is repeated, the first copy counts.

    Args:
        first, second: Places of both views; see `ViewRows.places`. None for a view that is the sentence.
        mask: (2B, L), view 1, then view 2, padded on either side.
    """
    shared = torch.full_like(mask[: len(second)], -1, dtype=torch.int64)
    starts = mask.argmax(1).tolist()  # of the tokens
    lengths = mask[: len(second)].sum(1).tolist()
    for row, there in enumerate(second):
        one, other = starts[row], starts[len(second) + row]
        here = range(lengths[row]) if first is None else first[row]
        found = {place: other + number for number, place in reversed(list(enumerate(there)))} | {MASK: -1}
        shared[row, one : one + len(here)] = torch.tensor([found.get(place, -1) for place in here])
    return shared


def widened_places(shared: Tensor, length: int, side: str) -> Tensor:
    """Return `shared` (B, L) of `StackedViews` for rows of a length, which are padded on a side."""
    missing = length - shared.shape[1]
    if side == "right":
        return pad(shared, (0, missing), value=-1)
    return pad(torch.where(shared < 0, shared, shared + missing), (missing, 0), value=-1)


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
