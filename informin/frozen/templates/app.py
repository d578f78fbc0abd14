"""Compare sentences with a model. Written by InforMin-CL."""

import json
from pathlib import Path

import numpy as np
from page import Card, build_page  # type: ignore[import-not-found]  # a file of the Space
from sentence_transformers import SentenceTransformer

NOTE = "Type sentences, one a line. Each is compared with the other lines and with {} general sentences."
EXAMPLE = "A cat sleeps in the sun.\nThe kitten naps on a warm windowsill.\nStock prices fell on Monday."

folder = Path(__file__).parent
source = json.loads((folder / "model.json").read_text(encoding="utf-8"))
# The attention implementation of a model's own files could name code on the Hub.
safe: dict[str, object] = {"use_safetensors": True, "attn_implementation": None}
if source["revision"]:  # else, low-rank matrices are those of the default branch
    safe["adapter_kwargs"] = {"revision": source["revision"]}
model = SentenceTransformer(source["model"], revision=source["revision"], model_kwargs=safe)
general = (folder / "sentences.txt").read_text(encoding="utf-8").splitlines()
general_vectors = model.encode(general)


def compare(typed: str, count: int) -> list[Card]:
    """Return for each typed line the cards of the most similar sentences."""
    lines = list(dict.fromkeys(line.strip() for line in typed.splitlines() if line.strip()))
    vectors = model.encode(lines)
    sentences = lines + general
    similarities = np.asarray(model.similarity(vectors, np.concatenate([vectors, general_vectors])))
    np.fill_diagonal(similarities, -np.inf)
    cards = []
    for line, row in zip(lines, similarities):
        for place in np.argsort(-row)[:count]:
            bar = {"vectors": float(np.clip(row[place], 0, 1))}
            cards.append(Card(sentences[place], f"{row[place]:.3f}", bar, group=line))
    return cards


note = NOTE.format(f"{len(general):,}")
demo = build_page(source["model"], note, "Sentences", compare, lines=3, value=EXAMPLE)

if __name__ == "__main__":
    demo.launch()
