# /// script
# requires-python = ">=3.10"
# dependencies = ["informin-cl"]
#
# [tool.uv.sources]
# informin-cl = { path = "..", editable = true }
# ///
"""Train with a custom loss beside the contrastive loss.

python examples/train_custom_loss.py bert-base-uncased sentences.txt outputs/mine
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from informin import Contrast, InforMinTrainer, InforMinTrainingArguments, Term
from informin.distributed import gather_with_gradient


@dataclass
class Variance(Term):
    """Every feature of the embeddings varies across sentences (Bardes et al., 2022, VICReg, eq. 1)."""

    weight: float = 0.1
    target: float = 1.0

    def loss(self, views):
        z = gather_with_gradient(views.z1).float()  # (N, d), of all processes
        deviation = (z.var(0) + 1e-4).sqrt()  # (d,)
        return (self.target - deviation).relu().mean()


model, file, output = sys.argv[1:]
sentences = Path(file).read_text(encoding="utf-8").splitlines()
args = InforMinTrainingArguments(output, max_steps=50)
trainer = InforMinTrainer(
    model, args, train_dataset=sentences, objective=[Contrast(temperature=0.05), Variance(weight=0.1)]
)
trainer.train()
trainer.export()
