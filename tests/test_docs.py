"""The documentation: links, paths and options exist, numbers match the results, and code runs."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.commands.launch import launch_command_parser
from transformers import AutoModel

import run_unsup
from informin import __version__
from informin.objectives import GUIDED, OBJECTIVES, Views
from informin.objectives.false_negatives import FalseNegatives
from informin.training.command_line import option_names
from informin.training.options import arguments_class
from tests.conftest import ROOT, raises_usage

PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LOG.md", "results/README.md")]
PAGES += [ROOT / "results" / "adaptation.md", *sorted((ROOT / "docs").glob("*.md"))]
LOGS = sorted((ROOT / "log").glob("*.md"))
TODAYS = [page for page in PAGES if page.name not in ("CHANGELOG.md", "LOG.md")]  # the others also describe the past
TOP = "informin|configs|docs|examples|model_cards|benchmarks|results|tests|tools"
WRITTEN = r"results/(a|b|bert)$|my_term.py$"  # created by the commands on the pages, or by the reader
# Options of other programs on our pages. --help and --config are not dataclass fields.
OTHERS = {
    "config_file",
    "num_processes",
    "nproc_per_node",
    "max_restarts",
    "no-deps",
    "require-hashes",
    "check",
    "help",
    "config",
}


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> list[str]:
    """Return the anchors of a page's headings, as on GitHub."""
    headings = re.findall(r"^#+ (.*)$", text(page), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", [*PAGES, *LOGS], ids=name)
def test_relative_links_exist(page):
    for target in re.findall(r"\]\((?!https:)([^)\s]+)\)", text(page)):
        path, _, anchor = target.partition("#")
        goal = page.parent / path if path else page
        assert goal.exists(), target
        assert not anchor or anchor in anchors(goal), target


@pytest.mark.parametrize("page", TODAYS, ids=name)
def test_paths_on_the_pages_exist(page):
    """Words such as configs/studies/main.yaml or run_unsup.py. A * matches any part, and arguments may follow."""
    words = set(re.findall(rf"(?<![\w/.$-])((?:{TOP})/[\w./*-]+|[\w*]+\.py)(?![\w/$\{{-])", text(page)))
    words = {word.rstrip("./") for word in words if "NAME" not in word and not re.match(WRITTEN, word)}
    assert [word for word in words if not [*ROOT.glob(word), *ROOT.glob(f"{word}.*")]] == []


def test_the_tree_in_the_readme_matches_the_repository():
    """It has every module of the root, the tree of docs/architecture.md every package, and nothing else."""
    lines = tree_under(ROOT / "README.md", "## Repository layout")
    listed = [path for word in lines for path in ROOT.glob(word)]
    assert len(listed) >= len(lines) > 8
    assert {path for path in listed if path.parent == ROOT and path.suffix == ".py"} == {*ROOT.glob("*.py")}
    packages = {path.parent.name for path in (ROOT / "informin").glob("*/__init__.py")}
    assert {*tree_under(ROOT / "docs" / "architecture.md", "## Packages")} == {"informin", *packages}


def tree_under(page: Path, heading: str) -> list[str]:
    """Return the names in the tree of files under a heading."""
    tree = re.search(r"```text\n(.*?)```", text(page).partition(heading)[2], re.DOTALL)[1]
    return [word.rstrip("/") for word in re.findall(r"^ *(\S+)(?:  +\S.*)?$", tree, re.MULTILINE)]


def test_the_readme_is_short_and_links_to_every_page():
    """Pages for contributors are linked from CONTRIBUTING.md."""
    readme = text(ROOT / "README.md")
    assert len(readme.splitlines()) < 190
    both = readme + text(ROOT / "CONTRIBUTING.md")
    assert [name(page) for page in PAGES[1:4] + PAGES[6:] if f"({name(page)})" not in both] == []


@pytest.mark.parametrize("page", TODAYS, ids=name)
def test_options_on_the_pages_exist(page):
    sources = "".join(
        text(path)
        for folder in (ROOT / "informin" / "cli", ROOT / "benchmarks", ROOT / "tools")
        for path in folder.glob("*.py")
    )
    known = {*re.findall(r'"--(\w+)"', sources), *option_names(), *OTHERS}
    named = re.findall(r"(?<![\w-])--([a-z][\w-]*)", text(page))
    assert [option for option in named if option not in known] == []


OTHER_STUDIES = (
    ("informin, lambda 0.04", "lambda-small", "lambda 0.04"),
    ("informin, the code's form", "reconstruction-form-small", "reference"),
)


def test_the_readme_has_the_results_of_the_studies():
    """Scores of simcse, and differences from it: a mean, with its interval for three seeds or more."""
    table = text(ROOT / "README.md").partition("| before training |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[1:]]
    found = {row[0].strip(): row[1:] for row in rows}
    names = {
        "simcse": "simcse",
        "informin, default": "informin, the code's form",
        "informin, the paper's form": "informin",
        "with weight 0.04": "informin, lambda 0.04",
        "with weight 0.01": "informin, lambda 0.01",
        "scd": "scd",
        "micse": "micse",
    }
    assert found.keys() == names.keys()
    studies = ("main-small", "lengths-long", "lengths-short-second-encoder", "lengths-long-second-encoder")
    studies += ("lengths-short-raw", "lengths-long-raw")
    for column, study in enumerate(studies):
        summary = json.loads(text(ROOT / "results" / "studies" / study / "summary.json"))
        paired = {entry["setting"]: entry for entry in summary["differences"] if entry["measure"] == "sts"}
        if column == 0:  # two rows were run in other studies
            for setting, name, its in OTHER_STUDIES:
                other = json.loads(text(ROOT / "results" / "studies" / name / "summary.json"))
                (paired[setting],) = (
                    one for one in other["differences"] if one["measure"] == "sts" and one["setting"] == its
                )
        sts = summary["settings"]["simcse"]["sts"]
        assert found["simcse"][column] == f"{sts['mean']:.2f} ± {sts['sd']:.2f}"
        for shown, setting in names.items():
            one = paired.get(setting)
            if one is None or one["n"] == 0:
                assert shown == "simcse" or found[shown][column] == "", (study, shown)
            elif one["n"] < 3:
                assert found[shown][column] == f"({one['mean']:+.2f})", (study, shown)
            else:
                low, high = one["t"]
                assert found[shown][column] == f"{one['mean']:+.2f} ({low:+.2f} to {high:+.2f})", (study, shown)


def test_the_readme_lists_all_objectives():
    """Names, and weights that turn their terms on. Guide terms, common to all objectives, are below the table."""
    guided = {term.weight for term in (*GUIDED, FalseNegatives)}
    assert guided <= set(re.findall(r"`(\w+)`", text(ROOT / "README.md").partition("A frozen guide encoder adds")[2]))
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", text(ROOT / "README.md"), re.MULTILINE)
    assert [row[0] for row in rows] == list(OBJECTIVES)
    for objective, always, further in rows:
        weights = {term.weight for term in OBJECTIVES[objective].terms} - {None}
        own = {option for option in OBJECTIVES[objective].defaults if option in weights}
        assert set(re.findall(r"`(\w+)`", always)) == own, objective
        assert set(re.findall(r"`(\w+)`", further)) == weights - own - guided, objective


def test_every_entry_of_the_log_has_a_verdict():
    verdicts = re.findall(r"^\* .+ \[(\S+)\]\(log/(\S+)#(\S+)\)$", text(ROOT / "LOG.md"), re.MULTILINE)
    entries = [(log.name, anchor) for log in LOGS for anchor in anchors(log)[1:]]
    assert sorted((file, anchor) for _, file, anchor in verdicts) == sorted(entries)
    dates = [date for date, _, _ in verdicts]
    assert dates == sorted(dates, reverse=True)
    assert [anchor for date, _, anchor in verdicts if not anchor.startswith(date)] == []


def test_the_changelog_begins_with_the_current_version():
    headings = re.findall(r"^## (.*)$", text(ROOT / "CHANGELOG.md"), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    assert re.fullmatch(rf"\[{re.escape(__version__)}\] - \d{{4}}-\d\d-\d\d", headings[1])
    groups = set(re.findall(r"^### (.*)$", text(ROOT / "CHANGELOG.md"), re.MULTILINE))
    assert groups <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_example_term_in_contributing_works(monkeypatch, tmp_path):
    """Its value, checks and options work, with one file and one line."""
    page = text(ROOT / "CONTRIBUTING.md").partition("## Add an objective")[2]
    file, line = re.findall(r"^```\w+\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[:2]
    written = {"__name__": "contributing", "VARIANCE_ROWS": {}}
    exec(file, written)
    exec("from informin.objectives.contrast import Contrast", written)
    exec("from informin.objectives.masked_lm import MaskedLM", written)
    exec("from informin.objectives import Objective", written)
    exec(f"added = {{{line.strip()}}}", written)
    monkeypatch.setitem(OBJECTIVES, "variance", written["added"]["variance"])

    options = dict(objective="variance", variance_weight=0.5, variance_target=3.0)
    args = arguments_class()(str(tmp_path), use_cpu=True, **options)
    contrast, term = args.terms
    assert (contrast.name, term.name, term.strength, term.variance_target) == ("contrast", "variance", 0.5, 3.0)
    assert {"variance_weight", "variance_target"} <= set(option_names())
    torch.manual_seed(0)
    views = Views(z1=torch.randn(5, 4), z2=torch.randn(5, 4), mask=torch.ones(5, 2))
    short = [max(0, 3 - np.sqrt(z[:, j].numpy().var(ddof=1) + 1e-4)) for z in (views.z1, views.z2) for j in range(4)]
    assert term.loss(views)["variance"].item() == pytest.approx(np.mean(short), rel=1e-5)
    with raises_usage(option="variance_target", found="is 0", needed="a number above 0"):
        arguments_class()(str(tmp_path), use_cpu=True, **options | {"variance_target": 0})


FIRST_SCREEN = 40  # lines
NAMES = (
    "BertForInforMinCL` and `RobertaForInforMinCL",
    "from informin import InforMinTrainer, InforMinTrainingArguments",
    "accelerate launch run_unsup.py --model_name bert-base-uncased",
    ", trust_remote_code=True)",
    "push_to_hub()",
    "informin.fit(",
)


def blocks(language: str) -> list[str]:
    """Return the blocks of code of the README in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text(ROOT / "README.md"), re.MULTILINE | re.DOTALL)


def replaced(code: str, values: dict[str, object]) -> str:
    for old, new in values.items():
        code = code.replace(old, str(new))
    return code


def test_the_first_screen_of_the_readme_shows_what_this_is():
    screen = "\n".join(text(ROOT / "README.md").splitlines()[:FIRST_SCREEN])
    assert [found for found in NAMES if found not in screen] == []
    assert "docs/training.md" in screen and "docs/search.md" in screen and screen.count("```") == 8


def test_the_install_line_of_the_readme_works(tmp_path):
    """pip finds the package and the extra in the checkout. It does not look for dependencies, which needs a network."""
    line = next(line for block in blocks("bash") for line in block.splitlines() if "pip install -e" in line)
    words = shlex.split(line, comments=True)
    assert words[:2] == ["pip", "install"]
    options = ["--dry-run", "--no-deps", "--no-build-isolation", "--no-index", f"--report={tmp_path / 'report.json'}"]
    copied = shutil.copytree(
        ROOT, tmp_path / "clone", ignore=shutil.ignore_patterns(".*", "outputs", "results", "docs")
    )
    done = subprocess.run([sys.executable, "-m", *words, *options], cwd=copied, capture_output=True, text=True)
    assert done.returncode == 0 and "does not provide the extra" not in done.stderr, done.stderr
    (found,) = json.loads((tmp_path / "report.json").read_text())["install"]
    assert found["metadata"]["name"] == "informin-cl" and found.get("requested_extras", ["st"]) == [
        "st"
    ]  # pip 23.0 has none


@pytest.mark.usefixtures("logged_in")
def test_every_python_block_of_the_readme_runs(monkeypatch, tmp_path, bert, hub):
    """One after the other, with a small encoder for both models, a Hub on this machine, and other folders."""
    monkeypatch.chdir(ROOT)
    values = {
        "bert-base-uncased": bert,
        "sentence-transformers/all-MiniLM-L6-v2": tmp_path / "my-model",
        "outputs/my-model": tmp_path / "my-model",
        '"better"': f'"{tmp_path / "better"}"',
        "InforMinTrainingArguments(": "InforMinTrainingArguments(use_cpu=True, disable_tqdm=True, ",
    }
    written: dict = {}
    found = blocks("python")
    assert len(found) == 4
    for code in found:
        exec(replaced(code, values), written)
    state, trained = written["trainer"].state, written["trainer"].model.base_model.state_dict()
    assert state.global_step == state.max_steps == 13  # an epoch of InforMin-CL's batches of 128
    assert {"model.safetensors", "README.md"} <= hub.files("alice/my-model").keys()
    loaded = written["model"].base_model.state_dict()
    assert all(torch.equal(tensor, trained[name]) for name, tensor in loaded.items())
    start = AutoModel.from_pretrained(bert, add_pooling_layer=False).state_dict()
    assert not any(torch.equal(trained[name], start[name]) for name in start if name.endswith("weight"))
    assert written["embeddings"].shape == (2, 32) and (tmp_path / "better" / "report.html").exists()


def test_the_launch_command_of_the_readme_trains(monkeypatch, tmp_path, bert):
    """The script that accelerate runs, with these words, a small encoder, and files instead of the Hub's data."""
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    words = shlex.split(next(line for line in lines if line.startswith("accelerate launch")), comments=True)
    args = launch_command_parser().parse_args([replaced(word, {"bert-base-uncased": bert}) for word in words[2:]])
    assert args.training_script == "run_unsup.py"
    data = ["--train_file=informin/general_sentences.txt", "--eval_pairs=examples/quickstart/pairs.tsv"]
    monkeypatch.chdir(ROOT)
    few = [f"--output_dir={tmp_path / 'run'}", "--max_steps=2", "--eval_steps=2", "--use_cpu", "--bf16=false"]
    assert run_unsup.main([*args.training_script_args, *data, *few]) == 0
    assert (
        AutoModel.from_pretrained(tmp_path / "run", trust_remote_code=True).config.informin["objective"] == "informin"
    )
