# /// script
# requires-python = ">=3.10"
# dependencies = ["informin-cl[search]"]
#
# [tool.uv.sources]
# informin-cl = { path = "..", editable = true }
# ///
"""Build an index of texts, save it, and search it.

python examples/index_and_search.py sentence-transformers/all-MiniLM-L6-v2 texts.txt index "a delayed train"
"""

import sys
from pathlib import Path

from informin import Index

model, file, folder, query = sys.argv[1:]
texts = Path(file).read_text(encoding="utf-8").splitlines()
Index.build(model, texts).save(folder)
for hit in Index.load(folder).search([query], k=3)[0]:
    print(f"{hit.score:.2f}  {hit.text}")
