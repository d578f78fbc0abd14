"""The trainer on the oldest and the newest transformers that pyproject.toml allows, each in a folder of its own.

Slow, because pip installs both. By hand, and in the workflow:

    python -m pytest -m slow tests/test_versions.py
"""

import os
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT, make_sentences, save_bert

BOUNDS = re.search(r'"transformers>=([\d.]+),<([\d.]+)"', (ROOT / "pyproject.toml").read_text())
SPECIFIERS = {"oldest": f"transformers=={BOUNDS[1]}", "newest": f"transformers<{BOUNDS[2]}"}
CHILD = """
import shutil, sys
import torch
import transformers
from informin import Contrast, InforMinTrainer, InforMinTrainingArguments, Reconstruction

site, model, file, out = sys.argv[1:]
assert transformers.__file__.startswith(site), transformers.__file__
sentences = open(file).read().splitlines()

def trained(resume=None):
    args = InforMinTrainingArguments(
        out, per_device_train_batch_size=16, learning_rate=1e-3, warmup_steps=0, max_steps=4, eval_steps=2,
        use_cpu=True, bf16=False, report_to="none", disable_tqdm=True,
    )

    def score(encode):
        return float(encode(sentences[:4])[0, 0])

    objective = [Contrast(queue_size=16), Reconstruction(weight=0.4)]
    trainer = InforMinTrainer(model, args, train_dataset=sentences, eval_dataset=score, objective=objective)
    trainer.train(resume)
    return trainer

whole = trained()
weights = {name: x.clone() for name, x in whole.model.state_dict().items()}
shutil.rmtree(out + "/checkpoint-4")
again = trained("last")
assert all(x.equal(weights[name]) for name, x in again.model.state_dict().items())
again.export()
print("transformers", transformers.__version__)
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", SPECIFIERS)
def test_a_run_is_trained_resumed_and_exported(tmp_path, version):
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(site)]
    # Older versions of transformers need an older huggingface_hub, and that an older datasets.
    subprocess.run([*install, SPECIFIERS[version], "datasets"], check=True)
    (tmp_path / "sentences.txt").write_text("\n".join(make_sentences(64)))
    model = save_bert(tmp_path / "model")
    environment = os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "HF_HUB_OFFLINE": "1"}
    command = [
        sys.executable,
        "-c",
        CHILD,
        str(site),
        str(model),
        str(tmp_path / "sentences.txt"),
        str(tmp_path / "run"),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    print(done.stdout.splitlines()[-1])
