"""run_study.py: study files, running and resuming runs, and the statistics in the tables."""

import csv
import fcntl
import hashlib
import itertools
import json
import math
import os
import shlex
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml

import run_study
from informin.evaluation.senteval import STS_TASKS
from informin.evaluation.table import render
from informin.figures import run_plots
from informin.files import write_manifest
from informin.studies import runner as study_runner
from informin.studies.plan import check_options, read_study, without_paths
from informin.studies.runner import Progress, Runner, duration
from informin.studies.runs import runs_of
from informin.studies.table import intervals, name_of, notes, plot_rows, summarize, tables, verdict
from informin.training.command_line import option_names, parse
from informin.training.term_fields import term_options
from tests import forked
from tests.conftest import ROOT, raises_usage
from tests.senteval_data import small_counts, write_senteval

STUDIES = sorted((ROOT / "configs" / "studies").rglob("*.yaml"))
# Replaces `python -m informin`, without torch: writes the files of train and eval, and logs its arguments.
STUB = """
import json, os, pathlib, signal, sys, time
import yaml

here, argv, name = pathlib.Path(__file__).parent, sys.argv[2:], sys.argv[1]
behavior = json.loads((here / "behavior.json").read_text())
signals = []
signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
if name == "train":
    options = yaml.safe_load(pathlib.Path(argv[argv.index("--config") + 1]).read_text())
    folder = pathlib.Path(options["output_dir"])
else:
    folder = pathlib.Path(argv[argv.index("--model_name") + 1])
    own = folder.parent / "options.yaml"  # an untrained encoder has none
    options = yaml.safe_load(own.read_text()) if own.exists() else dict(temperature=0, seed=0)
call = dict(script=name, options=options, argv=argv, threads=os.environ.get("OMP_NUM_THREADS"))
call |= dict(gpu=os.environ.get("CUDA_VISIBLE_DEVICES"), leads_session=os.getsid(0) == os.getpid())
with open(here / "calls.jsonl", "a") as file:
    file.write(json.dumps(call) + chr(10))
print("the stub begins")
if [name, options["temperature"], options["seed"]] in behavior.get("fail", []):
    sys.exit("error: as requested")
end = time.monotonic() + (20 if [name, options["seed"]] in behavior.get("wait", []) else 0)
while time.monotonic() < end and not signals:
    time.sleep(0.01)
if signals:
    time.sleep(0.2)  # time for a second signal, which must not arrive
    (here / "signals.json").write_text(json.dumps(signals))
    sys.exit(128 + signals[0])
score = 70 + options["seed"] + 10 * options["temperature"]
if name == "train":
    (folder / "checkpoint-4").mkdir(parents=True, exist_ok=True)
    (folder / "modules.json").write_text("[]")
    history = [dict(step=2, spearman=1.0, alignment=9.0, uniformity=9.0)]
    history += [dict(step=4, spearman=score, alignment=0.25, uniformity=-2.5)]
    record = dict(schema=2, seed=options["seed"], options=dict(precision="fp32"), development="STS-B dev")
    record |= dict(history=history, steps=4, kept_step=4, environment=dict(torch="2", device="cpu", threads=1))
    record |= dict(base_model=dict(name="tiny", weights_sha256="ab" * 32), data=dict(sentences=100))
    record |= dict(informin="0.1.0", chosen=True)
    (folder / "training.json").write_text(json.dumps(record))
else:
    file = pathlib.Path(argv[argv.index("--output") + 1])
    tasks = json.loads(file.read_text())["tasks"] if file.exists() else {}
    asked = argv[argv.index("--tasks") + 1 : argv.index("--device")] if "--tasks" in argv else []
    asked = [task for task in asked if not task.startswith("--") and "/" not in task]
    titles = ["titles"] if "--labels" in argv else []
    undefined = [task for task in asked if [task, options["seed"]] in behavior.get("undefined", [])]
    entry = dict(n=10, truncated=0, data={"file": "0" * 64}, seconds=dict(encode=1.0, score=1.0))
    tasks |= {task: entry | dict(score=score - 10) for task in asked}
    tasks |= {task: entry | dict(score=None, error="undefined") for task in undefined}
    measures = dict(v_measure=score - 20, v_measure_sd=1.0, nearest_neighbor=score, nearest_10=1.0, few_shot=1.0)
    sample = dict(score=score - 20, kind="labels", measures=measures, data={"titles.tsv": "0" * 64}, classes=2)
    tasks |= {task: entry | sample for task in titles}
    average = {group: score - 10 if len(asked) > 6 and not undefined else None for group in ("sts", "transfer")}
    found = dict(schema=1, model="x", tasks=tasks, average=average, environment=dict(torch="2", device="cpu"))
    found |= dict(weights_sha256="cd" * 32, pooler="cls", normalized=False, whitening=None, max_length=64)
    file.write_text(json.dumps(found | dict(precision="fp32", split="test")))
    sys.exit(1 if undefined else 0)
"""


@pytest.fixture
def write(tmp_path, bert, sentences_file, pairs_file):
    """Return a function that writes a study of two recipes and two seeds. Keywords change keys; None removes one."""

    def write(name: str = "tiny", **changes) -> Path:
        base = dict(model_name=bert, train_file=sentences_file, eval_pairs=pairs_file)
        given = dict(
            base={key: str(value) for key, value in base.items()} | {"bf16": False, "use_cpu": True},
            recipes={"cold": {"temperature": 0.05}, "warm": {"temperature": 0.1}},
            seeds=[1, 2],
            baseline="cold",
        )
        given = {key: value for key, value in (given | changes).items() if value is not None}
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(given, sort_keys=False))
        return path

    return write


FRACTION = 0.005  # of SentEval's data


@pytest.fixture(scope="module")
def senteval(tmp_path_factory):
    return write_senteval(tmp_path_factory.mktemp("senteval"), FRACTION)


@pytest.fixture
def stub(tmp_path, monkeypatch, senteval):
    """Replace `informin train` and `informin eval` by a stub. Return its folder, for `behavior` and `calls`."""
    small_counts(monkeypatch, FRACTION)
    monkeypatch.setenv("SENTEVAL_DATA", str(senteval))
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "stub.py").write_text(STUB)
    (folder / "behavior.json").write_text("{}")
    monkeypatch.setattr(study_runner, "INFORMIN", [sys.executable, str(folder / "stub.py")])
    monkeypatch.setattr("informin.cli.study.visible_gpus", lambda: [])
    return folder


def calls(stub: Path) -> list[dict]:
    path = stub / "calls.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def done(stub: Path) -> list[tuple]:
    return [(call["script"], call["options"]["temperature"], call["options"]["seed"]) for call in calls(stub)]


def run_json(output: Path) -> list[Path]:
    return sorted(output.glob("runs/*/seed*/run.json"))


# Study files


def test_grid_combines_every_recipe_with_every_value(write):
    study = read_study(
        write(
            grid={"per_device_train_batch_size": [64, 128], "learning_rate": ["1e-4", 0.003]}, tasks=["stsb", "STS12"]
        )
    )
    assert [setting.name for setting in study.settings] == [
        f"{recipe}, batch {batch}, lr {rate}"
        for batch in (64, 128)
        for rate in ("1e-4", "0.003")
        for recipe in ("cold", "warm")
    ]
    last = study.settings[-1]
    assert (last.recipe, last.baseline) == ("warm", "cold, batch 128, lr 0.003")
    assert last.options["per_device_train_batch_size"] == 128 and last.options["temperature"] == 0.1
    assert study.settings[0].baseline is None
    assert study.tasks == ["STS12", "STS-B"] and study.measures == ["STS12", "STS-B"]


def test_precedence_of_options(write, tmp_path):
    start = dict(seed=7, output_dir="x", temperature=1, mlm_weight=1, learning_rate=1, weight_decay=1, adam_beta1=0.5)
    (tmp_path / "start.yaml").write_text(yaml.safe_dump(start))
    study = read_study(
        write(
            base=dict(
                model_name="base",
                config=str(tmp_path / "start.yaml"),
                **dict.fromkeys(["temperature", "mlm_weight", "weight_decay", "attention_mi_weight"], 2),
            ),
            recipes={
                "a": dict(temperature=4, mlm_weight=4, attention_mi_weight=4),
                "b": dict(mlm_weight=None, attention_mi_weight=None, adam_beta1=0.6),
            },
            grid=dict(temperature=[5]),
            baseline=None,
        ),
        ["model_name=set", "mlm_weight=3", "weight_decay=3", "max_steps=9"],
    )
    first, second = (setting.options for setting in study.settings)
    expected = dict(temperature=5, mlm_weight=3, weight_decay=3, learning_rate=1, adam_beta1=0.5)
    assert first == expected | dict(model_name="set", max_steps=9, attention_mi_weight=4)
    assert second["mlm_weight"] == 3 and second["adam_beta1"] == 0.6 and "attention_mi_weight" not in second


def test_grid_shows_files_without_folders(write, tmp_path):
    study = read_study(write(grid={"train_file": [str(tmp_path / "a.txt"), [str(tmp_path / "b.txt"), "c.txt"]]}))
    assert study.settings[0].name == "cold, train file a.txt"
    assert study.settings[2].name == "cold, train file ['b.txt', 'c.txt']"


def test_measures(write):
    assert read_study(write()).measures == ["dev"]
    assert read_study(write(tasks=["transfer", "sts"])).measures == ["sts", "transfer"]
    assert read_study(write(tasks=["sts", "MR"])).measures == ["sts", "MR"]
    study = read_study(write(tasks=["MR"], labels=["x/titles.tsv"], retrieval=["faq.jsonl.gz"]))
    own = ["titles/v_measure", "titles/nearest_neighbor", "faq/mrr_10", "faq/ndcg_10"]
    assert study.measures == ["MR", *own] and study.scored == ["MR", "titles", "faq"]
    assert read_study(write(labels=["titles.tsv"])).measures == own[:2]
    names = ["titles V-measure", "titles 1-NN", "faq MRR@10", "faq nDCG@10"]
    assert [name_of(measure) for measure in own] == names


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_file_names_of_dots_are_rejected(write, name):
    path = write(f"{name}.") if name else write("")
    with raises_usage(found=f"a folder of the file's name, which cannot be '{path.stem}'", fix="Rename the file."):
        read_study(path)


@pytest.mark.parametrize(
    "grid, seeds, found",
    [
        (
            {"learning_rate": [*range(1, 101)], "temperature": [*range(1, 101)]},
            [1],
            "20,000 settings (2 recipes x 100 ",
        ),
        (
            {"learning_rate": [*range(1, 501)]},
            [*range(11)],
            "1,000 settings (2 recipes x 500 learning_rate) and 11 seeds",
        ),
        ({"temperature": [1]}, [*range(5001)], "2 settings (2 recipes x 1 temperature) and 5,001 seeds"),
    ],
)
def test_large_studies_are_rejected(write, grid, seeds, found):
    with raises_usage(found=found, needed="up to 1,000 settings and 10,000 runs", fix="Split the study."):
        read_study(write(grid=grid, seeds=seeds))


def test_files_replace_samples_of_the_same_name(write):
    path = write(labels=["x/titles.tsv"], retrieval=["faq.tsv"])
    found = read_study(path, files=["/y/titles.tsv"]).samples
    assert found == {"titles": ("labels", "/y/titles.tsv"), "faq": ("retrieval", "faq.tsv")}
    needed = "files with these names: titles.tsv, faq.tsv"
    with raises_usage(option="labels", found=f"/y/other.tsv: {path} lists no such file", needed=needed):
        read_study(path, files=["/y/other.tsv"])


def test_samples_are_read_before_anything_runs(write, stub, tmp_path, capsys):
    assert run_study.main([str(write(labels=["no/a.tsv"])), "--output", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == "error: --labels: no/a.tsv does not exist. Check the path.\n"
    assert calls(stub) == []


def test_encoders_before_training(write, bert, roberta):
    """One per model, pooling and prompt, whatever else varies."""
    (one,) = read_study(write(labels=["a.tsv"], before=True, grid={"learning_rate": [0.1, 0.2]})).before
    assert (one.name, one.trained, one.options["model_name"]) == ("before training", False, str(bert))
    assert one.options["use_cpu"] and "train_file" not in one.options
    grid = {"model_name": [str(bert), str(roberta)], "learning_rate": [0.1, 0.2]}
    names = ["before training, model_name tiny-bert", "before training, model_name tiny-roberta"]
    study = read_study(write(labels=["a.tsv"], before=True, grid=grid))
    assert [setting.name for setting in study.before] == names
    assert len({setting.digest for setting in (*study.before, *study.settings)}) == 10
    assert read_study(write(labels=["a.tsv"], before=False)).before == []
    assert replace(one, trained=True).digest != one.digest, "a run without options would be in the same folder"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(recipe={}), "no such key: recipe; expected keys of: title, base, recipes, grid, seeds"),
        (dict(recipes=None), "found no recipes; expected a key recipes, a mapping of names to options"),
        (dict(recipes=["simcse"]), "recipes is list; expected a mapping"),
        (dict(recipes={"a": {"temprature": 1}}), "recipe a: no such option: temprature. Did you mean temperature?"),
        (dict(recipes={"a": {"seed": 1}}), "recipe a sets seed, which the study sets for each run. Remove seed."),
        (dict(base={"output_dir": "x"}), "base sets output_dir"),
        (dict(grid={"learning_rates": [1]}), "grid: no such option: learning_rates. Did you mean learning_rate?"),
        (dict(grid={"seed": [1, 2]}), "grid sets seed"),
        (dict(grid={"mlm_weight": 1}), "grid: mlm_weight is 1; expected a list of values"),
        (dict(baseline="hot"), "baseline: no such recipe: hot; expected recipes of: cold, warm."),
        (
            dict(baseline={"warm": "clod"}),
            "baseline: no such recipe: clod; expected recipes of: cold",
        ),
        (dict(baseline={"warm": "warm"}), "baseline: warm would be compared with itself"),
        (dict(seeds=None), "seeds: found None; expected a list of integers"),
        (dict(seeds=[]), "seeds: found []; expected a list of integers"),
        (dict(seeds=[1, 2.5]), "seeds: found [1, 2.5]"),
        (dict(seeds=[1, 2, 1]), "seeds: 1 repeated; expected different seeds. Remove the duplicates."),
        (dict(tasks=["sst"]), "tasks contains 'sst'; expected all, sts, transfer or names"),
        (dict(tasks="sts"), "tasks: found 'sts'; expected a list"),
        (dict(labels="a.tsv"), "labels: found 'a.tsv'; expected a list of files"),
        (dict(labels=["a.tsv"], retrieval=["b/a.csv"]), "retrieval: a task a already exists. Rename b/a.csv."),
        (dict(labels=["STS12.tsv"]), "labels: a task STS12 already exists. Rename STS12.tsv."),
        (dict(before="yes please"), "before: found 'yes please'; expected true or false"),
        (dict(before=True), "before is set, but the study has nothing to score. Add tasks, labels or retrieval."),
        (
            dict(recipes={"a": {"learning_rate": "3e-5"}, "b": {"learning_rate": 0.00003}}, baseline=None),
            "a and b have the same options. Leave one out.",
        ),
        (
            dict(grid={"train_file": ["/a/x.txt", "/b/x.txt"]}),
            "two settings have the name cold, train file x.txt. Rename the values in which they differ.",
        ),
        (dict(grid={"mlm_weight": [1, "1.0"]}), "cold, mlm weight 1 and cold, mlm weight 1 have the same options"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_invalid_study_files_are_rejected(write, stub, tmp_path, capsys, changes, message):
    path = write(**changes)
    assert run_study.main([str(path), "--output", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {path}: ") and message in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "learning_rate"], "--set is 'learning_rate'; expected option=value."),
        (["--set", "lr=1"], "--set: no such option: lr. Correct or remove it."),
        (["--set", "seed=1"], "--set sets seed"),
        (["--set", "seed=1", "--set", "max_steps=1"], "--set sets seed"),
        (["--set", "mlm_weight=1"], "--set mlm_weight: the grid of"),
        (["--seeds", "3", "3"], "--seeds: 3 repeated"),
        (["--jobs", "0"], "--jobs is 0; expected 1 or more"),
        (["--report"], "has no finished runs of tiny. Run the study without --report first."),
        (["--output", "{file}/x"], "cannot be created (Not a directory). Choose another folder."),
    ],
)
def test_invalid_options_are_rejected(write, stub, tmp_path, capsys, options, message):
    path = write(grid={"mlm_weight": [0.5]})
    options = [option.format(file=path) for option in options]
    assert run_study.main([str(path), "--output", str(tmp_path / "out"), *options]) == 2
    assert message in capsys.readouterr().err


def test_missing_study_file_is_rejected(tmp_path, capsys):
    assert run_study.main([str(tmp_path / "nowhere.yaml")]) == 2
    assert "nowhere.yaml cannot be read: " in capsys.readouterr().err


def test_duplicate_recipes_are_rejected(tmp_path, capsys):
    path = tmp_path / "twice.yaml"
    path.write_text("recipes:\n  a: {mlm_weight: 0.1}\n  b: {}\n  a: {mlm_weight: 0.2}\nseeds: [1]\n")
    assert run_study.main([str(path)]) == 2
    error = capsys.readouterr().err
    assert "twice.yaml cannot be read: found 'a' twice" in error and "line 4, column 3" in error


def test_file_name_runs_is_rejected(write):
    with raises_usage(found="the name `runs` is reserved", fix="Rename the file."):
        read_study(write("runs"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0}, "warm: --temperature is 0.0; expected a number above 0"),
        ({"learning_rate": "fast"}, "warm: --learning_rate is 'fast'; expected a number"),
        ({"objective": "informed"}, "warm: --objective is 'informed'; expected one of: informin, simcse"),
        ({"model_name": "no/such-model"}, "warm: --model_name no/such-model cannot be loaded"),
        ({"eval_strategy": False}, "warm: its runs are not scored; expected tasks, labels or retrieval"),
    ],
    ids=str,
)
def test_mistake_in_the_last_recipe_is_found_before_the_first_run(write, stub, tmp_path, capsys, options, message):
    path = write(recipes={"cold": {"temperature": 0.05}, "warm": options})
    assert run_study.main([str(path), "--output", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert calls(stub) == [] and not (tmp_path / "out").exists()


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: str(path.relative_to(ROOT / "configs" / "studies")))
def test_shipped_studies_parse(path, bert):
    study = read_study(path, [f"model_name={bert}"])
    check_options(study)
    assert study.title != study.name
    if path.stem.endswith("-small"):
        assert all(setting.options["warmup_steps"] == 0 for setting in study.settings)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_settings_of_a_shipped_study_differ_only_in_named_options(path, bert):
    """Published defaults of a single objective would otherwise confound the comparison."""
    given, study = yaml.safe_load(path.read_text()), read_study(path, [f"model_name={bert}"])
    named = {name for options in given["recipes"].values() for name in options} | given.get("grid", {}).keys()
    named |= {*term_options(), "objective", "projection_head", "view_dropout"}
    named.add("padding_free")  # affects only rounding, and is off for objectives that use all hidden states
    if path.stem == "main":
        named.add("warmup_steps")  # differs between papers
    values = {}
    for setting in study.settings:
        _, *groups = parse([], setting.options | {"output_dir": "same"})
        for name, value in {name: value for group in groups for name, value in vars(group).items()}.items():
            if name in option_names():
                values.setdefault(name, set()).add(str(value))
    assert "warmup_steps" in values and {name for name, different in values.items() if len(different) > 1} <= named


# Folders of runs


def digest(write, **options) -> str:
    (setting,) = read_study(write(base={}, recipes={"a": options}, baseline=None)).settings
    return setting.digest


def test_digest_depends_on_options_but_not_on_their_spelling(write):
    """With [CLS] pooling, the digest has not changed since other poolings were added."""
    expected = hashlib.sha256(b'{"bf16": false, "learning_rate": 3e-05, "max_steps": 80, "train_file": "a.txt"}')
    spellings = [
        dict(learning_rate=0.00003, max_steps=80, bf16=False, train_file="a.txt"),
        dict(train_file=["a.txt"], bf16="false", learning_rate="3e-5", max_steps=80.0, mlm_weight=None),
        dict(max_steps="80", learning_rate="0.3e-4", train_file="a.txt", bf16="no"),
    ]
    spellings = [options | dict(pooler="cls") for options in spellings]
    spellings.append(spellings[0] | dict(base_model="me/encoder", language="en"))  # used only in model cards
    assert {digest(write, **options) for options in spellings} == {expected.hexdigest()[:8]}
    assert len({digest(write, masked_views=given) for given in (True, "true", "yes", [True])}) == 1
    others = [dict(learning_rate=0.00003), dict(learning_rate=0.0003), dict(train_file=["a", "b"])]
    others += [dict(train_file=["b", "a"]), dict(mlm_weight=1), dict(masked_views=True), dict(max_steps=1)]
    others += [dict(max_steps=1, pooler="cls"), dict(max_steps=1, pooler="mean")]
    assert len({digest(write, **options) for options in others}) == len(others)


def test_folders_are_found_by_digest(write, tmp_path):
    study = read_study(write(recipes={"SCD, 50% / ä": {}}, baseline=None))
    (first, _) = runs_of(study, tmp_path)
    assert first.folder == tmp_path / "runs" / f"scd-50-{study.settings[0].digest}" / "seed1"
    other = tmp_path / "runs" / f"other-name-{study.settings[0].digest}"
    other.mkdir(parents=True)
    assert [run.folder for run in runs_of(study, tmp_path)] == [other / "seed1", other / "seed2"]
    (run, _) = runs_of(read_study(write(recipes={"ä": {"temperature": 1}}, baseline=None)), tmp_path)
    assert run.folder.parent.name == f"run-{run.setting.digest}"


def test_options_can_be_longer_than_a_file_name():
    assert without_paths(["x" * 5_000]) == ["x" * 5_000]


def test_only_existing_paths_are_shortened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "informin").symlink_to("data")
    assert without_paths({"objective": "informin", "model_name": "./informin"}) == {
        "objective": "informin",
        "model_name": "informin",
    }
    given = {"a": "/home/me/x.txt", "b": ["data", "./data", "~/y"], "c": "me/model", "d": {"e": 0.5}, "f": "no"}
    assert without_paths(given) == {
        "a": "x.txt",
        "b": ["data", "data", "y"],
        "c": "me/model",
        "d": {"e": 0.5},
        "f": "no",
    }


# Running


def test_complete_study(write, stub, tmp_path, capsys):
    """Runs are ordered by seed, files and report are complete, and no run is repeated by any study."""
    output = tmp_path / "out"
    arguments = ["--output", str(output)]
    assert run_study.main([str(write(tasks=["sts"])), *arguments]) == 0
    both = ("train", "eval")
    assert done(stub) == [(script, t, seed) for seed in (1, 2) for t in (0.05, 0.1) for script in both]
    out = capsys.readouterr().out
    assert "4 runs, 0 of them already finished\n[1/4] cold seed 1 starts\n[1/4] cold seed 1: STS average 61.50 (" in out
    assert "); 3 left, about " in out and "[4/4] warm seed 2: STS average 63.00 (" in out
    finished = json.loads(run_json(output)[0].read_text())
    assert finished["seed"] == 1 and finished["dev"]["spearman"] == 71.5 and finished["averages"]["sts"] == 61.5
    assert finished["dev"] == {"name": "STS-B dev", "spearman": 71.5, "alignment": 0.25, "uniformity": -2.5}
    assert finished["scores"]["STS12"] == 61.5 and finished["seconds"]["training"] > 0 < finished["seconds"]["scoring"]
    assert finished["options"]["model_name"] == "tiny-bert" and str(tmp_path) not in json.dumps(finished)
    assert list(output.glob("runs/*/*/model/checkpoint-*")) == []
    assert {path.name for path in (output / "tiny").iterdir()} == {
        *("table.md", "summary.json", "plot.png", "plot.svg", "plot.csv")
    }

    before = done(stub)
    assert run_study.main([str(write(tasks=["sts"])), *arguments]) == 0
    assert done(stub) == before and "4 runs, 4 of them already finished" in capsys.readouterr().out
    study = write("other", recipes={"same": {"temperature": "5e-2"}, "new": {"temperature": 0.2}}, baseline=None)
    assert run_study.main([str(study), *arguments, "--seeds", "1", "--jobs", "2"]) == 0
    assert done(stub)[len(before) :] == [("train", 0.2, 1)]
    assert "2 runs, 1 of them already finished\n[2/2] new seed 1 starts\n" in capsys.readouterr().out


@pytest.fixture
def titles(tmp_path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "titles.tsv").write_text("text\tlabel\na\tx\nb\tx\nc\ty\n")
    return tmp_path / "data" / "titles.tsv"


def test_samples_and_encoder_before_training(write, stub, tmp_path, titles, bert, capsys):
    """The encoder is scored once, before the runs. All measures are saved, and the first two are compared."""
    path, output = write(labels=["elsewhere/titles.tsv"], tasks=["MR"], before=True), tmp_path / "out"
    arguments = [str(path), "--output", str(output), "--labels", str(titles)]
    assert run_study.main(arguments) == 0
    first, *others = calls(stub)
    assert first["script"] == "eval" and len(others) == 8
    asked = ["--model_name", str(bert), "--tasks", "MR", "--labels", str(titles), "--device", "cpu"]
    assert first["argv"][: len(asked)] == asked
    out = capsys.readouterr().out
    assert "5 runs, 0 of them already finished\n[1/5] before training is scored\n[1/5] before training: MR 60.0" in out
    assert "titles V-measure 50.00, titles 1-NN 70.00 (" in out
    table = out[out.index("tiny: mean") :].split("\n\n")[0].splitlines()
    assert table[1].split("  ")[-1].strip() == "uniformity" and "titles V-measure" in table[1]
    assert table[2].split() == ["before", "training", "-", "60.00", "50.00", "70.00", "-", "-"]
    assert table[3].startswith("cold") and "52.00 ± 0.71 (2)  72.00 ± 0.71 (2)" in table[3]
    assert "titles 1-NN: difference, paired by seed" in out
    (before,) = output.glob("runs/before-training-*/once/run.json")
    kept = json.loads(before.read_text())
    assert (kept["seed"], kept["training"], kept["data"]) == (None, None, None)
    assert kept["options"]["model_name"] == "tiny-bert" and kept["base_model"]["name"] == "tiny-bert"
    finished = json.loads(run_json(output)[0].read_text())["samples"]["titles"]
    assert finished["measures"].keys() >= {"v_measure", "v_measure_sd", "nearest_10", "few_shot"} and finished["data"]
    summary = json.loads((output / "tiny" / "summary.json").read_text())
    assert summary["samples"] == {"titles": ["labels", "titles.tsv"]} and summary["missing"] == []
    assert summary["before"]["before training"]["titles/nearest_neighbor"] == 70

    assert run_study.main(arguments) == 0 and len(calls(stub)) == 9
    assert "5 runs, 5 of them already finished" in capsys.readouterr().out


def test_added_tasks_are_scored_without_training(write, stub, tmp_path, capsys):
    arguments = ["--output", str(tmp_path / "out"), "--seeds", "1"]
    assert run_study.main([str(write(tasks=["STS12"])), *arguments]) == 0
    capsys.readouterr()
    assert run_study.main([str(write(tasks=["STS12", "MR"])), *arguments]) == 0
    assert [call["script"] for call in calls(stub)] == ["train", "eval"] * 2 + ["eval"] * 2
    assert (
        "[2/2] warm seed 1 is already trained; scoring\n[2/2] warm seed 1: STS12 62.00, MR 62.00 ("
        in capsys.readouterr().out
    )
    asked = calls(stub)[-1]["argv"]
    assert asked[asked.index("--tasks") :][:4] == ["--tasks", "MR", "--device", "cpu"]
    assert json.loads(run_json(tmp_path / "out")[0].read_text())["scores"].keys() == {"STS12", "MR"}


def test_a_failed_run_does_not_stop_the_others(write, stub, tmp_path, capsys):
    (stub / "behavior.json").write_text(json.dumps({"fail": [["train", 0.05, 1], ["eval", 0.1, 2]]}))
    arguments = [str(write(tasks=["MR"])), "--output", str(tmp_path / "out")]
    assert run_study.main(arguments) == 1
    out = capsys.readouterr().out
    assert "[1/4] cold seed 1 failed with exit code 1; 3 left\n    " in out
    assert "    the stub begins\n    error: as requested\n    (last lines of " in out
    assert "Missing: cold seed 1 failed with exit code 1. Run the same command again to retry." in out
    assert "Missing: warm seed 2" in out and out.count("Missing") == 2
    assert len(run_json(tmp_path / "out")) == 2
    assert "warm - cold, MR: without seeds that are missing or undefined in one of the two: 1, 2." in out
    (stub / "behavior.json").write_text("{}")
    before = len(calls(stub))
    assert run_study.main(arguments) == 0
    assert done(stub)[before:] == [("train", 0.05, 1), ("eval", 0.05, 1), ("eval", 0.1, 2)]


def test_nohup_is_respected():
    """A study continues after its terminal is closed."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Runner([], False, 1, []) as runner:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) == runner._forward
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_interrupted_run_resumes_or_restarts(write, stub, tmp_path, capsys):
    """Resumes from a complete checkpoint; deletes incomplete checkpoints and models."""
    path, output = write(), tmp_path / "out"
    cold, warm = (run for run in runs_of(read_study(path), output) if run.seed == 1)
    (cold.model / "checkpoint-2").mkdir(parents=True)
    write_manifest(cold.model / "checkpoint-2")
    (warm.model / "checkpoint-2").mkdir(parents=True)
    (warm.model / "model.safetensors").write_text("half")
    (warm.folder / "results.json").write_text("of other weights")
    assert run_study.main([str(path), "--output", str(output), "--seeds", "1"]) == 0
    first, second = (call["argv"] for call in calls(stub))
    assert first[-2:] == ["--resume_from_checkpoint", "last"] and "--resume_from_checkpoint" not in second
    assert "cold seed 1 resumes from its checkpoint" in capsys.readouterr().out
    assert not (warm.model / "model.safetensors").exists() and not warm.results.exists()


def test_undefined_score_is_a_result(write, stub, tmp_path, capsys):
    """The run is finished. The score is null in run.json and a dash in the table, with a note."""
    (stub / "behavior.json").write_text(json.dumps({"undefined": [["MR", 1], ["MR", 2], ["STS12", 2]]}))
    arguments = [str(write(tasks=["STS12", "MR"])), "--output", str(tmp_path / "out")]
    assert run_study.main(arguments) == 0
    out = capsys.readouterr().out
    assert "[1/4] cold seed 1: STS12 61.50, MR undefined (" in out and "Missing" not in out
    assert "cold seed 2: STS12, MR undefined." in out and "warm seed 1: MR undefined." in out
    assert "warm - cold, STS12: without seeds that are missing or undefined in one of the two: 2." in out
    assert "| cold | 72.00 ± 0.71 (2) | 61.50 (1) |  - |" in (tmp_path / "out" / "tiny" / "table.md").read_text()
    assert [json.loads(path.read_text())["scores"]["MR"] for path in run_json(tmp_path / "out")] == 4 * [None]
    before = done(stub)
    assert run_study.main(arguments) == 0
    assert done(stub) == before and "4 runs, 4 of them already finished" in capsys.readouterr().out


def test_task_data_is_checked_before_training(write, stub, tmp_path, capsys, monkeypatch):
    path, arguments = write(tasks=["MR"]), ["--output", str(tmp_path / "out")]
    monkeypatch.setenv("SENTEVAL_DATA", str(tmp_path / "nowhere"))
    assert run_study.main([str(path), *arguments]) == 2
    assert "does not exist; expected SentEval's data/downstream" in capsys.readouterr().err
    assert calls(stub) == [] and not (tmp_path / "out").exists()
    data = write_senteval(tmp_path / "own", FRACTION)
    arguments += ["--set", f"senteval_dir={data}"]
    assert run_study.main([str(path), *arguments]) == 0
    (data / "MR").rename(data / "elsewhere")
    assert run_study.main([str(path), *arguments]) == 0, "all runs are finished, so the data is not needed"


def test_checkpoints_are_kept_on_demand(write, stub, tmp_path):
    assert run_study.main([str(write()), "--output", str(tmp_path), "--seeds", "1", "--keep_checkpoints"]) == 0
    assert len(list(tmp_path.glob("runs/*/*/model/checkpoint-4"))) == 2


def test_run_locked_by_another_process_is_skipped(write, stub, tmp_path, capsys):
    path = write()
    run = runs_of(read_study(path), tmp_path)[0]
    run.folder.mkdir(parents=True)
    with open(run.folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run_study.main([str(path), "--output", str(tmp_path), "--seeds", "1"]) == 1
    out = capsys.readouterr().out
    assert "[1/2] cold seed 1 is being run by another process; 1 left\n" in out
    assert "Missing: cold seed 1 is being run by another process. Run the same command again to retry." in out
    assert done(stub) == [("train", 0.1, 1)]
    assert run_study.main([str(path), "--output", str(tmp_path), "--seeds", "1"]) == 0


def test_run_finished_by_another_process_is_not_repeated(write, stub, tmp_path):
    study = read_study(write())
    run = runs_of(study, tmp_path)[0]
    runner = Runner(study.tasks, False, 1, [])
    assert runner.do(run, 0) == "finished"
    run.model.rename(run.folder / "deleted")  # only run.json shows that the run is finished
    assert runner.do(run, 0) == "finished" and len(calls(stub)) == 1


@pytest.mark.parametrize("jobs", [1, 2])
def test_signal_reaches_each_subprocess_once_and_no_run_starts(write, stub, tmp_path, capsys, jobs):
    (stub / "behavior.json").write_text(json.dumps({"wait": [["train", 1]]}))

    def interrupt():
        while len(calls(stub)) < jobs:
            time.sleep(0.01)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)

    previous = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=interrupt, daemon=True).start()
    assert run_study.main([str(write()), "--output", str(tmp_path / "out"), "--jobs", str(jobs)]) == 143
    assert "Interrupted. Finished runs are kept. Run the same command again to resume." in capsys.readouterr().err
    assert json.loads((stub / "signals.json").read_text()) == [signal.SIGTERM]
    assert all(call["leads_session"] for call in calls(stub)), "otherwise Ctrl-C in a terminal would reach it twice"
    assert len(calls(stub)) == jobs and run_json(tmp_path / "out") == []
    assert signal.getsignal(signal.SIGTERM) == previous


@pytest.mark.parametrize("gpus", [[], ["3", "5"]], ids=["cpu", "gpus"])
def test_jobs_share_the_machine(write, stub, tmp_path, monkeypatch, gpus):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setattr(os, "cpu_count", lambda: 9)
    monkeypatch.setattr("informin.cli.study.visible_gpus", lambda: gpus)
    assert run_study.main([str(write()), "--output", str(tmp_path), *([] if gpus else ["--jobs", "2"])]) == 0
    made = calls(stub)
    assert len(made) == 4
    if gpus:
        assert {call["gpu"] for call in made} == {"3", "5"} and {call["threads"] for call in made} == {None}
    else:
        assert {call["threads"] for call in made} == {"4"}


def test_visible_gpus(monkeypatch):
    monkeypatch.setattr(study_runner.torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert study_runner.visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert study_runner.visible_gpus() == ["4", "7"]


def test_duration_format():
    assert [duration(seconds) for seconds in (0.4, 59.6, 192, 7500)] == ["0 s", "1 min 0 s", "3 min 12 s", "2 h 5 min"]


def test_remaining_time(write, stub, tmp_path):
    """Estimated from finished runs of the same setting, otherwise of all settings, divided by the jobs in use."""
    study = read_study(write(recipes={name: {"temperature": i + 1} for i, name in enumerate("abc")}, baseline="a"))
    runs = runs_of(study, tmp_path)
    runner = Runner(study.tasks, False, 1, [])

    def finish(i: int, training: float) -> None:
        assert runner.do(runs[i], 0) == "finished"
        file = runs[i].folder / "run.json"
        seconds = {"training": training, "scoring": 10}
        file.write_text(json.dumps(json.loads(file.read_text()) | {"seconds": seconds}))

    assert Progress(study, runs, runner, 2)._rest() == "6 left"
    finish(0, 90)  # a seed 1
    finish(1, 290)  # b seed 1; left: c seed 1, then a, b, c of seed 2
    progress = Progress(study, runs, runner, 2)
    assert progress._rest() == f"4 left, about {duration((200 + 100 + 300 + 200) / 2)}"
    finish(3, 190)
    progress._end("", runs[3], "finished", 200.0)
    assert progress._rest() == f"3 left, about {duration((200 + 300 + 200) / 2)}"
    progress._end("", runs[5], "was stopped", 1.0)
    progress._end("", runs[2], "was stopped", 1.0)
    assert progress._rest() == f"1 left, about {duration(300)}"
    finish(4, 290)
    progress._end("", runs[4], "finished", 300.0)
    assert progress._rest() == "0 left"


def test_killed_study_resumes(write, tmp_path):
    """SIGKILL during training with the real scripts: the subprocess keeps the lock, and training resumes."""
    data = write_senteval(tmp_path / "senteval")
    base = yaml.safe_load(write().read_text())["base"]
    base |= dict(per_device_train_batch_size=16, max_steps=60, eval_steps=10, senteval_dir=str(data))
    path = write(base=base, recipes={"simcse": {"objective": "simcse"}}, baseline=None, seeds=[3], tasks=["STS-B"])
    (run,) = runs_of(read_study(path), tmp_path / "out")
    arguments = [str(path), "--output", str(tmp_path / "out")]
    parent = forked.script("run_study.py", arguments, log=tmp_path / "study.txt")
    end = time.monotonic() + 90
    while not (run.model / "checkpoint-10" / "manifest.json").exists():
        assert parent.poll() is None and time.monotonic() < end, (run.folder / "log.txt").read_text()
        time.sleep(0.01)
    (child,) = psutil.Process(parent.pid).children()
    child.suspend()
    parent.kill()
    parent.wait()
    with open(run.folder / "lock", "w") as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        child.kill()
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the subprocess dies
    assert not (run.model / "training.json").exists()

    again = forked.run(forked.script("run_study.py", arguments))
    assert again.returncode == 0, again.stdout + again.stderr
    assert "[1/1] simcse seed 3 resumes from its checkpoint\n[1/1] simcse seed 3: STS-B " in again.stdout
    finished = json.loads((run.folder / "run.json").read_text())
    assert finished["steps"] == 60 and finished["seed"] == 3 and finished["training"]["objective"] == "simcse"
    assert f"{finished['scores']['STS-B']:.2f} (1)" in again.stdout and finished["averages"]["sts"] is None
    assert finished["dev"]["name"] == "pairs.tsv" and math.isfinite(finished["dev"]["uniformity"])
    log = (run.folder / "log.txt").read_text()
    assert log.count("$ ") == 3 and log.count("--resume_from_checkpoint last") == 1


# Statistics

SCORES = {"cold": [70.0, 71.0, 72.0], "warm": [71.0, 73.0, 75.0], "mild": [70.5, 70.5, 72.0]}


def record(sts: float | None, dev: float = 80.0) -> dict:
    """Return the parts of run.json that tables use."""
    return {
        "dev": {"alignment": 0.25, "uniformity": -2.5, "spearman": dev, "name": "STS-B dev"},
        "averages": {"sts": sts, "transfer": None},
        "scores": dict.fromkeys(STS_TASKS, sts),
        "base_model": {"weights_sha256": "53aa5117" + 56 * "0"},
        "data": {"sentences": 5120},
        "precision": "fp32",
        "environment": {"torch": "2.9", "numpy": "2.4", "device": "cpu x86_64", "threads": 1},
    }


@pytest.fixture
def three_recipes(write):
    """Return a study of three recipes and three seeds, and its records with STS averages."""
    recipes = {name: {"temperature": 1 + i} for i, name in enumerate(SCORES)}
    study = read_study(write(recipes=recipes, seeds=[1, 2, 3], tasks=["sts"], title="Three"))
    records = {(name, i + 1): record(x, 80 + i) for name, values in SCORES.items() for i, x in enumerate(values)}
    return study, records


def test_table_matches_manual_computation(three_recipes):
    means, differences = tables(summarize(*three_recipes))
    assert render(means, "markdown").splitlines() == [
        "**Three: mean ± sd over seeds (n)**",
        "",
        "|      |     dev Spearman |      STS average |         alignment |         uniformity |",
        "| ---- | ---------------: | ---------------: | ----------------: | -----------------: |",
        "| cold | 81.00 ± 1.00 (3) | 71.00 ± 1.00 (3) | 0.250 ± 0.000 (3) | -2.500 ± 0.000 (3) |",
        "| warm | 81.00 ± 1.00 (3) | 73.00 ± 2.00 (3) | 0.250 ± 0.000 (3) | -2.500 ± 0.000 (3) |",
        "| mild | 81.00 ± 1.00 (3) | 71.00 ± 0.87 (3) | 0.250 ± 0.000 (3) | -2.500 ± 0.000 (3) |",
    ]
    # Differences 1, 2, 3: mean 2, sd 1, t(0.975; 2) = 4.3027, so 2 -+ 4.3027 / sqrt(3).
    # Of 27 resamples one is all 1: the 2.5th percentile is 1.
    lines = render(differences, "markdown").splitlines()
    assert lines[0] == "**STS average: difference, paired by seed**"
    assert all("-:" in cell for cell in lines[3].split("|")[2:-1]), "Markdown requires columns of width 2 or more"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert cells[0] == ["", "mean", "95% bootstrap", "95% t", "seeds (n)", "verdict", "seed 1", "seed 2", "seed 3"]
    assert cells[2] == [
        "warm - cold",
        "+2.00",
        "+1.00 to +3.00",
        "-0.48 to +4.48",
        "3",
        "not shown",
        "+1.00",
        "+2.00",
        "+3.00",
    ]
    assert cells[3] == [
        "mild - cold",
        "+0.00",
        "-0.50 to +0.50",
        "-1.24 to +1.24",
        "3",
        "not shown",
        "+0.50",
        "-0.50",
        "+0.00",
    ]


def test_bootstrap_matches_enumeration_of_all_resamples():
    gains = [0.1, 0.4, 0.9, 0.2, -0.3]
    means = [np.mean(sample) for sample in itertools.product(gains, repeat=5)]
    resampled, _ = intervals(gains)
    assert resampled == pytest.approx(np.percentile(means, [2.5, 97.5]), abs=0.021)  # a step between means: 0.02
    assert intervals(gains)[0] == resampled and intervals([-x for x in gains])[0][0] < 0


def test_t_interval_matches_closed_form():
    """For two degrees of freedom the quantile is (2p - 1) sqrt(2 / (4p(1 - p))); for four, 2.776 in every table."""
    _, normal = intervals([0.58, 0.64, 0.47])
    quantile = 0.95 * math.sqrt(2 / (4 * 0.975 * 0.025))
    half = quantile * np.std([0.58, 0.64, 0.47], ddof=1) / math.sqrt(3)
    assert normal == pytest.approx([0.5633333 - half, 0.5633333 + half], abs=1e-6)
    _, normal = intervals([1.0, 2.0, 3.0, 4.0, 5.0])
    assert normal == pytest.approx([3 - 2.776445 * math.sqrt(0.5), 3 + 2.776445 * math.sqrt(0.5)], abs=1e-5)
    assert intervals([2.0, 2.0, 2.0]) == ([2.0, 2.0], [2.0, 2.0])
    assert intervals([1.0, 2.0]) == (None, None)


def test_verdicts():
    assert verdict([0.1, 0.2], [0.05, 0.3]) == verdict([-2, -1], [-3, -0.5]) == "signal"
    assert verdict([0.1, 0.2], [-0.1, 0.3]) == verdict([0, 0.2], [0.1, 0.3]) == verdict([-1, 1], [-1, 1]) == "not shown"
    assert verdict(None, None) == "n < 3: no interval"


def test_missing_runs_are_noted_and_left_out_of_pairs(three_recipes):
    study, records = three_recipes
    del records["warm", 2], records["mild", 1], records["mild", 3]
    records["cold", 3] = record(None)
    summary = summarize(study, records)
    warm, mild = summary["differences"]
    assert warm["values"] == {1: 1.0} and warm["left_out"] == [2, 3] and warm["verdict"] == "n < 3: no interval"
    assert (warm["sd"], warm["bootstrap"]) == (None, None) and mild["values"] == {2: -0.5}
    means, differences = tables(summary)
    assert means.rows[0].cell("STS average") == "70.50 ± 0.71 (2)" and means.rows[2].cell("STS average") == "70.50 (1)"
    assert differences.rows[0].cell("seed 2") == "-"
    said = notes(summary)
    assert "n is the number of seeds" in said[0] and "not between test sentences" in said[0]
    assert "warm - cold, STS average: without seeds that are missing or undefined in one of the two: 2, 3." in said
    assert f"cold seed 3: {', '.join(STS_TASKS)} undefined." in said
    assert not any("correction" in note for note in said), "no difference has an interval"
    assert said[-1] == "3 runs not finished: mild seed 1, warm seed 2, mild seed 3."


def test_note_on_multiple_comparisons(three_recipes):
    assert notes(summarize(*three_recipes))[1:] == [
        "2 comparisons at 95% without correction: about 0.1 of them would be signals by chance."
    ]
    study, records = three_recipes
    records = {key: value for key, value in records.items() if key[0] != "mild"}
    assert not any("correction" in note for note in notes(summarize(study, records)))


def test_note_on_differing_conditions(three_recipes, write):
    study, records = three_recipes
    records["warm", 2] |= {"precision": "bf16", "data": {"sentences": 4000}}
    records["mild", 1]["base_model"] = {"weights_sha256": 64 * "1"}
    records["mild", 2]["environment"] = {"torch": "3.0", "device": "cuda", "threads": 8}
    assert notes(summarize(study, records))[2:] == [
        "The finished runs differ in the encoder's weights (number of runs): 53aa5117 (8), 11111111 (1).",
        "The finished runs differ in precision (number of runs): fp32 (8), bf16 (1).",
        "The finished runs differ in sentences (number of runs): 5120 (8), 4000 (1).",
        "The finished runs differ in torch (number of runs): 2.9 (8), 3.0 (1).",
        "The finished runs differ in numpy (number of runs): 2.4 (8), none (1).",
    ]
    recipes = {name: {"max_train_samples": 1000 * (i + 1)} for i, name in enumerate(SCORES)}
    study = read_study(write(recipes=recipes, seeds=[1, 2, 3], tasks=["sts"]))
    assert not any("sentences (number of runs)" in note for note in notes(summarize(study, records)))


def test_setting_without_runs_has_dashes(three_recipes):
    study, records = three_recipes
    summary = summarize(study, {key: value for key, value in records.items() if key[0] != "mild"})
    assert tables(summary)[0].rows[2].cell("STS average") == "-"
    assert tables(summary)[1].rows[1].cell("mean") == "-"
    assert {row["setting"] for row in plot_rows(summary)} == {"cold", "warm"}


def test_note_on_best_grid_combination(write):
    path = write(baseline=None, grid={"learning_rate": ["1e-4", "3e-4"]}, seeds=[1])
    forced = ["eval_strategy=no", "run_name=two words", "base_model=me/encoder", "data_description=of Wikipedia"]
    study = read_study(path, [*forced, "view_dropout=[0.05, 0.15]"])
    assert [setting.recipe for setting in study.settings] == ["cold", "cold", "warm", "warm"]
    scores = dict(zip([setting.name for setting in study.settings], [80.0, 82.0, 85.0, 84.0]))
    summary = summarize(study, {(name, 1): record(None, score) for name, score in scores.items()})
    said = notes(summary)
    assert said[0].startswith(
        "Best combination of cold by development score: cold, lr 3e-4 (82.00): --model_name tiny-bert "
    )
    assert (
        said[1].startswith("Best combination of warm by development score: warm, lr 1e-4 (85.00): ") and len(said) == 2
    )
    assert " --bf16 no " in said[0] and said[0].endswith("--learning_rate 3e-4") and len(tables(summary)) == 1
    assert " --eval_strategy no --run_name 'two words' --view_dropout 0.05 0.15 --learning_rate" in said[0]
    assert "base_model" not in said[0] and "data_description" not in said[0], "options that only model cards use"
    *_, args = parse(
        shlex.split(said[0].rpartition("): ")[2].replace("tiny-bert", study.settings[0].options["model_name"]))
    )
    assert (args.run_name, args.bf16, args.learning_rate, args.view_dropout) == ("two words", False, 3e-4, [0.05, 0.15])


def test_report_without_running(write, stub, tmp_path, capsys):
    """Starts no run, needs no models, and uses the numbers in the files."""
    path = write(seeds=[1, 2, 3])
    arguments = [str(path), "--output", str(tmp_path / "out")]
    assert run_study.main([*arguments, "--seeds", "1"]) == 0
    before = calls(stub)
    capsys.readouterr()
    for folder in tmp_path.glob("out/runs/*/seed1/model"):
        folder.rename(folder.with_name("elsewhere"))
    assert run_study.main([*arguments, "--report"]) == 0
    assert calls(stub) == before
    out = capsys.readouterr().out
    assert "4 runs not finished: cold seed 2, warm seed 2, cold seed 3, warm seed 3." in out
    folder = tmp_path / "out" / "tiny"
    assert "| warm - cold | +0.50 |" in (folder / "table.md").read_text()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["differences"][0]["values"] == {"1": 0.5} and str(tmp_path) not in json.dumps(summary)
    assert str(tmp_path) not in (folder / "table.md").read_text()


def test_plot_and_its_csv(three_recipes, tmp_path):
    summary = summarize(*three_recipes)
    png, svg, numbers = run_plots.seeds(plot_rows(summary), "Three", tmp_path / "plot")
    assert png.stat().st_size > 10_000
    text = svg.read_text(encoding="utf-8")
    assert [
        name for name in ("cold", "warm", "Three", "STS average, x 100", "mean of its baseline") if name not in text
    ] == []
    with open(numbers, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["value"]) for row in rows] == [x for values in SCORES.values() for x in values]
    assert [row["baseline_mean"] for row in rows] == 3 * [""] + 6 * ["71.0"]
    with raises_usage(needed="at least one run"):
        run_plots.seeds([], "Three", tmp_path / "plot")
