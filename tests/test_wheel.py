"""The wheel: its contents, and its command outside the checkout."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml
from transformers import AutoModel

from informin import __version__
from tests.conftest import ROOT

# Every Python process of that environment runs this: at exit it records where this project's modules come from.
WITNESS = """
import atexit, json, os, sys

def write():
    own = [name for name in sys.modules if name == "__main__" or name.partition(".")[0].endswith("informin")]
    with open(os.environ["WITNESS"], "a") as file:
        file.write(json.dumps({name: getattr(sys.modules[name], "__file__", None) for name in own}) + chr(10))

atexit.register(write)
"""

# Runs the installed script for each command that it reads, in a fork, so that torch and transformers load only once.
# No module of this project is imported before the fork.
RUNNER = """
import atexit, gc, json, os, runpy, sys
import datasets, matplotlib.figure, scipy.stats, sentence_transformers, sklearn.cluster, sklearn.manifold, torch
from transformers import BertModel, Trainer

assert not [name for name in sys.modules if name.partition(".")[0].endswith("informin")]
gc.freeze()  # a collection in a fork would copy all memory
atexit.unregister(sys.modules["witness"].write)
for line in sys.stdin:
    script, *words = json.loads(line)
    child = os.fork()
    if not child:
        atexit.register(sys.modules["witness"].write)
        os.dup2(os.open("out.txt", os.O_CREAT | os.O_TRUNC | os.O_WRONLY), 1)
        os.dup2(os.open("err.txt", os.O_CREAT | os.O_TRUNC | os.O_WRONLY), 2)
        sys.argv = [script, *words]
        runpy.run_path(script, run_name="__main__")
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def sources() -> list[Path]:
    """Return the files of a clean clone plus those not committed yet, relative to the checkout."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("git lists the files of a clone, and this is not a git checkout")
    return [Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Build the wheel without network access; setuptools is installed because torch needs it."""
    folder = tmp_path_factory.mktemp("wheel")
    for path in sources():
        (folder / "clone" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, folder / "clone" / path)
    pip("wheel", "--no-build-isolation", "--wheel-dir", str(folder), str(folder / "clone"))
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A function that runs `informin` from the wheel in an empty folder and returns its stdout."""
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

    (environment / "runner.py").write_text(RUNNER)
    command = [str(Path(paths["scripts"], "python")), str(environment / "runner.py")]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    runner = subprocess.Popen(command, cwd=elsewhere, env=inherited | own, **pipes)

    def run(*arguments: object) -> str:
        words = [str(Path(paths["scripts"], "informin")), *map(str, arguments)]
        print(json.dumps(words), file=runner.stdin, flush=True)
        code, out = runner.stdout.readline(), (elsewhere / "out.txt").read_text()
        assert code == "0\n", out + (elsewhere / "err.txt").read_text()
        return out

    run.folder, run.environment = elsewhere, environment
    yield run
    runner.stdin.close()
    assert runner.wait(60) == 0


def pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *words]
    done = subprocess.run([*command, "--no-deps", "--no-index"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_contains_only_the_package(wheel):
    """Modules, recipes, card template, citations, help texts and general sentences; three names at the top level."""
    data = {
        "*.py",
        "*.pyi",
        "py.typed",
        "general_sentences.txt",
        "help/*.txt",
        "recipes/*.yaml",
        "*.md",
        "*.css",
        "*.js",
        "*.html",
        "citations/*.bib",
    }
    expected = {path for path in sources() if path.parts[0] == "informin" and any(map(path.match, data))}
    expected |= {Path("modeling_informin.py"), Path("trainer_informin.py")}
    with zipfile.ZipFile(wheel) as archive:
        held = {Path(name) for name in archive.namelist()}
        (entry_points,) = (name for name in archive.namelist() if name.endswith("/entry_points.txt"))
        scripts = ConfigParser()
        scripts.read_string(archive.read(entry_points).decode())
    assert {path for path in held if path.parts[0] != f"informin_cl-{__version__}.dist-info"} == expected
    assert dict(scripts["console_scripts"]) == {"informin": "informin.cli:main"}
    for path in ("py.typed", "recipes/adapt.yaml", "publishing/templates/citations/simcse.bib", "help/train.txt"):
        assert Path("informin", path) in expected


def test_trains_and_exports(installed, bert, sentences_file, pairs_file, command):
    """Train by a recipe, export, and run a study of one run, which starts `informin` itself."""
    adapt = dict(objective=None, max_steps=2, guided_neighbors=2, replay_size=2, measure_drift="false")
    assert "Load the model:" in installed("train", *command(recipe="adapt", output_dir="run", **adapt))
    assert (installed.folder / "run" / "modules.json").is_file()

    listed = installed("export", "run/checkpoint-2", "export", "--dtype=float16").splitlines()
    assert {"README.md", "model.safetensors", "modeling_informin.py", "training.json"} <= set(listed)
    model = AutoModel.from_pretrained(installed.folder / "export", trust_remote_code=True)
    assert type(model).__name__ == "BertForInforMinCL"
    card = (installed.folder / "export" / "README.md").read_text()
    assert f"InforMin-CL {__version__}" in card and "```bibtex" in card, "template and citations are there"

    fitted = installed("fit", "--model_name=export", f"--train_file={sentences_file}", "--output_dir=fitted")
    assert (
        'SentenceTransformer("fitted")' in fitted
        and "linear adapter" in (installed.folder / "fitted/README.md").read_text()
    )

    listed = installed("push", "run", "me/m", "--space=me/s", "--dry_run")
    assert "  app.py\n" in listed and "  informin/ (" in listed

    base = dict(model_name=bert, train_file=sentences_file, eval_pairs=pairs_file)
    base = {name: str(path) for name, path in base.items()}
    base |= dict(max_steps=2, eval_steps=2, per_device_train_batch_size=16, bf16=False, use_cpu=True)
    study = dict(base=base, recipes={"simcse": {"objective": "simcse"}}, seeds=[1])
    (installed.folder / "study.yaml").write_text(yaml.safe_dump(study))
    assert "[1/1] simcse seed 1: dev Spearman " in installed("study", "study.yaml")
    assert len(list(installed.folder.glob("outputs/studies/runs/simcse-*/seed1/run.json"))) == 1

    lines = (installed.folder / "witness.jsonl").read_text().splitlines()
    processes = [process for line in lines if len(process := json.loads(line)) > 1]
    assert len(processes) == 6, "one of them the study's training"
    elsewhere = {
        name: file
        for files in processes
        for name, file in files.items()
        if not file.startswith(f"{installed.environment}/")
    }
    packages = {f"informin.{path.parent.name}" for path in ROOT.glob("informin/*/__init__.py")}
    assert elsewhere == {} and packages <= {name for files in processes for name in files}
