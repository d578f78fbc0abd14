"""Replay of general sentences in each batch, to prevent forgetting."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from informin.errors import UsageError
from informin.texts import read_texts
from informin.views.view import join_rows

PACKAGED = Path(__file__).parents[1] / "general_sentences.txt"
IGNORED = -100  # transformers' label for positions that are not predicted


def load_general_sentences(file: str | None) -> datasets.Dataset:
    """Load general sentences as the column `text`: from a file, or the English ones of this package.

    Raises:
        UsageError: The file cannot be read, or has no sentence.
    """
    sentences = list(read_texts(file or PACKAGED))
    if not sentences:
        raise UsageError(f"{file} has no sentence", option="replay_file")
    return datasets.Dataset.from_dict({"text": sentences})


@dataclass
class GeneralSentences:
    """Appends a random sample of general sentences to the rows of a step.

    Attributes:
        rows: `input_ids` and `attention_mask` of all general sentences.
        size: Number of sentences per step.
        tokenizer: The tokenizer that pads them.
    """

    rows: datasets.Dataset
    size: int
    tokenizer: PreTrainedTokenizerBase

    def __call__(self, stacked: dict[str, Any], seed: int) -> dict[str, Any]:
        """Append K sentences to the rows (N, L) of `StackedViews`, and their indices as `general_row` (K,), an array.

        The same seed draws the same sentences.
        """
        drawn = np.random.default_rng(seed).choice(len(self.rows), min(self.size, len(self.rows)), replace=False)
        batch = self.tokenizer.pad(self.rows[drawn], return_tensors="pt")
        fill = {"input_ids": self.tokenizer.pad_token_id, "attention_mask": 0, "lm_labels": IGNORED}
        batch["lm_labels"] = torch.full_like(batch["input_ids"], IGNORED)
        joined = dict(stacked)
        for name in fill.keys() & stacked.keys():
            joined[name] = join_rows(stacked[name], batch[name], fill[name], self.tokenizer.padding_side)
        joined["general_row"] = drawn
        return joined
