"""General sentences beside a batch, for terms that hold what the encoder knew before."""

from dataclasses import dataclass

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedTokenizerBase

from informin.views.stacking import IGNORED


@dataclass
class GeneralSentences:
    """Puts a few general sentences behind the rows of a step.

    Attributes:
        rows: `input_ids` and `attention_mask` of all of them.
        size: how many a step reads.
        tokenizer: pads them.
    """

    rows: Dataset
    size: int
    tokenizer: PreTrainedTokenizerBase

    def __call__(self, stacked: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
        """The rows of `StackedViews` (N, L) with K more, and `general_row` (K,), which they are.

        The same seed draws the same sentences.
        """
        drawn = np.random.default_rng(seed).choice(len(self.rows), min(self.size, len(self.rows)), replace=False)
        batch = self.tokenizer.pad(self.rows[drawn], return_tensors="pt")
        length = max(stacked["input_ids"].shape[1], batch["input_ids"].shape[1])
        fill = {"input_ids": self.tokenizer.pad_token_id, "attention_mask": 0, "lm_labels": IGNORED}
        batch["lm_labels"] = torch.full_like(batch["input_ids"], IGNORED)
        joined = dict(stacked)
        for name in fill.keys() & stacked.keys():
            parts = (stacked[name], batch[name].to(stacked[name].device))
            joined[name] = torch.cat([self._widened(part, length, fill[name]) for part in parts])
        return joined | {"general_row": torch.from_numpy(drawn).to(stacked["input_ids"].device)}

    def _widened(self, x: Tensor, length: int, value: int) -> Tensor:
        missing = length - x.shape[1]
        return pad(x, (0, missing) if self.tokenizer.padding_side == "right" else (missing, 0), value=value)
