"""Check that a change leaves everything the commands write unchanged, bit for bit.

    python -m tools.bit_equality save before.json     # in the old checkout
    python -m tools.bit_equality check before.json    # in the new one

Runs the commands on tiny models, on a CPU with one thread, and compares a SHA-256 of the content of each tensor, vector
and JSON file, checkpoints included:

* training of a BERT and a RoBERTa with every objective and its options;
* training of SentenceTransformers (mean pooling, Dense) and of low-rank matrices, merged and not;
* export, fit, embed, compare and eval of native models and SentenceTransformers.

JSON entries that contain times, versions or the machine are left out. It takes a few minutes and needs no network.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from sentence_transformers.models import Dense
from tqdm import tqdm

from tests import forked
from tests.conftest import make_sentences, save_bert, save_pairs, save_roberta
from tests.models.any_encoder.helpers import sentence_transformer

ENVIRONMENT = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
SHARED = dict(per_device_train_batch_size=16, learning_rate=1e-3, max_steps=8, eval_steps=4, logging_steps=2, seed=5)
SHARED |= dict(warmup_steps=0, use_cpu="true", bf16="false", measure_drift="false")
SHARED |= dict(train_file="sentences.txt", eval_pairs="pairs.tsv")
GUIDED = dict(objective="guided", guided_weight=1, max_seq_length=32)
TEXTS = ("--train_file", "sentences.txt")
# JSON entries that differ between two runs of the same code, and files with many of them.
VOLATILE = {"environment", "seconds", "sentences_per_second", "informin", "transformers_version", "__version__"}
VOLATILE |= {"eval_runtime", "texts_per_second", "texts/s", "turns"}
SKIPPED = {"trainer_state.json", "manifest.json"}

Runs = dict[str, list[list[str]]]


def native_trainings() -> dict[str, dict]:
    """Return the options of each training of a native encoder by its name."""
    found = {}
    for weight in (0, 0.1):
        found |= {
            f"simcse, mlm {weight}": dict(objective="simcse", mlm_weight=weight),
            f"informin, mlm {weight}": dict(
                objective="informin", mlm_weight=weight, reconstruction_form="unit_squared_l2"
            ),
            f"scd, mlm {weight}": dict(objective="scd", mlm_weight=weight, projector_size=64),
            f"micse, mlm {weight}": dict(objective="micse", mlm_weight=weight, queue_size=32),
        }
    every = dict(objective="informin", queue_size=48, mlm_weight=0.1, attention_mi_weight=0.01)
    every |= dict(decorrelation_weight=0.005, projector_size=32)
    return found | {
        "queue": dict(objective="simcse", queue_size=32, mlm_weight=0.1),
        "every term": every | dict(reconstruction_form="reference", attention_mi_form="reference"),
        "masked views": dict(
            objective="informin", mlm_weight=0.1, masked_views="true", projection_head="none", reconstruction_weight=1
        ),
        "micse without head": dict(objective="micse", queue_size=32, projection_head="none"),
        "guided": GUIDED | dict(guided_neighbors=4, replay_weight=1, replay_size=8, pooler="mean"),
        "guided by temperature": GUIDED | dict(student_temperature=0.07, neighbor_weight=0.5, neighbor_count=3),
        "false negatives": dict(
            objective="simcse", false_negative_fraction=0.1, distillation_weight=1, padding_free="false"
        ),
        "neighbor views": dict(objective="simcse", neighbor_views=3, false_negative_fraction=0.1),
        "view dropout": dict(objective="simcse", view_dropout_rate=0.2, gradient_cache_chunk_size=8),
        "prompt": dict(objective="informin", prompt="the dog ", pooler="last"),
    }


def st_trainings(model: str) -> dict[str, dict]:
    """Return the options of each training of a SentenceTransformer by its name."""
    st = dict(backend="st", max_seq_length=32)
    lora = st | dict(objective="simcse", lora_r=4)
    return {
        "simcse": st | dict(objective="simcse"),
        "informin": st | dict(objective="informin"),
        "guided": st | GUIDED | dict(guided_neighbors=4, replay_weight=1, replay_size=8),
        "distillation": st | dict(objective="simcse", false_negative_fraction=0.1, distillation_weight=1),
        "drift": st | dict(objective="simcse", measure_drift="true"),
        "lora": lora,
        "lora, not merged": lora | dict(lora_merge="false"),
    } | ({"frozen dense": st | dict(objective="simcse", train_dense="false")} if model == "st-dense" else {})


def training(model: str, output: str, options: dict) -> list[str]:
    """Return the arguments of a training run."""
    given = SHARED | dict(model_name=model, output_dir=output) | options
    return ["train", *(f"--{option}={value}" for option, value in given.items())]


def runs() -> Runs:
    """Return the commands of each run by its name. They write to `out`, or to a folder in it."""
    found: Runs = {}
    for model in ("bert", "roberta"):
        found |= {f"train {model}, {name}": [training(model, "out", how)] for name, how in native_trainings().items()}
    for model in ("st-mean", "st-dense"):
        found |= {f"train {model}, {name}": [training(model, "out", how)] for name, how in st_trainings(model).items()}
    found["train bert, drift"] = [training("bert", "out", dict(objective="simcse", measure_drift="true"))]
    for model in ("bert", "roberta", "st-mean", "st-dense"):
        pooler = [] if model.startswith("st-") else ["--pooler", "cls"]
        found |= {f"{model}, {name}": commands for name, commands in _on_one_model(model, pooler).items()}
    found["compare"] = [["compare", "st-mean", "st-dense", *TEXTS, "--output_dir", "out/compare"]]
    return found


def _on_one_model(model: str, pooler: list[str]) -> Runs:
    """Return the runs of the commands on a finished model."""
    run = training(model, "run", dict(objective="simcse", **({"backend": "st"} if model == "st-dense" else {})))
    fit = ["fit", "--model_name", model, *TEXTS, "--output_dir", "out/fit"]
    embed = ["embed", "--model_name", model, *TEXTS, *pooler, "--output", "out/vectors.npy"]
    scored = ["eval", "--model_name", model, "--pooler", *(pooler[1:] or ["auto"])]
    samples = ["--labels", "labels.tsv", "--retrieval", "retrieval.tsv", "--output", "out/eval.json"]
    runs: Runs = {
        "export": [run, ["export", "run/checkpoint-8", "out/export"]],
        "embed": [embed],
        "embed, st": [[*embed[:-1], "out/st.npy", "--backend", "st"]] if not pooler else [],
        "fit embeddings": [embed, ["fit", "--embeddings", "out/vectors.npy", "--output_dir", "out/adapter"]],
        "eval": [[*scored, *samples]],
    }
    if not pooler:  # a plain encoder has no pooling of its own
        runs |= {
            "fit": [fit],
            "fit, smoothed": [[*fit, "--documents", "smoothed", "--preset", "documents"]],
            "fit, short texts": [[*fit, "--preset", "short_texts", "--documents", "adapted"]],
            "fit, st": [[*fit, "--backend", "st"]],
        }
    return {name: commands for name, commands in runs.items() if commands}


def save_inputs(folder: Path) -> None:
    """Write the models and files that the runs read."""
    save_bert(folder / "bert")
    save_roberta(folder / "roberta")
    torch.manual_seed(0)  # of BERT's own pooler, which the checkpoint lacks, and of the Dense module
    sentence_transformer(folder / "bert", folder / "st-mean")
    sentence_transformer(folder / "bert", folder / "st-dense", Dense(32, 24))
    texts = make_sentences(320)
    (folder / "sentences.txt").write_text("\n".join(texts[:160]) + "\n")
    save_pairs(folder / "pairs.tsv")
    rows = [f"{text}\t{'even' if number % 2 else 'odd'}" for number, text in enumerate(texts[160:])]
    (folder / "labels.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    rows = [f"{query}\t{document}" for query, document in zip(texts[160:200], texts[200:240])]
    (folder / "retrieval.tsv").write_text("\n".join(["query\tdocument", *rows]) + "\n")


def digest(path: Path) -> str:
    """Return a SHA-256 of the content of a JSON, .npy or safetensors file, regardless of the tensors' names."""
    if path.suffix == ".json":
        parts = [json.dumps(_steady(json.loads(path.read_text(encoding="utf-8"))), sort_keys=True)]
    elif path.suffix == ".npy":
        array = np.load(path)
        parts = [f"{array.shape} {array.dtype}", hashlib.sha256(array.tobytes()).hexdigest()]
    else:
        parts = sorted(
            hashlib.sha256(
                f"{tuple(x.shape)} {x.dtype}".encode() + x.contiguous().view(-1).numpy().tobytes()
            ).hexdigest()
            for x in load_file(path).values()
        )
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


def _steady(values: object) -> object:
    """Return a JSON value without the entries that differ between two runs of the same code."""
    if isinstance(values, dict):
        return {name: _steady(value) for name, value in values.items() if name not in VOLATILE}
    return [_steady(value) for value in values] if isinstance(values, list) else values


def digests(folder: Path) -> dict[str, str]:
    """Return the digest of each JSON, .npy and safetensors file in a folder by its path."""
    files = (path for suffix in ("json", "npy", "safetensors") for path in folder.rglob(f"*.{suffix}"))
    return {str(path.relative_to(folder)): digest(path) for path in sorted(files) if path.name not in SKIPPED}


def result(inputs: Path, name: str, commands: list[list[str]]) -> dict[str, str]:
    """Run the commands of a run in a folder with links to the inputs. Return exit codes and digests by name."""
    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for path in inputs.iterdir():
            (folder / path.name).symlink_to(path)
        (folder / "out").mkdir()
        for arguments in commands:
            done = forked.run(forked.module("informin", arguments, cwd=folder, env=ENVIRONMENT), timeout=300)
            found[f"exit code of {arguments[0]}"] = str(done.returncode)
            if done.returncode:
                print(f"{name}: exit code {done.returncode}: {done.stderr[-500:]}", file=sys.stderr)
        return found | digests(folder / "out")


def run_all(only: str) -> dict[str, dict[str, str]]:
    """Run all commands in temporary folders. Return exit codes and digests by the name of the run."""
    with tempfile.TemporaryDirectory() as inputs:
        save_inputs(Path(inputs))
        chosen = {name: commands for name, commands in runs().items() if only in name}
        return {name: result(Path(inputs), name, commands) for name, commands in tqdm(chosen.items())}


def main() -> int:
    """Save or check. Return 0 if nothing failed and, for a check, all files are equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["save", "check"], help="write the digests to FILE, or compare with it")
    parser.add_argument("file", metavar="FILE", type=Path)
    parser.add_argument("--only", default="", metavar="TEXT", help="only runs with this text in their name")
    args = parser.parse_args()
    found = run_all(args.only)
    if args.mode == "save":
        args.file.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{len(found)} runs with {sum(map(len, found.values()))} digests saved to {args.file}")
        codes = [code for run in found.values() for name, code in run.items() if name.startswith("exit code")]
        return int(any(code != "0" for code in codes))
    expected = {name: run for name, run in json.loads(args.file.read_text()).items() if args.only in name}
    different = {name: _differences(run, found.get(name, {})) for name, run in expected.items()}
    different = {name: files for name, files in different.items() if files}
    print(f"{len(expected) - len(different)} of {len(expected)} runs are bit-equal")
    for name, files in different.items():
        print(f"different: {name}: {', '.join(files)}")
    return int(bool(different))


def _differences(expected: dict[str, str], found: dict[str, str]) -> list[str]:
    return sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))


if __name__ == "__main__":
    sys.exit(main())
