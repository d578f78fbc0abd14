"""Measure when training beats the closed-form adapter: quality against CPU seconds, on documents and on short texts.

    python benchmarks/long_texts.py --model_name MODEL --data_dir SHARED/data --output FOLDER [--data CISI ...]
        [--methods matrix adapt ...] [--seeds 1 2 3]
    python benchmarks/long_texts.py --output FOLDER --table results/long-texts.json [--figure FILE.png]

Every method sees only the unlabeled texts, and is scored on other texts: nDCG@10 on CISI, 1-NN accuracy and V-measure
in domains, STS-B dev in all. The cost is what the process and its children use of the CPU (user and system), from the
texts to the adapted model, without scoring. It includes embedding the texts for a matrix or a guide.

A trained model is also scored with a matrix fitted on its own embeddings, as the method "NAME, then matrix".
Each cell (data, method, seed) is a file in FOLDER; finished cells are skipped. The second command collects the cells.
Domains are samples of 4,000 texts to adapt to and 2,000 to score. On texts of SentEval, and on the headlines of its STS
tests that are not in STS-B dev, only STS-B dev is scored. The matrix is the LinearAdapter with the recipe documents on
CISI, and short_texts elsewhere: those that `informin fit` chooses (benchmarks/search.py).
"""

import argparse
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import adaptation_peers, long_texts_report
from benchmarks.adaptation_peers import PEERS, Peer
from benchmarks.maps import MAPS
from benchmarks.prediction import Data, Encode, load_data
from benchmarks.report import machine
from informin.adapters.linear import LinearAdapter
from informin.adapters.prediction import PRESETS
from informin.evaluation.collections import Collection, load_collection
from informin.evaluation.geometry import unit
from informin.evaluation.labels import clustering, neighbor_accuracy
from informin.evaluation.pairs import GradedPairs, score_pairs
from informin.evaluation.senteval import load_stsb_dev, load_task
from informin.files import write_json
from informin.models.open_model import load_model
from informin.publishing.adapted import save_adapted
from trainer_informin import InforMinTrainer, InforMinTrainingArguments

BEFORE, MATRIX = "before", "matrix"
CLOSED = {"whitening": "whitening (Su et al.)", "all-but-the-top": "all-but-the-top"}
LONG = {"max_steps": 45, "per_device_train_batch_size": 32, "max_seq_length": 128}  # for documents
SHORT = {"max_steps": 80, "per_device_train_batch_size": 64, "max_seq_length": 32}
# Texts of SentEval on which only STS-B dev is scored.
HEADLINES = "headlines"
GENERAL = ("TREC", "MRPC", "SUBJ", "CR", "MPQA", "MR", HEADLINES)
MOST_FITTED, MOST_SCORED = 4_000, 2_000  # texts of a domain


@dataclass(frozen=True)
class Trained:
    """A method that trains with this project.

    Attributes:
        options: Training arguments, in addition to the budget.
        adapted_guide: Whether the guide is the encoder with a matrix.
    """

    options: dict = field(default_factory=dict)
    adapted_guide: bool = False


CROPS = {"view": "crop", "crop_words": [5, 20]}
DOCUMENTS = {"recipe": "adapt", "distillation_weight": 0, "replay_weight": 40}  # selected with seed 11
KEEP = {"objective": "guided", "replay_weight": 40, "learning_rate": 5e-5, "eval_strategy": "no"}
TRAINED = {
    "adapt": Trained({"recipe": "adapt"}),
    "adapt, distillation_weight 0": Trained({"recipe": "adapt", "distillation_weight": 0}),
    "adapt, replay_weight 40": Trained(DOCUMENTS),
    "adapt, guide with matrix": Trained(DOCUMENTS, adapted_guide=True),
    "adapt, crops, guide with matrix": Trained(DOCUMENTS | CROPS, adapted_guide=True),
    "crops to documents": Trained(KEEP | CROPS | {"distillation_weight": 10}),
}


def two_crops(sentences: list[str], source) -> dict[str, list[str]]:
    """Return two independent crops of each text, of 5 to 50% of its words (Izacard et al., 2022, section 3.1)."""

    def crop(text: str) -> str:
        words = text.split()
        length = max(1, round(source.uniform(0.05, 0.5) * len(words)))
        start = source.randint(0, len(words) - length)
        return " ".join(words[start : start + length])

    return {"anchor": [crop(text) for text in sentences], "positive": [crop(text) for text in sentences]}


OTHERS = {name: PEERS[name] for name in ("tsdae", "simcse")} | {
    "contriever": Peer("independent crops (Contriever)", 3e-5, two_crops, PEERS["simcse"].loss, "no_duplicates")
}
METHODS = (BEFORE, MATRIX, *CLOSED, *TRAINED, *OTHERS)


def encoder_of(name: str) -> Encode:
    """Return the function that embeds texts with a model, in bf16 and at its own maximum length."""
    encoder = load_model(name, bf16=True)
    return lambda texts: encoder(texts)[encoder.poolers[0]]


@contextmanager
def cpu_seconds() -> Iterator[list[float]]:
    """Yield a list that receives the CPU seconds that the block used, in this process and in ended children."""

    def used() -> float:
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    spent: list[float] = []
    start = used()
    yield spent
    spent.append(used() - start)


class Bench:
    """One data set: trains or fits, scores, and saves cells.

    Args:
        args: Options of the command line.
        data: Unlabeled texts to adapt to, and labeled texts to score on. CISI has queries instead of `classes`.
        collection: CISI; None for a domain.
        dev: STS-B dev.
    """

    def __init__(self, args: argparse.Namespace, data: Data, collection: Collection | None, dev: GradedPairs):
        self.args, self.data, self.collection, self.dev = args, data, collection, dev
        self.folder = Path(args.output, data.name)
        self.budget = LONG if collection else SHORT

    def cell(self, method: str, seed: int) -> Path:
        return self.folder / f"{method}-seed{seed}.json"

    def run(self, method: str, seed: int) -> None:
        """Run a method and save its scores, unless they are saved already. Closed-form methods have seed 0."""
        closed = method in (BEFORE, MATRIX, *CLOSED)
        seed = 0 if closed else seed
        path = self.cell(method, seed)
        if path.exists():
            return
        found = self._closed(method) if closed else self._trained(method, seed)
        write_json(path, found | {"data": self.data.name, "method": method, "seed": seed, "machine": machine()})
        parts = (found, found["then"]) if "then" in found else (found,)
        shown = [{name: round(value, 2) for name, value in part["scores"].items()} for part in parts]
        print(path, *shown, f"{found['cpu']:.0f} s", flush=True)

    def _closed(self, method: str) -> dict:
        """Score the encoder before training, or with a map."""
        arrays = self._before()
        texts, rows = arrays["texts"], dict(zip(self.dev.texts(), arrays["dev"]))
        if method == BEFORE:
            scores, per_query = self._scores(lambda x: x, texts, arrays["scored"], rows)
            return {"scores": scores, "per_query": per_query, "cpu": 0.0}
        with cpu_seconds() as spent:
            fitted = (self._matrix() if method == MATRIX else MAPS[CLOSED[method]]()).fit(texts)
        scores, per_query = self._scores(fitted.transform, texts, arrays["scored"], rows)
        return {"scores": scores, "per_query": per_query, "cpu": spent[0] + float(arrays["cpu"])}

    def _matrix(self) -> LinearAdapter:
        return LinearAdapter(**PRESETS["documents" if self.collection else "short_texts"])

    def _before(self) -> dict[str, np.ndarray]:
        """Return the embeddings of the encoder before training, and what those of the texts cost; saved once."""
        kept = self.folder / "before.npz"
        if not kept.exists():
            encode = encoder_of(self.args.model_name)
            with cpu_seconds() as spent:
                texts = encode(self.data.texts)
            self.folder.mkdir(parents=True, exist_ok=True)
            np.savez(kept, texts=texts, scored=encode(self.data.scored), dev=encode(self.dev.texts()), cpu=spent[0])
        return dict(np.load(kept))

    def _trained(self, method: str, seed: int) -> dict:
        """Train, and score the model with and without a matrix fitted on its embeddings."""
        with tempfile.TemporaryDirectory() as temporary:
            folder, options, before = Path(temporary), {}, self._before()
            with cpu_seconds() as spent:
                if method in OTHERS:
                    self._train_other(OTHERS[method], seed, folder)
                else:
                    options = self._train(TRAINED[method], seed, folder, before["texts"])
            if method in TRAINED and TRAINED[method].adapted_guide:
                spent[0] += float(before["cpu"])  # the matrix of the guide
            encode = encoder_of(str(folder / "model"))
            scored, rows = encode(self.data.scored), dict(zip(self.dev.texts(), encode(self.dev.texts())))
            with cpu_seconds() as embedded:
                texts = encode(self.data.texts)
        scores, per_query = self._scores(lambda x: x, texts, scored, rows)
        with cpu_seconds() as fitting:
            matrix = self._matrix().fit(texts)
        then, then_per_query = self._scores(matrix.transform, texts, scored, rows)
        return {
            "scores": scores, "per_query": per_query, "cpu": spent[0], "options": options,
            "then": {"scores": then, "per_query": then_per_query, "cpu": spent[0] + embedded[0] + fitting[0]},
        }  # fmt: skip

    def _train(self, trained: Trained, seed: int, folder: Path, texts: np.ndarray) -> dict:
        """Train with this project into folder/model, and return the options; `texts` are the embeddings before."""
        budget = {name: value for name, value in self.budget.items() if self.collection or name != "max_seq_length"}
        options, guide = budget | trained.options, {}
        if trained.adapted_guide:
            save_adapted(
                load_model(self.args.model_name), self._matrix().fit(texts), folder / "adapted", texts=len(texts)
            )
            guide = {"guide_model": str(folder / "adapted")}
        args = InforMinTrainingArguments(
            str(folder / "model"), seed=seed, warmup_steps=0, measure_drift=False, report_to="none", disable_tqdm=True,
            guide_cache=str(folder / "guide"), **options, **guide,
        )  # fmt: skip
        trainer = InforMinTrainer(self.args.model_name, args, self.data.texts)
        trainer.train()
        trainer.export(report=False)
        return options

    def _train_other(self, peer: Peer, seed: int, folder: Path) -> None:
        budget = self.budget
        args = argparse.Namespace(
            model_name=self.args.model_name, max_steps=budget["max_steps"], learning_rate=None,
            batch_size=budget["per_device_train_batch_size"],
        )  # fmt: skip
        chunks = 4 if peer is PEERS["tsdae"] else 1  # its decoder predicts every token: gigabytes at once
        adaptation_peers.train(peer, args, self.data.texts, seed, folder, budget["max_seq_length"], chunks)

    def _scores(
        self, transform: Callable[[np.ndarray], np.ndarray], texts: np.ndarray, scored: np.ndarray, rows: dict
    ) -> tuple[dict[str, float], list[float] | None]:
        """Return the scores through a map and, for CISI, nDCG@10 by query."""
        found, per_query = {}, None
        if self.collection:
            queries, documents = (unit(transform(x)).astype(np.float32) for x in (scored, texts))
            by_query = self.collection.scores(self.collection.rank(queries, documents))
            found |= {"nDCG@10": by_query["ndcg_10"].mean(), "recall@100": by_query["recall_100"].mean()}
            per_query = by_query["ndcg_10"].tolist()
        elif self.data.classes is not None:
            x = unit(transform(scored)).astype(np.float32)
            found["1-NN"] = neighbor_accuracy(x, self.data.classes)[0]
            with threadpool_limits(1):
                found["V-measure"] = np.mean(clustering(x, self.data.classes, len(set(self.data.classes))))

        def general(sentences) -> np.ndarray:
            return transform(np.stack([rows[sentence] for sentence in sentences]))

        found["STS-B dev"] = score_pairs(general, self.dev)["spearman"]
        return {name: float(value) for name, value in found.items()}, per_query


def sample(data: Data) -> Data:
    """Return a random sample of a domain, for which scoring is cheap."""
    drawn = [np.random.default_rng(0).permutation(len(texts)) for texts in (data.texts, data.scored)]
    fitted, scored = drawn[0][:MOST_FITTED], drawn[1][:MOST_SCORED]
    classes = None if data.classes is None else data.classes[scored]
    texts, held_out = [data.texts[i] for i in fitted], [data.scored[i] for i in scored]
    return replace(data, texts=texts, scored=held_out, classes=classes)


def headlines(senteval: Path, dev: GradedPairs) -> list[str]:
    """Return the distinct news titles of the STS tests that are not in STS-B dev."""
    files = sorted(senteval.glob("STS/STS*/STS.input.headlines.txt"))
    rows = [line.split("\t")[:2] for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    known = set(dev.texts())
    return [text for text in dict.fromkeys(text for row in rows for text in row) if text and text not in known]


def benches(args: argparse.Namespace) -> list[Bench]:
    """Return the data sets of the command line."""
    dev = load_stsb_dev(args.data_dir / "senteval")
    cisi = load_collection(args.data_dir / "retrieval" / "cisi")
    known = {data.name: sample(data) for data in load_data(args.data_dir) if data.classes is not None}
    known["CISI"] = Data("CISI", cisi.documents, cisi.queries, lambda x, y: 0.0, False)
    for name in set(GENERAL) & set(args.data):
        senteval = args.data_dir / "senteval"
        texts = headlines(senteval, dev) if name == HEADLINES else load_task(senteval, name).sentences()
        known[name] = sample(Data(name, texts, [], lambda x, y: 0.0, False))
    return [Bench(args, known[name], cisi if name == "CISI" else None, dev) for name in args.data]


def main() -> int:
    """Run the cells that are not finished, or collect them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name")
    parser.add_argument("--data_dir", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--data", nargs="+", default=["CISI"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--table", type=Path, help="Collect the cells in this JSON file and print the tables.")
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    if args.table:
        long_texts_report.collect(args.output, args.table, args.figure)
        return 0
    for seed in args.seeds:
        for bench in benches(args):
            for method in args.methods:
                bench.run(method, seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
