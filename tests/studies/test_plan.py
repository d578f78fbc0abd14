"""Study files: recipes, grids, baselines, checks, and the folders of runs."""

import hashlib
import math
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from informin.cli import study as study_command
from informin.studies.plan import check_options, read_study, without_paths
from informin.studies.runner import scoring_command
from informin.studies.runs import Run, runs_of
from informin.studies.table import name_of
from informin.training.command_line import option_names, parse
from informin.training.term_fields import term_options
from tests.conftest import ROOT, raises_usage
from tests.studies.helpers import calls

STUDIES = sorted((ROOT / "configs" / "studies").rglob("*.yaml"))


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


@pytest.mark.parametrize(
    "published, found, needed",
    [
        ({"hot": {"sts": 1}}, "published: no such setting: hot", "settings of: cold; warm"),
        ({"warm": {"transfer": 1}}, "published: warm: no such measure: transfer", "of: sts"),
        ({"warm": {"sts": "high"}}, "published: warm: sts is 'high'", "a number"),
        ({"warm": 3}, "published: warm is int", "a mapping"),
    ],
)
def test_published_scores_are_checked(write, published, found, needed):
    assert read_study(write(tasks=["sts"], published={"warm": {"sts": 76.25}})).published == {"warm": {"sts": 76.25}}
    with raises_usage(found=found, needed=needed):
        read_study(write(tasks=["sts"], published=published))


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
    assert study_command.main([str(write(labels=["no/a.tsv"])), "--output", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == "error: --labels: no/a.tsv does not exist. Check the path.\n"
    assert calls(stub) == []


def test_a_recipe_of_the_package_is_an_option(write):
    (setting,) = read_study(write(recipes={"adapted": {"recipe": "adapt", "temperature": 3}}, baseline=None)).settings
    assert "recipe" not in setting.options and setting.options["objective"] == "guided"
    assert setting.options["temperature"] == 3


def test_models_with_code_are_scored_with_it(write):
    base = {"model_name": "org/model", "trust_remote_code": True, "bf16": True}
    study = read_study(write(base=base, labels=["a.tsv"], before=True))
    for setting in (*study.before, *study.settings):
        command = scoring_command(Run(setting, 1, Path("runs")), study.tasks, {})
        assert "--trust_remote_code" in command and "--bf16" in command


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
    grid = {"bf16": [False, True], "pooler": ["auto", "cls"]}
    study = read_study(write(labels=["a.tsv"], before=True, grid=grid))
    assert len({setting.name for setting in study.before}) == len({setting.digest for setting in study.before}) == 4
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
        (
            dict(
                **dict(before=True, labels=["a.tsv"], baseline=None),
                recipes={"a": {"model_name": "/a/x"}, "b": {"model_name": "/b/x", "temperature": 0.1}},
            ),
            "before: settings differ in the folder of before training; expected one encoder",
        ),
        (dict(tasks=["sts"], published={"cold": {"sts": math.nan}}), "published: cold: sts is nan; expected a number"),
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
    assert study_command.main([str(path), "--output", str(tmp_path / "out")]) == 2
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
    assert study_command.main([str(path), "--output", str(tmp_path / "out"), *options]) == 2
    assert message in capsys.readouterr().err


def test_missing_study_file_is_rejected(tmp_path, capsys):
    assert study_command.main([str(tmp_path / "nowhere.yaml")]) == 2
    assert "nowhere.yaml cannot be read: " in capsys.readouterr().err


def test_duplicate_recipes_are_rejected(tmp_path, capsys):
    path = tmp_path / "twice.yaml"
    path.write_text("recipes:\n  a: {mlm_weight: 0.1}\n  b: {}\n  a: {mlm_weight: 0.2}\nseeds: [1]\n")
    assert study_command.main([str(path)]) == 2
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
    assert study_command.main([str(path), "--output", str(tmp_path / "out")]) == 2
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
    named.add("ddp_find_unused_parameters")  # affects only whether several processes can train
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
