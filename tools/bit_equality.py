"""Compare what the commands of this tree and of an older one write: weights, embeddings, scores, fitted maps.

    python -m tools.bit_equality /path/to/old/tree --work FOLDER [--only TEXT] [--without_dropout]

Runs the commands of both trees on tiny models, on a CPU with one thread, and compares

* the tensors of every checkpoint and exported model: bit-equal by name;
* the embeddings of `informin embed`: to 1e-6;
* the scores of `informin eval` and of the evaluations in training: to 0.01;
* the map of `informin fit`: bit-equal.

Trainings of a BERT and a RoBERTa with every objective, of SentenceTransformers with and without a Dense module,
of low-rank matrices, and of models that this project exported. FOLDER keeps the results of the old tree, which are read
again by the next call. It takes some minutes and needs no network. If the trees draw other dropout masks, compare
with another FOLDER the trainings without dropout: their second views are crops, and SCD's terms have no rates.
"""

import argparse
import json
import os
import runpy
import shutil
import subprocess
import sys
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
SHARED = dict(per_device_train_batch_size=16, learning_rate=1e-3, max_steps=8, eval_steps=4, logging_steps=2, seed=5)
SHARED |= dict(warmup_steps=0, use_cpu="true", bf16="false", measure_drift="false", report_to="none")
SHARED |= dict(train_file="sentences.txt", eval_pairs="pairs.tsv")
GUIDED = dict(objective="guided", guided_weight=1, max_seq_length=32)
# Version 0.3 trained models with other modules without a projection head.
ST = dict(max_seq_length=32, projection_head="none")
CLOSE, POINTS = 1e-6, 0.01
Commands = list[list[str]]


def native_trainings() -> dict[str, dict]:
    """Return the options of each training of a BERT or RoBERTa by its name."""
    every = dict(objective="informin", queue_size=48, mlm_weight=0.1, attention_mi_weight=0.01)
    every |= dict(decorrelation_weight=0.005, projector_size=32)
    return {
        "simcse": dict(objective="simcse"),
        "informin": dict(objective="informin", reconstruction_form="unit"),
        "informin, mlm": dict(objective="informin", mlm_weight=0.1),
        "scd, mlm": dict(objective="scd", mlm_weight=0.1, projector_size=64),
        "micse": dict(objective="micse", queue_size=32),
        "every term": every | dict(reconstruction_form="code", attention_mi_form="code"),
        "masked views": dict(objective="informin", mlm_weight=0.1, masked_views="true", projection_head="none"),
        "guided": GUIDED
        | dict(guided_neighbors=4, replay_weight=1, replay_size=8, distillation_weight=1, pooler="mean"),
        "false negatives": dict(objective="simcse", false_negative_fraction=0.1, padding_free="false"),
        "crop": dict(objective="simcse", view="crop"),
        "view dropout, chunks": dict(objective="simcse", view_dropout=0.2, gradient_cache_chunk_size=8),
        "prompt": dict(objective="informin", prompt="the dog ", pooler="last"),
    }


def st_trainings() -> dict[str, dict]:
    """Return the options of each training of a SentenceTransformer by its name."""
    return {
        "simcse": ST | dict(objective="simcse"),
        "informin": ST | dict(objective="informin"),
        "guided": ST | GUIDED | dict(guided_neighbors=4, replay_weight=1, replay_size=8),
        "lora": ST | dict(objective="simcse", lora_r=4),
    }


def training(model: str, options: dict, output: str = "out") -> list[str]:
    """Return the command of a training."""
    values = SHARED | dict(model_name=model, output_dir=output) | options
    return ["train", *(f"--{option}={value}" for option, value in values.items())]


def runs() -> dict[str, Commands]:
    """Return the commands of each run by its name. They write to `out`."""
    found: dict[str, Commands] = {}
    for model in ("bert", "roberta"):
        for name, options in native_trainings().items():
            found[f"train {model}, {name}"] = [training(model, options)]
    for model in ("st-mean", "st-dense"):
        for name, options in st_trainings().items():
            found[f"train {model}, {name}"] = [training(model, options)]
    first = training("bert", dict(objective="simcse"), "first")
    found["train an exported bert"] = [first, training("first", dict(objective="simcse"))]
    found["export"] = [first, ["export", "--model_name", "first/checkpoint-8", "--output_dir", "out/export"]]
    for model in ("first", "st-mean", "st-dense"):
        begin = [first] if model == "first" else []
        reads = ["--model_name", model]
        embed = ["embed", *reads, "--train_file", "sentences.txt", "--output", "out/vectors.npy"]
        samples = ["--labels", "labels.tsv", "--retrieval", "retrieval.tsv", "--output", "out/eval.json"]
        found[f"embed {model}"] = begin + [embed]
        found[f"eval {model}"] = begin + [["eval"] + reads + samples]
        fit = ["fit", *reads, "--train_file", "sentences.txt", "--output_dir", "out/fit"]
        for task in ("clustering", "search"):
            found[f"fit {model}, {task}"] = begin + [fit + ["--task", task]]
    return found


def undropped(words: list[str]) -> list[str]:
    """Return the command with crops as second views and without rates of dropout."""
    if words[0] != "train":
        return words
    kept = [word for word in words if not word.startswith(("--view_dropout", "--objective=scd"))]
    scd = ["--objective=noncontrastive", "--self_contrast_weight=1", "--decorrelation_weight=0.005"]
    return kept + scd * ("--objective=scd" in words) + ["--view=crop"] + ["--lora_dropout=0"] * ("--lora_r=4" in words)


def save_inputs(folder: Path) -> None:
    """Write the models and files that the runs read."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    from tests.conftest import make_sentences, save_bert, save_pairs, save_roberta

    save_bert(folder / "bert")
    save_roberta(folder / "roberta")
    torch.manual_seed(0)  # of BERT's own pooler, which the checkpoint lacks, and of the Dense module
    for name, more in (("st-mean", []), ("st-dense", [Dense(32, 24)])):
        encoder = Transformer(str(folder / "bert"), max_seq_length=40)
        modules = [encoder, Pooling(32, pooling_mode="mean"), *more, Normalize()]
        SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder / name))
    texts = make_sentences(320)
    (folder / "sentences.txt").write_text("\n".join(texts[:160]) + "\n")
    save_pairs(folder / "pairs.tsv")
    rows = [f"{text}\t{'even' if number % 2 else 'odd'}" for number, text in enumerate(texts[160:])]
    (folder / "labels.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    rows = [f"{query}\t{document}" for query, document in zip(texts[160:200], texts[200:240])]
    (folder / "retrieval.tsv").write_text("\n".join(["query\tdocument", *rows]) + "\n")


def run_side(tree: Path, jobs: dict[str, Commands], inputs: Path, place: Path) -> None:
    """Run commands with a tree, each run in PLACE/NAME, from one process that has imported the tree."""
    place.mkdir(exist_ok=True)
    (place / "jobs.json").write_text(json.dumps(jobs))
    command = [sys.executable, __file__, "--serve", str(place), str(inputs)]
    subprocess.run(command, check=True, env=ENVIRONMENT | {"PYTHONPATH": str(tree)}, cwd=tree)


def serve(place: Path, inputs: Path) -> None:
    """Run the jobs of a folder, each command in a fork of this process; see `run_side`."""
    import torch

    import trainer_informin  # noqa: F401

    torch.set_num_threads(1)
    for name, commands in json.loads((place / "jobs.json").read_text()).items():
        folder = place / name.replace(" ", "-")
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "out").mkdir(parents=True)
        for path in inputs.iterdir():
            (folder / path.name).symlink_to(path)
        codes = [_forked(folder, words) for words in commands]
        (folder / "codes.json").write_text(json.dumps(codes))
        print(f"{name}: {codes}", flush=True)


def _forked(folder: Path, words: list[str]) -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.chdir(folder)
    log = os.open("log.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv, code = ["informin", *words], 1
    try:
        runpy.run_module("informin", run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)


def differences(old: Path, new: Path) -> list[str]:
    """Return what differs between the outputs of a run of both trees."""
    codes = [json.loads((side / "codes.json").read_text()) for side in (old, new)]
    found = [] if codes[1] == [0] * len(codes[1]) else [f"exit codes {codes[1]}"]
    if any(codes[0]):  # it could not do this
        return found
    for suffix, compare in COMPARED.items():
        files = {path.relative_to(old / "out") for path in (old / "out").rglob(f"*{suffix}")}
        for file in sorted(file for file in files if file.parts[0] != "guide"):  # named by a checksum of the settings
            if not (new / "out" / file).exists():
                found.append(f"{file} is missing")
            elif problem := compare(old / "out" / file, new / "out" / file):
                found.append(f"{file}: {problem}")
    return found


def compare_weights(old: Path, new: Path) -> str:
    """Return the tensors that are not bit-equal, or that one file lacks."""
    import torch
    from safetensors.torch import load_file

    one, other = load_file(old), load_file(new)
    names = {name for name in one.keys() ^ other.keys() if not name.startswith("pooler.")}  # BERT's, which is not used
    if names:
        return f"names: {sorted(names)[:4]}"
    changed = [name for name in one.keys() & other.keys() if not torch.equal(one[name], other[name])]
    return f"{len(changed)} of {len(one)} tensors, such as {changed[0]}" if changed else ""


def compare_vectors(old: Path, new: Path) -> str:
    """Return the largest difference if it is not small."""
    import numpy as np

    x, y = np.load(old), np.load(new)
    apart = np.abs(x - y).max() if x.shape == y.shape else np.inf
    return f"differs by {apart:.1e}" if apart > CLOSE else ""


def compare_scores(old: Path, new: Path) -> str:
    """Return the scores that differ by more than 0.01."""
    one, other = (scores_of(json.loads(path.read_text(encoding="utf-8"))) for path in (old, new))
    apart = {key: (value, other.get(key)) for key, value in one.items() if abs(other.get(key, 1e9) - value) > POINTS}
    return f"{apart}" if apart else ""


def scores_of(content: dict) -> dict[str, float]:
    """Return the scores in results of `informin eval` or in a training.json by name."""
    if "tasks" in content:
        measures = {
            name: task.get("measures", {}) | {"score": task["score"]} for name, task in content["tasks"].items()
        }
        values = {f"{name} {key}": value for name, task in measures.items() for key, value in task.items()}
    else:
        values = {f"step {entry['step']}": entry.get("spearman") for entry in content["history"]}
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


COMPARED = {
    ".safetensors": compare_weights,
    ".npy": compare_vectors,
    "training.json": compare_scores,
    "eval.json": compare_scores,
}


def main() -> int:
    """Run and compare. Return 0 if everything is equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", nargs="?", type=Path, help="folder of the older tree")
    parser.add_argument("--work", type=Path, help="folder for the outputs of both trees")
    parser.add_argument("--only", default="", metavar="TEXT", help="only runs with this text in their name")
    parser.add_argument("--without_dropout", action="store_true", help="train without dropout, on crops")
    parser.add_argument("--compare_only", action="store_true", help="compare what the last call wrote")
    parser.add_argument("--serve", nargs=2, type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(*args.serve)
        return 0
    if args.work is None:
        parser.error("--work FOLDER is required")
    chosen = {name: commands for name, commands in runs().items() if args.only in name}
    if args.without_dropout:
        chosen = {name: [undropped(words) for words in commands] for name, commands in chosen.items()}
    inputs = args.work / "inputs"
    sides = [args.work / "old", args.work / "new"]
    if not inputs.exists():
        inputs.mkdir(parents=True)
        save_inputs(inputs)
        if args.without_dropout:
            for path in inputs.rglob("config.json"):
                values = json.loads(path.read_text())
                path.write_text(json.dumps(values | {name: 0.0 for name in values if name.endswith("dropout_prob")}))
    done = {name for name in chosen if (sides[0] / name.replace(" ", "-") / "codes.json").exists()}
    missing = {name: commands for name, commands in chosen.items() if name not in done}
    run_side(args.old, missing, inputs, sides[0])
    if not args.compare_only:
        run_side(ROOT, chosen, inputs, sides[1])
    different = {name: differences(*(side / name.replace(" ", "-") for side in sides)) for name in chosen}
    for name, files in different.items():
        refused = any(json.loads((sides[0] / name.replace(" ", "-") / "codes.json").read_text()))
        state = "DIFFERENT" if files else "not possible in the older tree" if refused else "equal"
        print(f"{state}: {name}" + "".join(f"\n    {file}" for file in files))
    return int(any(different.values()))


if __name__ == "__main__":
    sys.exit(main())
