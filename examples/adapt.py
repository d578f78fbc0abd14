# /// script
# requires-python = ">=3.10"
# dependencies = ["informin-cl"]
#
# [tool.uv.sources]
# informin-cl = { path = "..", editable = true }
# ///
"""Adapt an embedding model to your texts, without labels.

python examples/adapt.py sentence-transformers/all-MiniLM-L6-v2 titles.txt outputs/adapted
"""

import sys
from pathlib import Path

from informin import InforMinTrainer, recipe

model, file, output = sys.argv[1:]
sentences = Path(file).read_text(encoding="utf-8").splitlines()
trainer = InforMinTrainer(model, train_dataset=sentences, **recipe("adapt", output_dir=output))
trainer.train()
trainer.export()
