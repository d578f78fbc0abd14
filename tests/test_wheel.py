"""A wheel, installed into an environment of its own outside the checkout: it holds all, and its commands work."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from configparser import ConfigParser
from functools import partial
from pathlib import Path

import pytest
import yaml
from transformers import AutoModel

from informin import __version__, program
from tests.conftest import ROOT

COMMANDS = "informin-analyze informin-eval informin-export informin-push informin-study informin-train".split()
# Run by every Python of that environment: writes down, at its end, where the program and this project's modules lie.
WITNESS = """
import atexit, json, os, sys

def write():
    own = [name for name in sys.modules if name == "__main__" or name.partition(".")[0].endswith("informin")]
    with open(os.environ["WITNESS"], "a") as file:
        file.write(json.dumps({name: getattr(sys.modules[name], "__file__", None) for name in own}) + chr(10))

atexit.register(write)
"""


def sources() -> list[Path]:
    """What a clean clone would have, with what is not committed yet; relative to the checkout."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("git says what a clone has, and this is none")
    return [Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built without network: setuptools is there, torch needs it."""
    folder = tmp_path_factory.mktemp("wheel")
    for path in sources():
        (folder / "clone" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, folder / "clone" / path)
    pip("wheel", "--no-build-isolation", "--wheel-dir", str(folder), str(folder / "clone"))
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Runs a command of the environment that has the wheel, in an empty folder; returns what it printed."""
    environment, elsewhere = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("elsewhere")
    venv.create(environment)
    paths = sysconfig.get_paths(vars={"base": str(environment), "platbase": str(environment)})
    pip("--python", str(Path(paths["scripts"], "python")), "install", str(wheel))
    packages = Path(paths["purelib"])
    (packages / "witness.py").write_text(WITNESS)
    dependencies = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "dependencies.pth").write_text("\n".join([*dependencies, "import witness"]) + "\n")
    own = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "WITNESS": str(elsewhere / "witness.jsonl")}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(command: str, *arguments: object) -> str:
        words = [str(Path(paths["scripts"], command)), *map(str, arguments)]
        done = subprocess.run(words, cwd=elsewhere, env=inherited | own, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run.folder, run.environment = elsewhere, environment
    return run


def pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *words]
    done = subprocess.run([*command, "--no-deps", "--no-index"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_in_the_wheel(wheel):
    """Every module, recipes, what the card is written with, the general sentences, what --help says, nothing else."""
    expected = {path for path in sources() if path.suffix == ".py" and path.parts[0] in ("informin", path.name)}
    expected |= {path for path in sources() if path.match("model_cards/TEMPLATE.md") or path.suffix == ".bib"}
    expected |= {path for path in sources() if path.match("configs/recipes/*.yaml")}
    expected |= {Path("informin/general_sentences.txt")}
    expected |= {path for path in sources() if path.match("informin/help/*.txt")}
    with zipfile.ZipFile(wheel) as archive:
        held = {Path(name) for name in archive.namelist()}
        (entry_points,) = (name for name in archive.namelist() if name.endswith("/entry_points.txt"))
        scripts = ConfigParser()
        scripts.read_string(archive.read(entry_points).decode())
    information = f"informin_cl-{__version__}.dist-info"
    assert {path for path in held if path.parts[0] != information} == expected
    assert Path("model_cards/TEMPLATE.md") in expected and Path("model_cards/citations/informin.bib") in expected
    commands = dict(scripts["console_scripts"])
    assert sorted(commands) == COMMANDS
    run = [vars(program)[name.removeprefix("informin.program:")] for name in commands.values()]
    assert all(type(command) is partial for command in run)
    names = {command.removeprefix("informin-"): work.args[0] for command, work in zip(commands, run)}
    words = {"analyze": "analysis", "train": "unsup"}
    assert names == {name: f"run_{words.get(name, name)}" for name in names}


def test_trains_and_exports(installed, bert, sentences_file, pairs_file, command):
    """Training, a study of one run, which starts the scripts by their paths, and an export, from another folder."""
    assert "after (step " in installed("informin-train", *command(output_dir="run", max_steps=2))
    listed = installed("informin-export", "run/checkpoint-2", "export", "--dtype=float16").splitlines()
    assert {"README.md", "model.safetensors", "modeling_informin.py", "training.json"} <= set(listed)
    model = AutoModel.from_pretrained(installed.folder / "export", trust_remote_code=True)
    assert type(model).__name__ == "BertForInforMinCL"
    card = (installed.folder / "export" / "README.md").read_text()
    assert f"InforMin-CL {__version__}" in card and "```bibtex" in card, "template and citations are there"

    base = dict(model_name=bert, train_file=sentences_file, eval_pairs=pairs_file)
    base = {name: str(path) for name, path in base.items()}
    base |= dict(max_steps=2, eval_steps=2, per_device_train_batch_size=16, bf16=False, use_cpu=True)
    study = dict(base=base, recipes={"simcse": {"objective": "simcse"}}, seeds=[1])
    (installed.folder / "study.yaml").write_text(yaml.safe_dump(study))
    assert "[1/1] simcse seed 1: dev Spearman " in installed("informin-study", "study.yaml")
    assert len(list(installed.folder.glob("outputs/studies/runs/simcse-*/seed1/run.json"))) == 1

    lines = (installed.folder / "witness.jsonl").read_text().splitlines()
    processes = [process for line in lines if len(process := json.loads(line)) > 1]
    assert len(processes) == 4, "one of them the study's training"
    elsewhere = {
        name: file
        for files in processes
        for name, file in files.items()
        if not file.startswith(f"{installed.environment}/")
    }
    packages = {f"informin.{path.parent.name}" for path in ROOT.glob("informin/*/__init__.py")}
    assert elsewhere == {} and packages <= {name for files in processes for name in files}
