"""From a batch of sentences to the rows of one forward pass (two views, and the masked copy for MLM), and back.

Everything here runs in the training step, not in the data loader: the loader fetches a batch ahead of the step it is
for, so a mask drawn there would differ after a resume.
"""

import numpy as np
import torch
from torch import Tensor
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerBase

from informin.distributed import gather_with_gradient
from informin.guide.replay import IGNORED
from informin.objectives.false_negatives import known_pairs
from informin.objectives.terms import Masking, Views
from modeling_informin import InforMinOutput


class TokenMasker:
    """BERT's masking: of a share of the tokens 80% become [MASK], 10% a random word, 10% stay (Devlin et al., 2019)."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, probability: float = 0.15):
        self.collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=probability)
        self.special_ids = torch.tensor(tokenizer.all_special_ids)

    def __call__(self, input_ids: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Masks a clone of `input_ids` (N, L).

        Returns:
            The masked ids and the labels, (N, L) both: the word where something is to be predicted, -100 elsewhere.
            The same seed gives the same mask, whatever the global random state.
        """
        ids = input_ids.cpu()
        self.collator.generator = torch.Generator().manual_seed(seed)
        # torch_mask_tokens writes into its argument: without the clone the contrast would read masked sentences.
        masked, labels = self.collator.torch_mask_tokens(ids.clone(), torch.isin(ids, self.special_ids))
        return masked.to(input_ids.device), labels.to(input_ids.device)


def mask_seed(*parts: int) -> int:
    """One seed from several non-negative numbers: run seed, optimizer step, accumulation step, process."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0])


class StackedViews:
    """From a batch to the rows of one forward pass, stacked on the batch axis.

    Args:
        tokenizer: needed where something is masked.
        masking: what is, of `informin.objectives.Term.masking`; None for nothing.
        paired: batches hold both views already: B sentences, then the B sentences that are their other views.
        single: nothing compares two views, so that each sentence is read once, which stands for both.

    Attributes:
        views: 2, or 1 where they are single.
        copies: of each sentence: its views and, where a further copy is masked, that one.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase | None = None,
        masking: Masking | None = None,
        paired: bool = False,
        single: bool = False,
    ):
        self._paired = paired
        self.views = 1 if single else 2
        self._masker = masking and TokenMasker(tokenizer, masking.probability)
        self._first = 0 if masking and masking.of_views else self.views  # of the copies that are masked
        self.copies = self.views + (1 if masking and not masking.of_views else 0)

    def __call__(self, batch: dict[str, Tensor], seed: int = 0) -> dict[str, Tensor]:
        """Stacks a batch.

        Args:
            batch: `input_ids` and `attention_mask`, (B, L) each, and with a guide `row` (B,), their places in the
                training data; twice as many rows where they are paired, and `related` (B, k), see `WithPartners`.
            seed: of the masks, each view by its own draw.

        Returns:
            `input_ids` and `attention_mask`, (2B, L): view 1, then view 2; (3B, L) where the masked copy of each
            sentence follows them; B fewer where views are single. `sentence_ids` (B,) tell sentences apart. With a
            guide also `row`, of the views, where they are paired also `same` (see `Views`), with masks `lm_labels`, as
            many rows.
        """
        size = len(batch["input_ids"]) // (2 if self._paired else 1)
        source = torch.arange(size).repeat(self.copies)  # of each row, in the batch
        if self._paired:
            source[size : 2 * size] += size
        rows = {name: batch[name][source] for name in ("input_ids", "attention_mask")}
        rows["sentence_ids"] = sentence_ids(batch["input_ids"][:size], batch["attention_mask"][:size])
        if self._paired:
            other = sentence_ids(batch["input_ids"][size:], batch["attention_mask"][size:])
            rows["same"] = torch.cat([torch.stack([rows["sentence_ids"], other], dim=1), batch["related"]], dim=1)
        if "row" in batch:
            rows["row"] = batch["row"][source[: self.views * size]]
        if self._masker is None:
            return rows
        start = self._first * size
        masked, labels = self._masker(rows["input_ids"][start:], seed)
        rows["lm_labels"] = torch.full_like(rows["input_ids"], IGNORED)
        rows["input_ids"][start:] = masked
        rows["lm_labels"][start:] = labels
        return rows


def sentence_ids(input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """(B,) int64, a checksum of the words of each sentence (B, L): the same however much padding a batch has."""
    # A polynomial in an odd number, modulo 2^64: products and sums wrap around, as those of checksums may.
    powers = torch.full(input_ids.shape[1:], 6364136223846793005, device=input_ids.device).cumprod(0)  # (L,)
    places = (attention_mask.cumsum(1) - 1).clamp(min=0)  # of each word in its sentence: padding may come first
    return ((input_ids + 1) * attention_mask * powers[places]).sum(-1)


def two_views(outputs: InforMinOutput, rows: dict[str, Tensor], views: int = 2) -> Views:
    """What the terms read of one forward pass over rows that `StackedViews` made; of a single view twice the same."""
    size = len(rows["sentence_ids"])
    first, second = slice(size), slice((views - 1) * size, views * size)
    maps1, maps2 = (
        torch.stack([layer[view] for layer in outputs.attentions], dim=1) if outputs.attentions else None
        for view in (first, second)
    )  # (B, T, H, L, L)
    same = rows.get("same")  # candidates are the sentences of the second views
    near = None if same is None else known_pairs(same, gather_with_gradient(same[:, 1].contiguous()))
    row, general = rows.get("row"), rows.get("general_row")
    return Views(
        z1=outputs.projection[first],
        z2=outputs.projection[second],
        mask=rows["attention_mask"][first],
        embedding1=outputs.pooler_output[first],
        embedding2=outputs.pooler_output[second],
        row1=None if row is None else row[first],
        row2=None if row is None else row[second],
        general=None if general is None else outputs.pooler_output[-len(general) :],
        general_row=general,
        same=rows["sentence_ids"][:, None] if same is None else same,
        false_negatives=near,
        maps1=maps1,
        maps2=maps2,
        heads=outputs.heads or {},
        lm_losses=outputs.lm_losses,
    )
