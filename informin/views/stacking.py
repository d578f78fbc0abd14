"""From a batch of sentences to the rows of one forward pass (two views, and the masked copy for MLM), and back.

Everything here runs in the training step, not in the data loader: the loader fetches a batch ahead of the step it is
for, so a mask drawn there would differ after a resume.
"""

import numpy as np
import torch
from torch import Tensor
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerBase

from informin.objectives import Views
from modeling_informin import InforMinOutput

IGNORED = -100  # the label of positions that are not predicted, as everywhere in transformers


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


def stack_views(batch: dict[str, Tensor], masker: TokenMasker | None = None, seed: int = 0, masked_views: bool = False):
    """The rows of one forward pass, stacked on the batch axis.

    Args:
        batch: `input_ids` and `attention_mask`, (B, L) each.
        masker, seed: give a masker to add MLM.
        masked_views: the two views are themselves masked, each by its own draw, as in the authors' release.

    Returns:
        `input_ids` and `attention_mask`, (2B, L): view 1, then view 2. With a masker also `mlm_labels`; unless
        `masked_views`, the masked copy of each sentence then follows the views, (3B, L). `sentence_ids` (B,) tell
        sentences apart.
    """
    copies = 2 if masker is None or masked_views else 3
    rows = {name: batch[name].repeat(copies, 1) for name in ("input_ids", "attention_mask")}
    rows["sentence_ids"] = sentence_ids(batch["input_ids"], batch["attention_mask"])
    if masker is None:
        return rows
    first = 0 if masked_views else 2 * len(batch["input_ids"])
    masked, labels = masker(rows["input_ids"][first:], seed)
    rows["mlm_labels"] = torch.full_like(rows["input_ids"], IGNORED)
    rows["input_ids"][first:] = masked
    rows["mlm_labels"][first:] = labels
    return rows


def sentence_ids(input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """(B,) int64, a checksum of the words of each sentence (B, L): the same however much padding a batch has."""
    # A polynomial in an odd number, modulo 2^64: products and sums wrap around, as those of checksums may.
    powers = torch.full(input_ids.shape[1:], 6364136223846793005, device=input_ids.device).cumprod(0)  # (L,)
    return ((input_ids + 1) * attention_mask * powers).sum(-1)


def two_views(outputs: InforMinOutput, mask: Tensor) -> Views:
    """What the terms read of one forward pass over 2B rows or more, B of each view; mask (B, L) is the sentences'."""
    size = len(mask)
    first, second = slice(size), slice(size, 2 * size)
    maps1, maps2 = (
        torch.stack([layer[rows] for layer in outputs.attentions], dim=1) if outputs.attentions else None
        for rows in (first, second)
    )  # (B, T, H, L, L)
    features1, features2 = outputs.features or (None, None)
    return Views(
        z1=outputs.projection[first],
        z2=outputs.projection[second],
        tokens1=outputs.last_hidden_state[first],
        tokens2=outputs.last_hidden_state[second],
        mask=mask,
        maps1=maps1,
        maps2=maps2,
        features1=features1,
        features2=features2,
    )
