"""Kinds of files to fuzz: an example of each, and the code that reads it."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from safetensors.numpy import save_file

from informin.cli import study as study_command
from informin.cli import train
from informin.evaluation.collections import Collection, load_collection, load_retrieval_pairs
from informin.evaluation.labels import load_labels
from informin.evaluation.measures import KINDS
from informin.evaluation.pairs import load_pairs
from informin.evaluation.result_tables import tables_text
from informin.evaluation.results import add_task, load_all_results, new_results
from informin.evaluation.retrieval_table import bm25_search
from informin.files import write_json
from informin.jobs.fit import fit
from informin.models.checkpoint import Checkpoint
from informin.models.native_loading import load_tokenizer, load_trainable
from informin.models.open_model import load_model
from informin.publishing.card import write_card
from informin.report.page import page
from informin.studies.plan import check_options, read_study
from informin.studies.runner import Progress
from informin.studies.runs import run_record, runs_of
from informin.studies.summary import load_study
from informin.textfiles import read_sentences
from informin.training.checkpoints import checkpoint_to_resume, complete_checkpoints
from informin.training.command_line import parse
from informin.training.record import provenance
from informin.training.sentences import load_development, load_sentences
from tests.conftest import FOUR_STEPS, make_sentences, save_bert, save_pairs
from tests.report.helpers import comparison_record, fit_record, snapshot
from tools.fuzz_hostile import HOSTILE, hostile_kinds
from tools.fuzz_mutations import JSON, JSON_LINES, NPY, SAFETENSORS, TSV, YAML, Format
from trainer_informin import InforMinTrainer

RUN = dict(model_name="bert", train_file="s.txt", eval_pairs="pairs.tsv", output_dir="run") | FOUR_STEPS
IDENTITY = dict(
    pooler="cls", normalized=False, prompt=None, whitening=None, max_length=32, precision="fp32", split="test"
)


NO_PLOTS = patch.object(study_command.run_plots, "seeds", return_value=None)  # plots take longer than everything else


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        read: Function that is called in a copy of the folder, and raises the errors that a user would see.
        folder: Folder to copy.
        file: Path of the file in this folder.
        form: Format of the file; None to mutate only bytes.
        sealed: Rewrite the checkpoint's manifest after a mutation, since otherwise every mutation has the same error.
        together: Number of cases per process; 1 if a case could affect the next.
    """

    read: Callable[[], object]
    folder: str
    file: str
    form: Format | None = JSON
    sealed: bool = False
    together: int = 1


@contextmanager
def chdir(folder: str | Path) -> Iterator[None]:
    """Work in another folder. Python 3.11 has this."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def build(base: Path) -> dict[str, Kind]:
    """Create a file of each kind in the base folder. Return the kinds by name."""
    with chdir(base), open(os.devnull, "w") as silence, redirect_stdout(silence), redirect_stderr(silence):
        save_bert(Path("bert"))
        Path("s.txt").write_text("\n".join(make_sentences(64)) + "\n")
        save_pairs(Path("pairs.tsv"))
        _train()
        report, first = _study()
        _data_files()
        shutil.copytree("model", "warm/model")
        _vector_files()
        shutil.copytree("vectors", "warm/vectors")
        with chdir("warm"):  # run lazy imports here, not in the process of each case
            _embed()
            _card()
            _fit("vectors/x.npy")
            _resume(_trainer(".."))
        _plan()
        found = hostile_kinds()
        trainer = _trainer(".")  # created last, because creating options resets accelerate
    runs = _of_runs(lambda: _resume(trainer))
    hostile = {name: Kind(*what, HOSTILE) for name, what in found.items()}
    inputs = {**_of_data(), **_of_collections(), **_of_vectors()}
    return {**_of_models(), **hostile, **runs, **_of_studies(report, first), **inputs}


def _of_models() -> dict[str, Kind]:
    files = {
        "config.json": "config.json",
        "modules.json": "modules.json",
        "pooling": "1_Pooling/config.json",
        "sentence_bert_config.json": "sentence_bert_config.json",
        "prompts": "config_sentence_transformers.json",
        "tokenizer.json": "tokenizer.json",
        "tokenizer_config.json": "tokenizer_config.json",
    }
    kinds = {name: Kind(_embed, "model", file) for name, file in files.items()}
    return kinds | {
        "safetensors header": Kind(_embed, "model", "model.safetensors", SAFETENSORS),
        "training.json, card": Kind(_card, "model", "training.json", together=25),
        "config.json, card": Kind(_card, "model", "config.json", together=25),
        "results, card": Kind(_card, "model", "results/model.json", together=25),
    }


def _of_runs(resume: Callable[[], object]) -> dict[str, Kind]:
    return {
        "trainer_state.json": Kind(resume, "run", "checkpoint-2/trainer_state.json", sealed=True),
        "training.json, resume": Kind(resume, "run", "checkpoint-2/training.json", sealed=True),
        "manifest.json": Kind(resume, "run", "checkpoint-2/manifest.json"),
    }


def _of_studies(report: Callable[[], object], first: Path) -> dict[str, Kind]:
    def redraw() -> None:
        with NO_PLOTS:
            study_command.show(*load_study("studies/study/summary.json"), Path("studies"))

    return {
        "run.json": Kind(report, "studies", str(first / "run.json"), together=25),
        "summary.json": Kind(redraw, "studies", "study/summary.json", together=25),
        "study YAML": Kind(_plan, "studies", "study.yaml", YAML, together=25),
        "options YAML": Kind(lambda: parse(["--config", "studies/o.yaml"]), "studies", "o.yaml", YAML, together=25),
    }


def _of_data() -> dict[str, Kind]:
    def read(load: Callable[[str], object], name: str, form: Format | None) -> Kind:
        return Kind(lambda: load(f"data/{name}"), "data", name, form, together=100)

    def sentences(name: str) -> list[str]:
        return list(read_sentences(Path(name), None))

    def table(name: str) -> None:
        rows = load_all_results([name])
        for form in ("text", "markdown", "latex", "json"):
            tables_text(rows, [], False, form)

    return {
        "labels, JSONL": read(lambda path: load_labels(path, "labels"), "labels.jsonl", JSON_LINES),
        "labels, TSV": read(lambda path: load_labels(path, "labels"), "labels.tsv", TSV),
        "pairs, JSONL": read(load_pairs, "pairs.jsonl", JSON_LINES),
        "pairs, TSV": read(load_pairs, "pairs.tsv", TSV),
        "retrieval, JSONL": read(load_retrieval_pairs, "retrieval.jsonl", JSON_LINES),
        "retrieval, TSV": read(load_retrieval_pairs, "retrieval.tsv", TSV),
        "sentences, JSONL": read(sentences, "sentences.jsonl", JSON_LINES),
        "sentences, TSV": read(sentences, "sentences.tsv", TSV),
        "sentences, text": read(sentences, "sentences.txt", None),
        "sentences, Parquet": read(sentences, "sentences.parquet", None),
        "results, tables": read(table, "results.json", JSON),
        **_of_reports(),
    }


def _of_reports() -> dict[str, Kind]:
    """Return the records that `informin report` reads. A page contains no markup from them."""

    def read(folder: str, name: str) -> Kind:
        return Kind(lambda: require("<script" not in page(folder)), folder, name, together=25)

    return {
        "report.json, fit": read("reported", "report.json"),
        "report.json, training": read("trained", "report.json"),
        "training.json, report": read("trained", "training.json"),
        "compare.json": read("compared", "compare.json"),
        "summary.json, report": read("studied", "summary.json"),
    }


def _of_collections() -> dict[str, Kind]:
    def kind(layout: str, file: str, form: Format) -> Kind:
        return Kind(lambda: _search(load_collection(layout)), layout, file, form, together=100)

    beir = {"corpus.jsonl": JSON_LINES, "queries.jsonl": JSON_LINES, "qrels/test.tsv": TSV}
    tables = dict.fromkeys(("corpus.tsv", "queries.tsv", "qrels.tsv"), TSV)
    files = [("beir", *file) for file in beir.items()] + [("tables", *file) for file in tables.items()]
    return {f"collection, {layout}, {file}": kind(layout, file, form) for layout, file, form in files}


def _search(collection: Collection) -> None:
    """Rank and score a collection by the number of each letter in its texts."""
    ranking = collection.search(lambda texts: np.array([[text.count(x) for x in "aeiou"] for text in texts]))
    for scores in (collection.scores(ranking), collection.scores(bm25_search(collection)[0])):
        require(
            all(np.isfinite(values).all() and ((0 <= values) & (values <= 100)).all() for values in scores.values())
        )


def _of_vectors() -> dict[str, Kind]:
    def fitted(name: str, form: Format | None) -> Kind:
        return Kind(lambda: _fit(f"vectors/{name}"), "vectors", name, form, together=25)

    return {
        "vectors, npy": fitted("x.npy", NPY),
        "vectors, Parquet": fitted("x.parquet", None),
        "vectors, safetensors": fitted("x.safetensors", SAFETENSORS),
    }


def _fit(name: str) -> None:
    """Read vectors and fit an adapter on them, as `informin fit` does."""
    fit(embeddings=name).save("fitted")
    require(np.isfinite(np.load("fitted/documents.npy")).all())


def _vector_files() -> None:
    """Create `vectors`: embeddings in each format."""
    Path("vectors").mkdir()
    vectors = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    np.save("vectors/x.npy", vectors)
    pq.write_table(pa.table({"vector": list(vectors)}), "vectors/x.parquet")
    save_file({"vectors": vectors}, "vectors/x.safetensors")


def _embed() -> None:
    """Load a folder as evaluation and training do."""
    for embeddings in load_model("model", device="cpu")(make_sentences(4)).values():
        require(embeddings.shape[0] == 4 and np.isfinite(embeddings).all())
    checkpoint = Checkpoint("model")
    load_tokenizer(checkpoint)
    load_trainable(checkpoint, {"pooling": "auto", "projection_head": "mlp", "lm_head": False})


def _card() -> None:
    write_card("model")
    require(Path("model/README.md").read_text().count("\n") > 20)


def _plan() -> None:
    check_options(read_study("studies/study.yaml"))


def require(fits: bool) -> None:
    """Raise an error if the result is wrong."""
    if not fits:
        raise RuntimeError("wrong result without an error")


def _train() -> None:
    """Train for four steps. `model` is the export, and `run` the output folder after two steps."""
    require(train.main([f"--{name}={value}" for name, value in RUN.items()]) == 0)
    shutil.copytree("run", "model", ignore=shutil.ignore_patterns("checkpoint-*", "runs", "README.md"))
    Path("model/results").mkdir()
    write_json("model/results/model.json", _results())
    for path in Path("run").iterdir():
        if path.name != "checkpoint-2":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree("run", "warm/run")


def _trainer(data_folder: str) -> InforMinTrainer:
    with chdir(data_folder):
        files, data, card, args = parse([f"--{name}={value}" for name, value in RUN.items()])
        known = provenance(files, data, card)
        return InforMinTrainer(files, args, load_sentences(data, args.seed), load_development(data), provenance=known)


def _resume(trainer: InforMinTrainer) -> None:
    trainer.args.output_dir = "run"
    checkpoint = checkpoint_to_resume("run", "last", trainer.args.model_settings)
    trainer.train(resume_from_checkpoint=str(checkpoint))
    require([path.name for path in complete_checkpoints("run")] == ["checkpoint-2", "checkpoint-4"])


def _results() -> dict:
    """Return results of `informin eval` with two tasks and one sample of each kind."""
    results = new_results("model", IDENTITY | {"weights_sha256": "0" * 64, "split": "test"}, {})
    entry = {"score": 70.0, "n": 24, "truncated": 0, "seconds": {"encode": 1.0, "score": 1.0}, "data": {"f": "0" * 64}}
    parts = {"mean": 70.0, "wmean": 70.0, "pearson": 70.0, "subsets": {}}
    add_task(results, "STS-B", entry | parts)
    add_task(results, "MR", entry | {"dev": 70.0})
    for kind, measures in KINDS.items():
        if kind != "pairs":
            sample = {"kind": kind, "measures": dict.fromkeys(measures, 70.0), "classes": 2, "documents": 24}
            add_task(results, f"{kind}.tsv", entry | sample)
    return results


def _study() -> tuple[Callable[[], None], Path]:
    """Create `studies` with finished runs of two settings. Return a function that reports on it, and a run's folder."""
    Path("studies").mkdir()
    base = {"model_name": str(Path("bert").absolute()), "use_cpu": True, "bf16": False, "max_steps": 4}
    recipes = {"cold": {"temperature": 0.05}, "warm": {"temperature": 0.1, "mlm_weight": 0.1}}
    told = dict(title="Small", base=base, recipes=recipes, grid={"learning_rate": [1e-3, 1e-4]}, baseline="cold")
    Path("studies/study.yaml").write_text(yaml.safe_dump(told | dict(seeds=[1, 2], tasks=["STS-B"]), sort_keys=False))
    options = base | RUN | {"model_name": base["model_name"], "objective": "informin", "mlm_weight": 0.1}
    Path("studies/o.yaml").write_text(yaml.safe_dump(options, sort_keys=False))
    study = read_study("studies/study.yaml")
    runs = runs_of(study, "studies")
    for run in runs:
        shutil.copytree("model", run.model)
        results = new_results("model", IDENTITY | {"weights_sha256": "0" * 64}, {})
        counts = {"n": 9, "truncated": 0, "data": {}, "seconds": {"encode": 1.0, "score": 1.0}}
        results["tasks"]["STS-B"] = {"score": 70.0 + run.seed, **counts}
        write_json(run.results, results)
        write_json(run.folder / "run.json", run_record(run))
        shutil.rmtree(run.model)

    def report() -> None:
        Progress(study, runs, None, 1)._rest()
        with NO_PLOTS:
            study_command.report(study, runs, "studies")

    report()
    return report, runs[0].folder.relative_to("studies")


def _data_files() -> None:
    """Create `data`: texts, labels, pairs and queries, as JSON Lines and as tables, and results."""
    for name in ("reported", "trained", "compared", "studied"):
        Path(name).mkdir()
    write_json("reported/report.json", fit_record(snapshot()))
    for name in ("report.json", "training.json"):
        shutil.copy(Path("model", name), "trained")
    write_json("compared/compare.json", comparison_record())
    shutil.copy("studies/study/summary.json", "studied")
    Path("data").mkdir()
    texts, others = make_sentences(24), make_sentences(24, 1)
    tables = {
        "sentences": [{"id": i, "text": text} for i, text in enumerate(texts)],
        "labels": [{"text": text, "label": "ab"[i % 2]} for i, text in enumerate(texts)],
        "pairs": [{"sentence1": a, "sentence2": b, "score": i % 6} for i, (a, b) in enumerate(zip(texts, others))],
        "retrieval": [
            {"query": a, "document": b, "negative": texts[-1 - i], "relevance": 1 + i % 3}
            for i, (a, b) in enumerate(zip(texts, others))
        ],
    }
    for name, rows in tables.items():
        Path(f"data/{name}.jsonl").write_bytes(JSON_LINES.spell(rows, b""))
        cells = [list(rows[0]), *(list(row.values()) for row in rows)]
        Path(f"data/{name}.tsv").write_bytes(TSV.spell(cells, b""))
    Path("data/sentences.txt").write_text("\n".join(texts) + "\n")
    pq.write_table(pa.table({"text": texts}), "data/sentences.parquet")
    write_json("data/results.json", _results())
    _collections(texts, others)


def _collections(documents: list[str], queries: list[str]) -> None:
    """Create a test collection in both layouts: `beir` and `tables`."""
    Path("beir/qrels").mkdir(parents=True)
    Path("tables").mkdir()
    for name, texts in (("corpus", documents), ("queries", queries[:8])):
        rows = [{"_id": f"{name[0]}{i}", "title": "", "text": text} for i, text in enumerate(texts)]
        Path(f"beir/{name}.jsonl").write_bytes(JSON_LINES.spell(rows, b""))
        cells = [["id", "text"], *([row["_id"], row["text"]] for row in rows)]
        Path(f"tables/{name}.tsv").write_bytes(TSV.spell(cells, b""))
    judged = [[f"q{i % 8}", f"c{i}", i % 3] for i in range(24)]
    Path("beir/qrels/test.tsv").write_bytes(TSV.spell([["query-id", "corpus-id", "score"], *judged], b""))
    Path("tables/qrels.tsv").write_bytes(TSV.spell([["query", "document", "relevance"], *judged], b""))
