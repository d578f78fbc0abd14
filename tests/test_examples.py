"""Each script in examples/ runs on a tiny model, and names what uv has to install for it."""

import re
import runpy
import sys

import pytest
from packaging.requirements import Requirement
from sentence_transformers import SentenceTransformer

from tests.conftest import ROOT, make_sentences
from trainer_informin import InforMinTrainer

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest requires it

SCRIPTS = ("train_preset", "train_custom_loss", "adapt", "distill")


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Return a function that runs a script on a model and 160 sentences. A training has two steps."""
    train = InforMinTrainer.train

    def train_shortly(trainer):
        trainer.args.max_steps = 2
        return train(trainer)

    monkeypatch.setattr(InforMinTrainer, "train", train_shortly)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    (tmp_path / "sentences.txt").write_text("\n".join(make_sentences(160)) + "\n")

    def start(name: str, model, *words: str) -> None:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", str(model), "sentences.txt", "out", *words])
        runpy.run_path(str(ROOT / f"examples/{name}.py"), run_name="__main__")

    return start


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_writes_a_model(run, st_mean, tmp_path, name):
    run(name, st_mean)
    assert SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(["a dog"]).shape[0] == 1


def test_an_index_is_searched(run, st_mean, capsys):
    query = make_sentences(160)[3]
    run("index_and_search", st_mean, query)
    assert query in capsys.readouterr().out


def test_every_script_is_tested():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {*SCRIPTS, "index_and_search"}


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_the_metadata_of_a_script_installs_this_package(path):
    """PEP 723: uv installs the package, which is all that the script imports, from this clone."""
    source = path.read_text()
    [block] = re.findall(r"(?m)^# /// script\n((?:#(?: .*)?\n)+)# ///$", source)  # as the PEP prints it
    metadata = tomllib.loads(re.sub(r"(?m)^# ?", "", block))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert metadata["requires-python"] == project["requires-python"]
    [needed] = map(Requirement, metadata["dependencies"])
    assert needed.name == project["name"] and needed.extras <= {*project["optional-dependencies"]}
    where = path.parent / metadata["tool"]["uv"]["sources"][needed.name]["path"]
    assert where.resolve() == ROOT
    imported = {*re.findall(r"(?m)^(?:from|import) (\w+)", source)}
    assert imported - sys.stdlib_module_names == {"informin"}
