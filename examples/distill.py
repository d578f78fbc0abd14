# /// script
# requires-python = ">=3.10"
# dependencies = ["informin-cl"]
#
# [tool.uv.sources]
# informin-cl = { path = "..", editable = true }
# ///
"""Distill an embedding model into a static model of your texts, which embeds much faster.

python examples/distill.py sentence-transformers/all-MiniLM-L6-v2 texts.txt outputs/static
"""

import sys
from pathlib import Path

import informin

model, file, output = sys.argv[1:]
texts = Path(file).read_text(encoding="utf-8").splitlines()
result = informin.distill(model, texts, task="search")
result.save(output)
print(f"SentenceTransformer({output!r}) loads the static model.")
