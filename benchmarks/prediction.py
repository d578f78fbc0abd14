"""Judge criteria that predict, without labels, whether an adapter helps.

    python benchmarks/prediction.py --model_name MODEL[:POOLER] ... --data_dir SHARED/data --cache FOLDER \
        --output results/prediction.json

A cell is a model, a data set and an adapter that `informin fit` writes: either preset, or auto. Its real gain is the
change of nDCG@10 (CISI, NPL) or of leave-one-out 1-NN accuracy (domains) when the adapter is fitted on the unlabeled
texts. Each criterion predicts the gain from these texts alone, with an adapter that is fitted on other texts:

* halves: rank of a text's second half among others, for its first half
* queries: rank of a text among others, for 5 to 12 of its words
* both: the first plus half of the second (the criterion of `informin fit`)

Prints how often each has the sign of the real gain and chooses the better preset, and how often each verdict was right.
Settings were selected on CISI, NPL, StackOverflow and the training file of CLINC150; Banking77 and the test file of
CLINC150 report. A model folder without config.json is read as the unpacked wordllama package. A folder whose parent is
named e5 gets the prompts of E5.
"""

import argparse
import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.report import machine
from informin.adapters.linear import LinearAdapter
from informin.adapters.prediction import (
    PRESETS,
    UNCLEAR,
    VERDICTS,
    HalvesTest,
    Prediction,
    best_of,
    make_tests,
    prediction_of,
)
from informin.evaluation.collections import Collection, load_collection
from informin.evaluation.geometry import unit
from informin.evaluation.labels import load_labels
from informin.files import write_json
from informin.models.open_model import load_model

MOST_FITTED, MOST_SCORED = 5_000, 2_500  # rows of a domain
Encode = Callable[[list[str]], np.ndarray]
CRITERIA = ("halves", "queries", "both")


@dataclass(frozen=True)
class Data:
    """Unlabeled texts, and a function that scores embeddings by labels or judgments.

    Attributes:
        texts: Texts to fit on.
        scored: Texts that `score` needs.
        score: From the embeddings of `texts` and of `scored` to the scores x 100, one per query or text.
        report: Whether the data report, instead of selecting settings.
        classes: Labels of `scored` as integers, in a domain.
        text_classes: Labels of `texts`.
    """

    name: str
    texts: list[str]
    scored: list[str]
    score: Callable[[np.ndarray, np.ndarray], np.ndarray]
    report: bool
    classes: np.ndarray | None = None
    text_classes: np.ndarray | None = None


def load_data(folder: Path, most_fitted: int | None = MOST_FITTED) -> list[Data]:
    """Load CISI, NPL and the domains, with a random sample of at most `most_fitted` texts of a domain to fit on."""
    found = []
    for name in ("CISI", "NPL"):
        collection = load_collection(folder / "retrieval" / name.lower())

        def ndcg(documents: np.ndarray, queries: np.ndarray, collection: Collection = collection) -> np.ndarray:
            ranking = collection.rank(unit(queries).astype(np.float32), unit(documents).astype(np.float32))
            return collection.scores(ranking)["ndcg_10"]

        found.append(Data(name, collection.documents, collection.queries, ndcg, False))
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
            rest = np.random.default_rng(0).permutation(len(held.sentences))[:MOST_SCORED]
        else:
            fitted, rest, held = order[:-MOST_SCORED], order[-MOST_SCORED:], labeled
        sentences, labels = [held.sentences[i] for i in rest], [held.labels[i] for i in rest]
        names, classes = np.unique(labels, return_inverse=True)

        def nearest_label(_: np.ndarray, x: np.ndarray, classes: np.ndarray = classes) -> np.ndarray:
            cosines = unit(x).astype(np.float32) @ unit(x).astype(np.float32).T
            np.fill_diagonal(cosines, -2)
            return 100.0 * (classes[cosines.argmax(1)] == classes)

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


def sides(encode: Encode, name: str, data: Data) -> tuple[Encode, Encode]:
    """Return the functions for queries and documents. E5 has prompts; labeled texts are all its queries."""
    if Path(name.partition(":")[0]).parent.name != "e5":
        return encode, encode
    search = data.classes is None
    query, document = "query: ", "passage: " if search else "query: "
    return lambda texts: encode([query + t for t in texts]), lambda texts: encode([document + t for t in texts])


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


def values_of(predicted: Prediction) -> list:
    """Return what is saved of a prediction."""
    return [predicted.gain, predicted.error, predicted.verdict]


def held_out_gains(tests: list[HalvesTest], adapter: LinearAdapter) -> dict[str, np.ndarray]:
    """Return the gains (m, 2) of held-out texts by each criterion."""
    found: dict[str, list[np.ndarray]] = {key: [] for key in CRITERIA}
    for both in tests:
        adapter.fit(both.fit_on)
        assert both.queries is not None and both.whole is not None
        halved, queried = replace(both, queries=None), HalvesTest(both.fit_on, both.queries, both.whole)
        for key, test in (("halves", halved), ("queries", queried), ("both", both)):
            found[key].append(test.gains(adapter))
    return {key: np.concatenate(parts) for key, parts in found.items()}


def cells_of(label: str, name: str, encode: Encode, data: Data) -> list[dict]:
    """Measure the adapters that `informin fit` writes on a data set."""
    query, document = sides(encode, name, data)
    vectors, scored = document(data.texts), query(data.scored)
    gains_by = {preset: held_out_gains(make_tests(data.texts, vectors, document, query), LinearAdapter(**options))
                for preset, options in PRESETS.items()}  # fmt: skip
    chosen = {key: best_of({preset: found[key] for preset, found in gains_by.items()}) for key in CRITERIA}
    before, found = data.score(vectors, scored).mean(), []
    for preset, options in PRESETS.items():
        fitted = LinearAdapter(**options).fit(vectors)
        gain = float(data.score(fitted.transform(vectors), fitted.transform(scored)).mean() - before)
        found.append({
            "model": label, "data": data.name, "report": data.report, "map": preset, "before": float(before),
            "gain": gain, "predicted": {key: values_of(prediction_of(gains_by[preset][key])) for key in CRITERIA},
        })  # fmt: skip
    gains = {cell["map"]: cell["gain"] for cell in found}
    presets = {key: preset for key, (preset, _) in chosen.items()}
    found.append({**found[0], "map": "auto", "gain": gains[presets["both"]], "chosen": presets,
                  "by": {key: gains[preset] for key, preset in presets.items()},
                  "predicted": {key: values_of(one) for key, (_, one) in chosen.items()}})  # fmt: skip
    return found


def criteria_table(cells: list[dict]) -> str:
    """Return how well each criterion predicts the gains and chooses the preset, on select / report data."""
    lines = ["| criterion | sign right | clear verdicts right | better preset chosen | largest loss by the choice |",
             "| --- | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for key in CRITERIA:
        columns = []
        for report in (False, True):
            part = [c for c in cells if c["report"] == report and c["map"] != "auto"]
            auto = [c for c in cells if c["report"] == report and c["map"] == "auto"]
            best = {(c["model"], c["data"]): max(p["gain"] for p in part if (p["model"], p["data"]) ==
                    (c["model"], c["data"])) for c in auto}  # fmt: skip
            right = [(c["predicted"][key][0] > 0) == (c["gain"] > 0) for c in part]
            clear = [ok for ok, c in zip(right, part) if c["predicted"][key][2] != UNCLEAR]
            chose = [c["by"][key] == best[c["model"], c["data"]] for c in auto]
            least = min(c["by"][key] for c in auto)
            columns.append((f"{sum(right)} of {len(part)}", f"{sum(clear)} of {len(clear)}",
                            f"{sum(chose)} of {len(chose)}", f"{least:+.2f}"))  # fmt: skip
        lines.append(f"| {key} | " + " | ".join(f"{a} / {b}" for a, b in zip(*columns)) + " |")
    return "\n".join(lines)


def verdict_table(cells: list[dict], adapters: tuple[str, ...]) -> str:
    """Return how often the score rose after each verdict of `informin fit`, on select / report data."""
    lines = ["| verdict | given | score rose | mean gain | smallest gain |", "| --- | ---: | ---: | ---: | ---: |"]
    for verdict in VERDICTS:
        columns = []
        for report in (False, True):
            gains = [c["gain"] for c in cells if c["report"] == report and c["map"] in adapters
                     and c["predicted"]["both"][2] == verdict]  # fmt: skip
            ends = (f"{np.mean(gains):+.2f}", f"{min(gains):+.2f}") if gains else ("-", "-")
            columns.append((str(len(gains)), str(sum(g > 0 for g in gains)), *ends))
        lines.append(f"| {verdict} | " + " | ".join(f"{a} / {b}" for a, b in zip(*columns)) + " |")
    return "\n".join(lines)


def choice_table(cells: list[dict]) -> str:
    """Return the gains of both presets and of --preset auto."""
    lines = [
        "| model | data | before | documents | short_texts | auto | verdict |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    gains = {(c["model"], c["data"], c["map"]): c["gain"] for c in cells}
    for c in cells:
        if c["map"] == "auto":
            both = [gains[c["model"], c["data"], name] for name in ("documents", "short_texts")]
            lines.append(f"| {c['model']} | {c['data']} | {c['before']:.2f} | {both[0]:+.2f} | {both[1]:+.2f} | "
                         f"{c['gain']:+.2f}, {c['chosen']['both']} | {c['predicted']['both'][2]} |")  # fmt: skip
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
        label = f"{label_of(model)}, {pooler or 'mean'}"
        encode = cached(encoder_of(name), name, args.cache)
        for data in load_data(args.data_dir):
            cells += cells_of(label, name, encode, data)
            print(label, data.name, cells[-1]["gain"], flush=True)
    write_json(args.output, {"machine": machine(), "cells": cells})
    print(f"\n{len(cells)} cells, select / report\n", criteria_table(cells), "auto:", verdict_table(cells, ("auto",)),
          "both presets:", verdict_table(cells, tuple(PRESETS)), choice_table(cells), sep="\n\n")  # fmt: skip
    return 0


def label_of(model: str) -> str:
    """Return the name of a model: that of its folder, or of the one above if it is named model."""
    path = Path(model)
    return path.parent.name if path.name == "model" else path.name


if __name__ == "__main__":
    sys.exit(main())
