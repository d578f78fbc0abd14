# /// script
# requires-python = ">=3.10"
# dependencies = ["informin-cl"]
#
# [tool.uv.sources]
# informin-cl = { path = "..", editable = true }
# ///
"""Train a sentence embedding model with the objective of a paper.

python examples/train_preset.py bert-base-uncased sentences.txt outputs/simcse
"""

import sys
from pathlib import Path

from informin import InforMinTrainer, InforMinTrainingArguments

model, file, output = sys.argv[1:]
sentences = Path(file).read_text(encoding="utf-8").splitlines()
args = InforMinTrainingArguments(output, max_steps=50)
trainer = InforMinTrainer(model, args, train_dataset=sentences, objective="simcse")
trainer.train()
trainer.export()
