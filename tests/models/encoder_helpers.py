"""Sentences and settings for the tests of encoders."""

from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from tests.conftest import WORDS, make_sentences

SENTENCES = ["the dog", *make_sentences(9), "a", "the dog", " ".join(WORDS), ""]
SETTINGS = {"projection_head": "mlp", "lm_head": False, "pooling": "cls"}


def one_by_one(model, tokenizer, pooler: str, sentences, **options) -> np.ndarray:
    """Return the embeddings of single sentences, without padding, with a separate implementation of each pooler."""
    embeddings = []
    for sentence in sentences:
        with torch.no_grad():
            batch = tokenizer([sentence], return_tensors="pt", **options)
            layers = [x[0].numpy() for x in model.eval()(**batch, output_hidden_states=True).hidden_states]
        first, last = layers[1], layers[-1]
        if pooler == "mlp":
            weight, bias = (getattr(model.mlp.dense, name).detach().numpy() for name in ("weight", "bias"))
            embeddings.append(np.tanh(weight @ last[0] + bias))
        elif pooler in ("cls", "last"):
            embeddings.append(last[0 if pooler == "cls" else -1])
        else:
            other = {"mean": last, "first_last": first, "embeddings_last": layers[0], "last2": layers[-2]}[pooler]
            embeddings.append(np.mean([token for layer in (other, last) for token in layer], axis=0))
    return np.stack(embeddings)


def saved_again(start: Path, folder: Path) -> Path:
    """Saved with the plain class, which loses the projection head but keeps its settings."""
    AutoModel.from_pretrained(start).save_pretrained(folder)
    AutoTokenizer.from_pretrained(start).save_pretrained(folder)
    return folder
