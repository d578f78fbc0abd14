"""Judge criteria that predict, without labels, whether an adapter helps.

    python benchmarks/prediction.py --model_name MODEL[:POOLER] ... --data_dir SHARED/data --cache FOLDER \
        --output results/prediction.json

A cell is a model, a data set and a map. Its real gain is the change of nDCG@10 (CISI) or of leave-one-out 1-NN accuracy
(domains) when the map is fitted on the unlabeled texts. Each criterion predicts the gain from these texts alone:

* halves: rank of a text's second half among others, for its first half (the criterion of `informin fit`)
* crop: rank of the rest of a text, for 3 to 20 consecutive words cut from it
* keywords: rank of a text, for its five words with the highest TF-IDF
* beginning: rank of the rest of a text, for its first sentence, or its first third if there is one sentence
* keyword neighbors: ranks of a text's 10 nearest neighbors by the unadapted embeddings, for its keywords
* isotropy: decrease of the mean cosine between texts
* effective rank: increase of the effective rank, relative

Retrieval criteria fit the map on other texts than those cut. Prints how often each has the sign of the real gain, its
rank correlation with it, and how often each verdict was right; "always helps" is the baseline. Settings were selected
on CISI, StackOverflow and the training file of CLINC150; Banking77 and the test file of CLINC150 report. A model folder
without config.json is read as the unpacked wordllama package.
"""

import argparse
import hashlib
import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr
from sklearn.feature_extraction.text import TfidfVectorizer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.maps import MAPS
from benchmarks.report import machine
from informin.adapters.linear import LinearAdapter
from informin.adapters.prediction import UNCLEAR, VERDICTS, HalvesTest, Prediction, choose, halves, hold_out
from informin.adapters.rows import nearest_rows
from informin.evaluation.collections import load_collection
from informin.evaluation.geometry import effective_rank, unit
from informin.evaluation.labels import load_labels, neighbor_accuracy
from informin.files import write_json
from informin.models.open_model import load_model

MOST_FITTED, MOST_SCORED = 10_000, 5_000  # rows of a domain
Encode = Callable[[list[str]], np.ndarray]
RETRIEVAL = ("halves", "crop", "keywords", "beginning", "keyword neighbors")
CRITERIA = (*RETRIEVAL, "isotropy", "effective rank")


@dataclass(frozen=True)
class Data:
    """Unlabeled texts, and a function that scores embeddings by labels or judgments.

    Attributes:
        texts: Texts to fit on.
        scored: Texts that `score` needs.
        score: From the embeddings of `texts` and of `scored` to the score x 100.
        report: Whether the data report, instead of selecting settings.
        classes: Labels of `scored` as integers, in a domain.
        text_classes: Labels of `texts`.
    """

    name: str
    texts: list[str]
    scored: list[str]
    score: Callable[[np.ndarray, np.ndarray], float]
    report: bool
    classes: np.ndarray | None = None
    text_classes: np.ndarray | None = None


def load_data(folder: Path, most_fitted: int | None = MOST_FITTED) -> list[Data]:
    """Load CISI and the domains, with a random sample of at most `most_fitted` texts of a domain to fit on."""
    cisi = load_collection(folder / "retrieval" / "cisi")

    def ndcg(documents: np.ndarray, queries: np.ndarray) -> float:
        ranking = cisi.rank(unit(queries).astype(np.float32), unit(documents).astype(np.float32))
        return float(cisi.scores(ranking)["ndcg_10"].mean())

    found = [Data("CISI", cisi.documents, cisi.queries, ndcg, False)]
    for name, train, test, report in (
        ("StackOverflow", "stackoverflow.tsv", None, False),
        ("CLINC150 train", "clinc150_train.tsv", None, False),
        ("Banking77 test", "banking77_train.tsv", "banking77_test.tsv", True),
        ("CLINC150 test", "clinc150_train.tsv", "clinc150_test.tsv", True),
    ):
        labeled = load_labels(folder / "domain" / train, "domain").distinct()
        order = np.random.default_rng(0).permutation(len(labeled.sentences))
        if test:
            fitted, held = order, load_labels(folder / "domain" / test, "domain").distinct()
            sentences, labels = held.sentences, held.labels
        else:
            cut = len(order) * 2 // 3
            fitted, rest = order[:cut], order[cut:][:MOST_SCORED]
            sentences, labels = [labeled.sentences[i] for i in rest], [labeled.labels[i] for i in rest]
        names, classes = np.unique(labels, return_inverse=True)

        def nearest_label(_: np.ndarray, x: np.ndarray, classes: np.ndarray = classes) -> float:
            return neighbor_accuracy(unit(x).astype(np.float32), classes)[0]

        texts = [labeled.sentences[i] for i in fitted[:most_fitted]]
        number = {label: i for i, label in enumerate(names)}
        text_classes = np.array([number.get(labeled.labels[i], -1) for i in fitted[:most_fitted]])
        found.append(Data(name, texts, sentences, nearest_label, report, classes, text_classes))
    return found


def encoder_of(name: str) -> Encode:
    """Return the function that embeds texts with a model, named as MODEL or MODEL:POOLER."""
    model, _, pooler = name.partition(":")
    if Path(model).is_dir() and not Path(model, "config.json").exists():
        return wordllama(Path(model))
    encoder = load_model(model, (pooler or "mean",), 256, 64)
    return lambda texts: encoder(texts)[pooler or "mean"]


def wordllama(folder: Path) -> Encode:
    """Read wordllama's weights as a StaticEmbedding of sentence-transformers."""
    from safetensors.numpy import load_file
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    (weights,) = folder.rglob("*256*.safetensors")
    (tokenizer,) = folder.rglob("*tokenizer*.json")
    (table,) = load_file(weights).values()
    static = StaticEmbedding(Tokenizer.from_file(str(tokenizer)), embedding_weights=table.astype(np.float32))
    model = SentenceTransformer(modules=[static], device="cpu")
    return lambda texts: model.encode(texts, show_progress_bar=False)


def cached(encode: Encode, name: str, folder: Path) -> Encode:
    """Return a function that keeps the embeddings of each list of texts on disk."""

    def read(texts: list[str]) -> np.ndarray:
        digest = hashlib.sha256("\0".join([name, *texts]).encode()).hexdigest()[:24]
        path = folder / f"{digest}.npy"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            np.save(path, encode(texts))
        return np.load(path)

    return read


def crop(text: str, source: random.Random) -> tuple[str, str]:
    """Cut 3 to 20 consecutive words, at most half, from a text."""
    words = text.split()
    length = min(source.randint(3, 20), max(1, len(words) // 2))
    start = source.randint(0, len(words) - length)
    return " ".join(words[start : start + length]), " ".join(words[:start] + words[start + length :])


def beginning(text: str) -> tuple[str, str]:
    """Cut the first sentence from a text, or its first third."""
    sentences = re.split(r"(?<=[.!?])\s+", text.strip(), maxsplit=1)
    words = text.split()
    third = max(1, len(words) // 3)
    return (sentences[0], sentences[1]) if len(sentences) > 1 else (" ".join(words[:third]), " ".join(words[third:]))


def keywords(texts: list[str], held_out: np.ndarray) -> list[str]:
    """Return the five words of each held-out text with the highest TF-IDF."""
    vectorizer = TfidfVectorizer(stop_words="english", sublinear_tf=True)
    weights = vectorizer.fit_transform(texts)[held_out]
    names = vectorizer.get_feature_names_out()
    found = []
    for text, row in zip(held_out, weights):
        best = row.indices[np.argsort(-row.data, kind="stable")][:5]
        found.append(" ".join(names[best]) or texts[text])
    return found


@dataclass(frozen=True)
class NeighborTest(HalvesTest):
    """As `HalvesTest`, with several right answers: `second` holds all texts, and `right` their indices (m, 10)."""

    right: np.ndarray

    def log_ranks(self, adapter: LinearAdapter | None) -> np.ndarray:
        first, second = (
            unit(half if adapter is None else adapter.transform(half)) for half in (self.first, self.second)
        )
        cosines = (first @ second.T).round(6)
        right = np.take_along_axis(cosines, self.right, 1)  # (m, 10)
        return np.log(1 + (cosines[:, None, :] > right[:, :, None]).sum(-1)).mean(-1)


def tests_of(data: Data, encode: Encode, vectors: np.ndarray) -> dict[str, HalvesTest]:
    """Return the retrieval criteria of a data set."""
    held_out = hold_out(data.texts)
    fit_on = np.delete(vectors, held_out, axis=0)
    texts, source = [data.texts[i] for i in held_out], random.Random(0)
    words = keywords(data.texts, held_out)
    pairs = {
        "halves": [halves(text) for text in texts],
        "crop": [crop(text, source) for text in texts],
        "keywords": list(zip(words, texts)),
        "beginning": [beginning(text) for text in texts],
    }
    tests = {name: HalvesTest(fit_on, *(encode(list(side)) for side in zip(*both))) for name, both in pairs.items()}
    x = torch.from_numpy(unit(vectors[held_out]))
    right = nearest_rows(x, x, 10, first=0)[0].numpy()
    return {**tests, "keyword neighbors": NeighborTest(fit_on, encode(words), vectors[held_out], right)}


def spectrum(vectors: np.ndarray, adapter: LinearAdapter) -> dict[str, Prediction]:
    """Return the criteria of the spectrum, whose error is 0: their sign is their verdict."""
    some = vectors[np.random.default_rng(0).permutation(len(vectors))[:2000]]
    before, after = unit(some), unit(adapter.transform(some))
    isotropy = float((before.mean(0) ** 2).sum() - (after.mean(0) ** 2).sum())
    rank = effective_rank(after) / effective_rank(before) - 1
    return {"isotropy": Prediction(isotropy, 0.0, 1000), "effective rank": Prediction(rank, 0.0, 1000)}


def values_of(predicted: Prediction) -> list:
    """Return what is saved of a prediction."""
    return [predicted.gain, predicted.error, predicted.verdict, predicted.mean_cosine]


def cells_of(name: str, encode: Encode, data: Data) -> list[dict]:
    """Measure every map on a data set."""
    vectors, scored = encode(data.texts), encode(data.scored)
    tests = tests_of(data, encode, vectors)
    before = data.score(vectors, scored)
    found = []
    for title, make in MAPS.items():
        fitted = make().fit(vectors)
        gain = data.score(fitted.transform(vectors), fitted.transform(scored)) - before
        on_others = make().fit(tests["halves"].fit_on)
        predictions = {key: test.judge(on_others) for key, test in tests.items()} | spectrum(vectors, fitted)
        found.append({
            "model": name, "data": data.name, "report": data.report, "map": title, "before": before, "gain": gain,
            "predicted": {key: values_of(p) for key, p in predictions.items()},
        })  # fmt: skip
    chosen, options, predicted = choose(tests["halves"])
    fitted = LinearAdapter(**options).fit(vectors)
    gain = data.score(fitted.transform(vectors), fitted.transform(scored)) - before
    found.append({"model": name, "data": data.name, "report": data.report, "map": "auto", "before": before,
                  "gain": gain, "chosen": chosen,
                  "predicted": {"halves": values_of(predicted)}})  # fmt: skip
    return found


def criteria_table(cells: list[dict]) -> str:
    """Return how well each criterion predicts sign and order of the gains, on select / report data."""
    lines = ["| criterion | sign right, % | clear verdicts right, % | clear verdicts | rank correlation |",
             "| --- | ---: | ---: | ---: | ---: |"]  # fmt: skip
    parts = [[c for c in cells if c["report"] == report and c["gain"] != 0] for report in (False, True)]
    helps = [f"{100 * np.mean([c['gain'] > 0 for c in part]):.0f}" for part in parts]
    lines.append(f"| always helps | {' / '.join(helps)} | | | |")
    for key in CRITERIA:
        columns = []
        for part in parts:
            predicted = np.array([c["predicted"][key][0] for c in part])
            gains = np.array([c["gain"] for c in part])
            clear = np.array([c["predicted"][key][2] != UNCLEAR for c in part])
            right = (predicted > 0) == (gains > 0)
            sure = f"{100 * right[clear].mean():.0f}" if clear.any() else "-"
            order = spearmanr(predicted, gains).statistic
            columns.append((f"{100 * right.mean():.0f}", sure, f"{clear.sum()} of {len(part)}", f"{order:+.2f}"))
        lines.append(f"| {key} | " + " | ".join(f"{a} / {b}" for a, b in zip(*columns)) + " |")
    return "\n".join(lines)


def verdict_table(cells: list[dict]) -> str:
    """Return how often the score rose after each verdict of halves, on select / report data."""
    lines = ["| verdict | given | score rose | mean gain |", "| --- | ---: | ---: | ---: |"]
    for verdict in VERDICTS:
        columns = []
        for report in (False, True):
            gains = [c["gain"] for c in cells if c["report"] == report and c["predicted"]["halves"][2] == verdict]
            columns.append(
                (str(len(gains)), str(sum(g > 0 for g in gains)), f"{np.mean(gains):+.2f}" if gains else "-")
            )
        lines.append(f"| {verdict} | " + " | ".join(f"{a} / {b}" for a, b in zip(*columns)) + " |")
    return "\n".join(lines)


def choice_table(cells: list[dict]) -> str:
    """Return the gains of both recipes and of --recipe auto."""
    lines = [
        "| model | data | before | documents | short_texts | auto | verdict |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    gains = {(c["model"], c["data"], c["map"]): c["gain"] for c in cells}
    for c in cells:
        if c["map"] == "auto":
            both = [gains[c["model"], c["data"], f"LinearAdapter, {name}"] for name in ("documents", "short_texts")]
            lines.append(f"| {c['model']} | {c['data']} | {c['before']:.2f} | {both[0]:+.2f} | {both[1]:+.2f} | "
                         f"{c['gain']:+.2f}, {c['chosen']} | {c['predicted']['halves'][2]} |")  # fmt: skip
    return "\n".join(lines)


def arguments(description: str | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", nargs="+", required=True)
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args()


def main() -> int:
    """Measure all cells and print the tables."""
    args = arguments(__doc__)
    cells: list[dict] = []
    for name in args.model_name:
        model, _, pooler = name.partition(":")
        label = f"{Path(model).name}, {pooler or 'mean'}"
        encode = cached(encoder_of(name), name, args.cache)
        for data in load_data(args.data_dir):
            cells += cells_of(label, encode, data)
            print(label, data.name, Counter(c["gain"] > 0 for c in cells), flush=True)
    mapped = [cell for cell in cells if cell["map"] != "auto"]
    record = {"machine": machine(), "cells": cells}
    write_json(args.output, record)
    print(f"\n{len(mapped)} cells, select / report\n", criteria_table(mapped), verdict_table(mapped),
          choice_table(cells), sep="\n\n")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
