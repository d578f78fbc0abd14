"""Mutated files: each ends in correct work or in one line that says what is wrong.

    python -m tools.fuzz_files [--mutations 500] [--seed 1] [--only KIND ...]

It prints how the mutations of each kind of file ended, and the first traceback of each failure. A case works on a copy
of a folder, in a process of its own with limits of time and memory.
"""

import argparse
import gc
import json
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from informin.cli import study as run_study
from informin.cli import train as run_unsup
from informin.encoders.encoder import load_encoder
from informin.encoders.loading import load_config, load_model, load_tokenizer
from informin.errors import InforMinError
from informin.evaluation.labels import load_labels
from informin.evaluation.pairs import load_pairs
from informin.evaluation.results import new_results
from informin.evaluation.retrieval import load_retrieval_pairs
from informin.files import write_json, write_manifest
from informin.publishing.card import write_card
from informin.studies.plan import check_options, read_study
from informin.studies.runner import Progress
from informin.studies.runs import run_record, runs_of
from informin.training.checkpoints import checkpoint_to_resume, complete_checkpoints
from informin.training.command_line import parse
from informin.training.record import provenance
from informin.training.sentences import load_development, load_sentences
from tests.conftest import FOUR_STEPS, make_sentences, save_bert, save_pairs
from trainer_informin import InforMinTrainer

SECONDS = 20  # of a case; the machine may be busy
BYTES = 16 * 2**30  # of address space; torch takes several
CORRECT, REFUSED, TRACEBACK, HANG, CRASH, LEFT = OUTCOMES = (
    *("correct", "one-line error", "traceback", "hang", "crash", "leftover files"),
)
# What a value is replaced by; a text between two at signs is replaced in the file's text, by what JSON cannot be told.
DEEP, DIGITS = "@deep@", "@digits@"
SPELLED = {f'"{DEEP}"': "[" * 100_000 + "]" * 100_000, f'"{DIGITS}"': "9" * 5_000}
VALUES = [
    *(None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, 10**9, 10**300, 0.5, -0.5, 1e308, float("nan"), float("inf")),
    *("", "x", "0", "../x", "/etc/passwd", "a\nb", "\0", "\ud800", "é" * 100, "x" * 200_000, "true", "null", "cls"),
    *([], [[]], [1], ["x"], [None], {}, {"x": 1}, {"": {}}, DEEP, DIGITS),
]


@dataclass
class Kind:
    """A kind of file: where it is in the base folder, what reads it, and how its text and its tree become each other.

    `read` is called in a copy of the base folder, and raises what a user would see.
    """

    file: str
    read: Callable[[], object]
    folder: str  # what is copied: a folder of the base
    parse: Callable[[bytes], object] = json.loads
    spell: Callable[[object, bytes], bytes] = lambda tree, before: _spelled(json.dumps(tree))
    sealed: bool = False  # its checkpoint's manifest is written again, as nothing else would be seen


def _spelled(text: str) -> bytes:
    for name, value in SPELLED.items():
        text = text.replace(name, value)
    return text.encode(errors="surrogatepass")


def mutated(data: bytes, kind: Kind, source: random.Random) -> bytes:
    """One to three changes of a file, of its bytes or of its values."""
    for _ in range(source.choice((1, 1, 1, 2, 3))):
        try:
            change = source.choice((_values, _values, _values, _bytes))
            data = change(data, kind, source)
        except (ValueError, yaml.YAMLError, RecursionError, struct.error, IndexError):  # an earlier change spoiled it
            data = _bytes(data, kind, source)
    return data


def _bytes(data: bytes, kind: Kind, source: random.Random) -> bytes:
    head = len(data) if kind.spell is not _spell_weights else struct.unpack("<Q", data[:8].ljust(8, b"\0"))[0] + 8
    at = source.randrange(min(len(data), max(head, 1)) or 1)
    end = at + source.randint(1, 40)
    return source.choice(
        (
            lambda: data[:at] + bytes([data[at] ^ 1 << source.randrange(8)]) + data[at + 1 :],
            lambda: data[:at],
            lambda: data[:at] + b"\xff\xfe\x80" + data[at:],
            lambda: data[:at] + data[end:],
            lambda: data[:at] + data[at:end] * 2 + data[end:],
            lambda: data[:at] + source.randbytes(end - at) + data[end:],
        )
    )()


def _values(data: bytes, kind: Kind, source: random.Random) -> bytes:
    tree = kind.parse(data)
    places = list(_places(tree))
    parent, key = source.choice(places)
    action = source.choice(("replace", "replace", "replace", "delete", "rename", "copy"))
    if action == "replace":
        parent[key] = source.choice(VALUES)
    elif action == "delete":
        del parent[key]
    elif action == "rename" and isinstance(parent, dict):
        parent[source.choice(("x", "", f"{key}_", "\ud800"))] = parent.pop(key)
    else:  # another value of the same file
        other, name = source.choice(places)
        parent[key] = json.loads(json.dumps(other[name]))
    return kind.spell(tree, data)


def _places(tree: object) -> Iterator[tuple]:
    """Every container of a tree with each of its keys or indices."""
    for key, value in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
        yield tree, key
        if isinstance(value, dict | list) and value:
            yield from _places(value)


def _parse_weights(data: bytes) -> object:
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size])


def _spell_weights(tree: object, before: bytes) -> bytes:
    (size,) = struct.unpack("<Q", before[:8])
    header = _spelled(json.dumps(tree))
    return struct.pack("<Q", len(header)) + header + before[8 + size :]


def _parse_lines(data: bytes) -> list:
    return [json.loads(line) for line in data.splitlines()]


def _spell_lines(rows: list, before: bytes) -> bytes:
    return b"\n".join(_spelled(json.dumps(row)) for row in rows) + b"\n"


def _parse_table(data: bytes) -> list:
    return [line.split("\t") for line in data.decode().split("\n")]


def _spell_table(rows: list, before: bytes) -> bytes:
    lines = ("\t".join(map(str, row)) if isinstance(row, list) else str(row) for row in rows)
    return "\n".join(lines).encode(errors="surrogatepass")


def _spell_yaml(tree: object, before: bytes) -> bytes:
    return _spelled(yaml.safe_dump(tree, sort_keys=False, default_style='"', width=10**6))


LINES = dict(folder="data", parse=_parse_lines, spell=_spell_lines)
TABLE = dict(folder="data", parse=_parse_table, spell=_spell_table)


def build(base: Path) -> dict[str, Kind]:
    """Makes a file of each kind in the base folder, and gives what reads it."""
    with chdir(base), open(os.devnull, "w") as silence, redirect_stdout(silence), redirect_stderr(silence):
        save_bert(Path("bert"))
        Path("s.txt").write_text("\n".join(make_sentences(64)) + "\n")
        save_pairs(Path("pairs.tsv"))
        trainer = _train()
        study, runs = _study()
        _data_files()

    def embed() -> None:
        """A folder as run_eval.py and run_unsup.py load it."""
        for embeddings in load_encoder("model", device="cpu")(make_sentences(4)).values():
            _require(embeddings.shape[0] == 4 and np.isfinite(embeddings).all())
        config = load_config("model")
        load_tokenizer("model", config)
        load_model(config, "model", {"pooling": "auto", "projection_head": "mlp", "lm_head": False})

    def card() -> None:
        Path("model/README.md").unlink()
        write_card("model")
        _require(Path("model/README.md").read_text().count("\n") > 20)

    def resume() -> None:
        checkpoint = checkpoint_to_resume("run", "last", trainer.args.model_settings)
        trainer.train(resume_from_checkpoint=str(checkpoint))
        _require([path.name for path in complete_checkpoints("run")] == ["checkpoint-2", "checkpoint-4"])

    def report() -> None:
        run_study.plots.seeds = lambda *_: None  # takes longer than all the rest
        Progress(study, runs, None, 1)._rest()
        run_study.report(study, runs, "studies")

    def plan() -> None:
        check_options(read_study("studies/study.yaml"))

    model, run = dict(folder="model", read=embed), dict(folder="run", read=resume, sealed=True)
    first = runs[0].folder.relative_to("studies")
    return {
        "config.json": Kind("config.json", **model),
        "modules.json": Kind("modules.json", **model),
        "tokenizer.json": Kind("tokenizer.json", **model),
        "safetensors header": Kind("model.safetensors", **model, parse=_parse_weights, spell=_spell_weights),
        "trainer_state.json": Kind("checkpoint-2/trainer_state.json", **run),
        "training.json, resume": Kind("checkpoint-2/training.json", **run),
        "training.json, card": Kind("training.json", card, "model"),
        "manifest.json": Kind("checkpoint-2/manifest.json", resume, "run"),
        "run.json": Kind(str(first / "run.json"), report, "studies"),
        "study YAML": Kind("study.yaml", plan, "studies", parse=yaml.safe_load, spell=_spell_yaml),
        "labels, JSONL": Kind("labels.jsonl", lambda: load_labels("data/labels.jsonl", "labels"), **LINES),
        "labels, TSV": Kind("labels.tsv", lambda: load_labels("data/labels.tsv", "labels"), **TABLE),
        "pairs, JSONL": Kind("pairs.jsonl", lambda: load_pairs("data/pairs.jsonl"), **LINES),
        "pairs, TSV": Kind("pairs.tsv", lambda: load_pairs("data/pairs.tsv"), **TABLE),
        "retrieval, JSONL": Kind("search.jsonl", lambda: load_retrieval_pairs("data/search.jsonl"), **LINES),
        "retrieval, TSV": Kind("search.tsv", lambda: load_retrieval_pairs("data/search.tsv"), **TABLE),
    }


def _require(fits: bool) -> None:
    if not fits:
        raise RuntimeError("no error, and no correct work")


def _train() -> InforMinTrainer:
    """A run of four steps, `model` its export and `run` what it was after two; and a trainer that can go on."""
    options = dict(model_name="bert", train_file="s.txt", eval_pairs="pairs.tsv", output_dir="run") | FOUR_STEPS
    words = [f"--{name}={value}" for name, value in options.items()]
    _require(run_unsup.main(words) == 0)
    shutil.copytree("run", "model", ignore=shutil.ignore_patterns("checkpoint-*", "runs"))
    for path in Path("run").iterdir():
        if path.name != "checkpoint-2":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    name, data, card, args = parse(words)
    args.output_dir = "run"
    known = provenance(name, data, card, args.model_revision)
    return InforMinTrainer(name, args, load_sentences(data, args.seed), load_development(data), provenance=known)


def _study() -> tuple:
    """`studies`: a study of two settings, finished, with what its tables are written from."""
    Path("studies").mkdir()
    recipes = {"cold": {"temperature": 0.05}, "warm": {"temperature": 0.1, "mlm_weight": 0.1}}
    base = {"model_name": str(Path("bert").absolute()), "use_cpu": True, "bf16": False, "max_steps": 4}
    told = dict(title="Small", base=base, recipes=recipes, grid={"learning_rate": [1e-3, 1e-4]}, baseline="cold")
    Path("studies/study.yaml").write_text(yaml.safe_dump(told | dict(seeds=[1, 2], tasks=["STS-B"]), sort_keys=False))
    study = read_study("studies/study.yaml")
    runs = runs_of(study, "studies")
    for run in runs:
        shutil.copytree("model", run.model)
        identity = dict.fromkeys("pooler normalized prompt whitening max_length precision split".split())
        results = new_results("model", identity | {"weights_sha256": "0" * 64}, {})
        results["tasks"]["STS-B"] = {"score": 70.0 + run.seed}
        write_json(run.results, results)
        write_json(run.folder / "run.json", run_record(run))
        shutil.rmtree(run.model)
    return study, runs


def _data_files() -> None:
    """`data`: labels, pairs and queries, each as JSON lines and as a table."""
    Path("data").mkdir()
    texts, others = make_sentences(24), make_sentences(24, 1)
    tables = {
        "labels": [{"text": text, "label": "ab"[i % 2]} for i, text in enumerate(texts)],
        "pairs": [{"sentence1": a, "sentence2": b, "score": i % 6} for i, (a, b) in enumerate(zip(texts, others))],
        "search": [
            {"query": a, "document": b, "negative": texts[-1 - i], "relevance": 1 + i % 3}
            for i, (a, b) in enumerate(zip(texts, others))
        ],
    }
    for name, rows in tables.items():
        Path(f"data/{name}.jsonl").write_bytes(_spell_lines(rows, b""))
        Path(f"data/{name}.tsv").write_bytes(_spell_table([list(rows[0]), *(list(row.values()) for row in rows)], b""))


def try_case(base: Path, kind: Kind, data: bytes) -> tuple[str, str]:
    """The outcome of reading a mutated file, and its message."""
    with tempfile.TemporaryDirectory() as case, chdir(case):
        shutil.copytree(base / kind.folder, kind.folder)
        Path(kind.folder, kind.file).write_bytes(data)
        if kind.sealed:
            write_manifest(Path(kind.folder, kind.file).parent)
        before = _listing()
        outcome, message = _in_child(kind.read)
        if outcome == REFUSED and (more := _listing() ^ before) - {(Path("model/README.md"),)}:
            outcome, message = LEFT, f"{sorted(map(str, more))[:3]} after: {message}"
        return outcome, message


def _listing() -> set:
    """All files; the folder of a study's tables may be made before what is wrong is seen."""
    return {path for path in Path().rglob("*") if path.is_file() and path.name != "README.md"}


def _in_child(read: Callable[[], object]) -> tuple[str, str]:
    """Reads in a process of its own, which is killed when its time is over."""
    receiver, sender = os.pipe()
    gc.freeze()  # the child's collector would copy all of this process's memory
    child = os.fork()
    if not child:
        _limit()
        with os.fdopen(sender, "w", encoding="utf-8", errors="backslashreplace") as pipe:
            json.dump(_ending(read), pipe)
        os._exit(0)
    os.close(sender)
    with os.fdopen(receiver, encoding="utf-8") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return (HANG, "") if number == signal.SIGALRM else (CRASH, signal.Signals(number).name)
    return tuple(json.loads(said)) if said else (CRASH, f"exit code {os.waitstatus_to_exitcode(status)}")


def _limit() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends native code too
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)


def _ending(read: Callable[[], object]) -> tuple[str, str]:
    try:
        read()
    except InforMinError as error:
        return (TRACEBACK, f"several lines: {error}") if "\n" in str(error) else (REFUSED, str(error))
    except BaseException:  # the tokenizers library raises a PanicException
        return TRACEBACK, traceback.format_exc()
    return CORRECT, ""


def fuzz(kinds: dict[str, Kind], base: Path, mutations: int, seed: int) -> Iterator[tuple[str, str, str, bytes]]:
    """Kind, outcome, message and bytes of each case. The unchanged files are tried first: they have to be read."""
    for name, kind in kinds.items():
        original = (base / kind.folder / kind.file).read_bytes()
        outcome, message = try_case(base, kind, original)
        if outcome != CORRECT:
            raise RuntimeError(f"{name} as it is: {outcome} {message}")
        source = random.Random(f"{seed} {name}")
        for _ in range(mutations):
            data = mutated(original, kind, source)
            yield name, *try_case(base, kind, data), data


def main() -> int:
    """Prints the table; 1 where a case failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", help="kinds of files, by the beginning of their names")
    parser.add_argument("--keep", type=Path, help="folder for the first file of each failure")
    args = parser.parse_args()
    sys.stdout.reconfigure(errors="backslashreplace")  # messages may have half a surrogate pair
    counts, failures = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        kinds = build(base)
        wanted = {name: kind for name, kind in kinds.items() if not args.only or name.startswith(tuple(args.only))}
        print(f"| file | {' | '.join(OUTCOMES)} |\n|{' --- |' * (len(OUTCOMES) + 1)}")
        for name in wanted:
            for _, outcome, message, data in fuzz({name: kinds[name]}, base, args.mutations, args.seed):
                counts.setdefault(name, Counter())[outcome] += 1
                if outcome not in (CORRECT, REFUSED):
                    lines = message.strip().splitlines() or [""]
                    places = [line for line in lines if line.startswith("  File")]
                    failures.setdefault((name, outcome, *places[-2:], lines[-1][:40]), (message, data))
            print(f"| {name} | {' | '.join(str(counts[name][outcome]) for outcome in OUTCOMES)} |", flush=True)
    for number, ((name, outcome, *_), (message, data)) in enumerate(failures.items()):
        print(f"\n## {name}: {outcome}\n{message[-3000:]}")
        if args.keep:
            args.keep.mkdir(parents=True, exist_ok=True)
            (args.keep / f"{number}-{name}").write_bytes(data)
    return 1 if failures else 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
