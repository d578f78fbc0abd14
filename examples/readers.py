"""Do all readers of one repository, or folder, see the same embeddings?

    python examples/readers.py USER/REPO --revision SHA --sentences FILE

Vectors are pooled, scaled and prompted as its config.json says. Prints the largest difference of a component to
AutoModel with remote code. The script needs transformers, sentence-transformers and, if the repository has an ONNX
file, onnxruntime. It does not need this project.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer
from transformers.utils import cached_file


def in_batches(tokenizer, sentences: list[str], read: Callable, kind: str) -> np.ndarray:
    """(N, d): what `read` gives for batches of 20."""
    starts = range(0, len(sentences), 20)
    options = dict(padding=True, truncation=True, return_tensors=kind)
    with torch.inference_mode():
        return np.concatenate([np.asarray(read(tokenizer(sentences[i : i + 20], **options))) for i in starts])


def pooled(hidden: np.ndarray, batch: dict, how: dict) -> np.ndarray:
    """Return (N, d), pooled from token vectors (N, L, d) as the entry `informin` of config.json says."""
    hidden, mask = np.asarray(hidden), np.asarray(batch["attention_mask"])
    if how["pooling"] == "mean":
        vectors = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    else:
        vectors = hidden[np.arange(len(hidden)), mask.sum(1) - 1 if how["pooling"] == "last" else 0]
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if how.get("normalize") else vectors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repo", help="Hub id or folder.")
    parser.add_argument("--revision", help="The commit that AutoModel with remote code and ONNX are read at.")
    parser.add_argument("--sentences", required=True, help="A text file, a sentence a line; the first 100 are read.")
    args = parser.parse_args()
    lines = Path(args.sentences).read_text(encoding="utf-8").splitlines()
    sentences = [line for line in lines if line.strip()][:100]
    tokenizer = AutoTokenizer.from_pretrained(args.repo, revision=args.revision)
    ours = AutoModel.from_pretrained(args.repo, trust_remote_code=True, revision=args.revision).eval()
    plain = AutoModel.from_pretrained(args.repo).eval()
    how = ours.config.informin
    prompted = [how.get("prompt", "") + sentence for sentence in sentences]  # SentenceTransformer puts it there itself
    expected = in_batches(tokenizer, prompted, lambda batch: ours(**batch).pooler_output, "pt")
    others = {
        "AutoModel": in_batches(
            tokenizer, prompted, lambda batch: pooled(plain(**batch).last_hidden_state, batch, how), "pt"
        ),
        "SentenceTransformer": SentenceTransformer(args.repo).encode(sentences),
    }
    file = cached_file(
        args.repo, "onnx/model.onnx", revision=args.revision, _raise_exceptions_for_missing_entries=False
    )
    if file:
        import onnxruntime

        session = onnxruntime.InferenceSession(file)
        names = [entry.name for entry in session.get_inputs()]
        others["onnxruntime"] = in_batches(
            tokenizer,
            prompted,
            lambda batch: pooled(session.run(["last_hidden_state"], {n: batch[n] for n in names})[0], batch, how),
            "np",
        )
    print(f"{len(sentences)} sentences, {expected.shape[1]} dimensions; {type(ours).__name__}, {type(plain).__name__}")
    for name, embeddings in others.items():
        print(f"{name:<20} {np.abs(embeddings - expected).max():.1e}")


if __name__ == "__main__":
    main()
