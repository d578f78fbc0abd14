"""Check that a change leaves the trained weights unchanged, bit for bit.

    python -m tools.bit_equality save before.json     # in the old checkout
    python -m tools.bit_equality check before.json    # in the new one

Trains two tiny encoders for 8 steps with every objective and its options, on a CPU, and compares the SHA-256 of all
weights in both checkpoints and in the exported folder. It takes a few minutes and needs no network.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors.torch import load_file
from tqdm import tqdm

from tests.conftest import ROOT, make_sentences, save_bert, save_pairs, save_roberta

ENVIRONMENT = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
SHARED = dict(per_device_train_batch_size=16, learning_rate=1e-3, max_steps=8, eval_steps=4, logging_steps=2, seed=5)
SHARED |= dict(warmup_steps=0, use_cpu="true", bf16="false", measure_drift="false")
SHARED |= dict(train_file="sentences.txt", eval_pairs="pairs.tsv")
GUIDED = dict(objective="guided", guided_weight=1, max_seq_length=32)
WEIGHTS = ("checkpoint-4/model.safetensors", "checkpoint-8/model.safetensors", "model.safetensors")


def runs() -> dict[str, dict]:
    """Return the options of each run by its name."""
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


def digest(path: Path) -> str | None:
    """Return a hash of all tensors of a file regardless of their names, or None if the file is missing."""
    if not path.exists():
        return None
    tensors = load_file(path).values()
    parts = sorted(
        hashlib.sha256(f"{tuple(t.shape)} {t.dtype}".encode() + t.contiguous().view(-1).numpy().tobytes()).hexdigest()
        for t in tensors
    )
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def train(folder: Path, encoder: str, name: str, options: dict) -> list:
    """Train one run. Return its exit code and the digests of its weights."""
    output = f"{encoder}-{name}".replace(" ", "-").replace(",", "")
    given = SHARED | dict(model_name=encoder, output_dir=output) | options
    command = [sys.executable, str(ROOT / "run_unsup.py"), *(f"--{option}={value}" for option, value in given.items())]
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
    if done.returncode:
        print(f"{encoder}, {name}: exit code {done.returncode}: {done.stderr[-500:]}", file=sys.stderr)
    return [done.returncode, *(digest(folder / output / file) for file in WEIGHTS)]


def train_all() -> dict[str, list]:
    """Train every run with a BERT and a RoBERTa in a temporary folder. Return exit codes and digests by name."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        save_bert(folder / "bert")
        save_roberta(folder / "roberta")
        (folder / "sentences.txt").write_text("\n".join(make_sentences(160)) + "\n")
        save_pairs(folder / "pairs.tsv")
        todo = [(encoder, name) for encoder in ("bert", "roberta") for name in runs()]
        return {f"{encoder}, {name}": train(folder, encoder, name, runs()[name]) for encoder, name in tqdm(todo)}


def main() -> int:
    """Save or check. Return 0 if nothing failed and, for a check, all weights are equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["save", "check"], help="write the digests to FILE, or compare with it")
    parser.add_argument("file", metavar="FILE", type=Path)
    args = parser.parse_args()
    expected = json.loads(args.file.read_text()) if args.mode == "check" else {}
    found = train_all()
    if args.mode == "save":
        args.file.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{len(found)} runs saved to {args.file}")
        return int(any(code for code, *_ in found.values()))
    different = [name for name in expected if expected[name] != found.get(name)]
    print(f"{len(expected) - len(different)} of {len(expected)} runs are bit-equal")
    for name in different:
        print(f"different: {name}")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
