"""Results files: kept whole, gone on from; the tables that are made of them, pinned letter by letter."""

import copy
import hashlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from informin import __version__
from informin.errors import UsageError
from informin.evaluation.results import (
    CLASSIFIER,
    IDENTITY,
    SCHEMA,
    add_task,
    checksums,
    environment,
    load_results,
    new_results,
    results_files,
    resume_results,
    save_results,
)
from informin.evaluation.senteval import STS_TASKS, TRANSFER_TASKS
from informin.evaluation.table import Row, Table, aggregation_table, footnotes, label, render, score_tables, time_table
from tests.conftest import ROOT, raises_usage

WHO = dict(
    weights_sha256="0" * 64,
    pooler="cls",
    normalized=False,
    prompt=None,
    whitening=None,
    max_length=512,
    precision="fp32",
    split="test",
)
STS = dict(zip(STS_TASKS, [10.0, 20.5, 30.0, 40.25, 50.0, 60.0, 70.0]))
TRANSFER = dict(zip(TRANSFER_TASKS, [81.0, 82.0, 83.0, 84.0, 85.0, 86.0, 87.5]))


def entry(score: float | None, **more) -> dict:
    seconds = {"encode": 1.5, "score": 0.25}
    found = {"score": score, "n": 9, "truncated": 0, "data": {"a.txt": "1" * 64}, "seconds": seconds}
    return found | ({"error": "nothing is finite"} if score is None else {}) | more


def results(scores: dict[str, float | None], model: str = "org/model", **changes) -> dict:
    found = new_results(model, WHO | changes, {"torch": "2"})
    for name, score in scores.items():
        add_task(found, name, entry(score))
    return found


# Results


def test_new_results():
    expected = {
        "schema": 1,
        "model": "org/model",
        **WHO,
        "classifier": CLASSIFIER,
        "tasks": {},
        "average": {"sts": None, "transfer": None},
        "environment": {"torch": "2"},
        "seconds": 0.0,
    }
    assert new_results("org/model", WHO, {"torch": "2"}) == expected and SCHEMA == 1 and set(IDENTITY) == set(WHO)


def test_older_files_have_no_prompt(tmp_path):
    old = results(STS)
    del old["prompt"]
    save_results(tmp_path / "a.json", old)
    assert load_results(tmp_path / "a.json") == results(STS)
    assert resume_results(tmp_path / "a.json", results({}))["tasks"] == old["tasks"]
    with raises_usage(found="contains other results (prompt None, now 'query: ')"):
        resume_results(tmp_path / "a.json", results({}, prompt="query: "))
    assert label(results({}, prompt="query: ")) == "model, cls, prompt 'query: '"


def test_averages_only_when_all_seven_are_there():
    found = results(dict(list(STS.items())[:-1]))
    assert found["average"] == {"sts": None, "transfer": None}
    add_task(found, "SICK-R", entry(STS["SICK-R"]))
    assert found["average"] == {"sts": pytest.approx(sum(STS.values()) / 7), "transfer": None}
    for name, score in TRANSFER.items():
        add_task(found, name, entry(score))
    assert found["average"]["transfer"] == pytest.approx(sum(TRANSFER.values()) / 7)
    add_task(found, "STS13", entry(None))
    assert found["average"] == {"sts": None, "transfer": pytest.approx(sum(TRANSFER.values()) / 7)}
    add_task(found, "STS13", entry(21.2))
    assert found["average"]["sts"] == pytest.approx((sum(STS.values()) + 0.7) / 7)


def test_score_of_zero_is_included_in_averages():
    assert results(STS | {"STS12": 0.0})["average"]["sts"] == pytest.approx(sum(STS.values()) / 7 - 10 / 7)


def test_seconds_are_of_all_tasks_and_not_counted_twice():
    found = results(STS)
    add_task(found, "STS12", entry(1.0, seconds={"encode": 2.0, "score": 3.0}))
    assert found["seconds"] == pytest.approx(6 * 1.75 + 5)


def test_save_and_load(tmp_path):
    """Creates the folders, and writes indented JSON."""
    path = tmp_path / "a" / "b" / "model-cls.json"
    found = results(STS | {"MR": None}, model="org/modèle", whitening={"dimensions": None, "fitted_on": "é"})
    save_results(path, found)
    assert load_results(path) == found == load_results(str(path))
    assert "modèle" in path.read_text(encoding="utf-8") and path.read_text(encoding="utf-8").endswith("}\n")
    assert [p.name for p in path.parent.iterdir()] == ["model-cls.json"]
    save_results(path, results(TRANSFER))
    assert load_results(path) == results(TRANSFER)


def fail(*_, **__):
    raise OSError(28, "No space left on device")


def interrupt(*_, **__):
    raise KeyboardInterrupt


def written_in_part(path: Path, text: str, **_):
    with open(path, "w") as file:
        file.write(text[:20])
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    "target, name, broken, error, message",
    [
        (Path, "write_text", written_in_part, UsageError, "No space left on device. Choose another `output`."),
        (os, "replace", fail, UsageError, "No space left on device. Choose another `output`."),
        (os, "replace", interrupt, KeyboardInterrupt, None),
    ],
)
def test_failed_write_keeps_the_previous_file(tmp_path, monkeypatch, target, name, broken, error, message):
    path = tmp_path / "a.json"
    save_results(path, results(STS))
    before = path.read_bytes()
    with monkeypatch.context() as patch, pytest.raises(error, match=message):
        patch.setattr(target, name, broken)
        save_results(path, results(TRANSFER))
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_file_instead_of_folder_is_an_error(tmp_path):
    (tmp_path / "a").write_text("")
    with raises_usage(found=f"{tmp_path / 'a' / 'b.json'} cannot be written: ", fix="another `output`"):
        save_results(tmp_path / "a" / "b.json", results(STS))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_is_not_written(tmp_path, value):
    """JSON has no NaN; undefined scores are null."""
    path = tmp_path / "a.json"
    save_results(path, results(STS))
    before = path.read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        save_results(path, results({"STS12": value}))
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "content, found, needed",
    [
        (None, "PATH cannot be read: ", "a results file of run_eval.py"),
        ('{"schema": 1, "tas', "PATH cannot be read: ", "a results file of run_eval.py"),
        (b"\xff\xfe", "PATH cannot be read: ", "a results file of run_eval.py"),
        ("[]", "PATH is not a results file: it is a list; expected a mapping", ""),
        ('{"schema": 2, "tasks": {}}', "PATH is not a results file: model is missing", ""),
        ('{"schema": 1}', "PATH is not a results file: model is missing", ""),
        ('{"schema": 1, "tasks": []}', "PATH is not a results file: model is missing", ""),
    ],
)
def test_other_files_are_rejected(tmp_path, content, found, needed):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with raises_usage(found=found.replace("PATH", str(path)), needed=needed):
        load_results(path)


@pytest.mark.parametrize("key", ["kind", "measures", "classes"])
def test_incomplete_label_entries_are_rejected(tmp_path, key):
    values = new_results("here", WHO, {})
    add_task(values, "tags", entry(50.0, kind="labels", classes=3, measures={"v_measure": 50.0}))
    del values["tasks"]["tags"][key]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(values))
    with raises_usage(found=f"{path} is not a results file: tasks.tags.{key} is missing"):
        load_results(path)


def test_resuming(tmp_path):
    """Tasks are kept; the model's name and the environment are updated."""
    fresh = new_results("here", WHO, {"torch": "2"})
    assert resume_results(tmp_path / "none.json", fresh) is fresh
    before = new_results("there", WHO, {"torch": "1"})
    for name, score in STS.items():
        add_task(before, name, entry(score))
    save_results(tmp_path / "a.json", before)
    assert resume_results(tmp_path / "a.json", fresh) == before | {"model": "here", "environment": {"torch": "2"}}


@pytest.mark.parametrize(
    "name, value",
    [
        ("weights_sha256", "f" * 64),
        ("pooler", "mean"),
        ("normalized", True),
        ("whitening", {"dimensions": 4, "fitted_on": "x"}),
        ("max_length", 32),
        ("precision", "bf16"),
        ("split", "dev"),
    ],
)
def test_results_of_other_settings_are_not_resumed(tmp_path, name, value):
    path = tmp_path / "a.json"
    save_results(path, results(STS, **{name: value}))
    found = f"{path} contains other results ({name} {value!r}, now {WHO[name]!r})"
    with raises_usage(found=found, fix="Choose another `output`, or delete the file."):
        resume_results(path, results({}))


def test_error_lists_all_differences(tmp_path):
    save_results(tmp_path / "a.json", results(STS, pooler="mean", split="dev"))
    with raises_usage(found="(pooler 'mean', now 'cls'; split 'dev', now 'test')"):
        resume_results(tmp_path / "a.json", results({}))


def test_results_files(tmp_path):
    for name in ("b.json", "a.json", "c.txt", ".d.json.partial"):
        (tmp_path / name).write_text("{}")
    assert results_files(tmp_path) == [tmp_path / "a.json", tmp_path / "b.json"]
    assert results_files(str(tmp_path / "b.json")) == [tmp_path / "b.json"]
    (tmp_path / "empty").mkdir()
    with raises_usage(found=f"{tmp_path / 'empty'} contains no .json file", needed="a folder with results"):
        results_files(tmp_path / "empty")


def test_checksums(tmp_path):
    (tmp_path / "a").mkdir()
    files = [tmp_path / "a" / "x.txt", tmp_path / "y.txt"]
    for path, content in zip(files, (b"1", b"2\n")):
        path.write_bytes(content)
    expected = {"a/x.txt": hashlib.sha256(b"1").hexdigest(), "y.txt": hashlib.sha256(b"2\n").hexdigest()}
    assert checksums(files, tmp_path) == checksums(files, str(tmp_path)) == expected


def test_environment():
    found = environment(torch.device("cpu"))
    assert (found["informin"], found["python"]) == (__version__, platform.python_version())
    assert (found["torch"], found["numpy"]) == (torch.__version__, np.__version__)
    assert found["device"] == f"cpu {platform.machine()}" and found["threads"] == torch.get_num_threads()
    assert found.keys() - {"informin", "python", "device", "threads"} == {
        *("torch", "transformers", "tokenizers", "numpy", "scipy", "scikit-learn")
    }


def test_results_and_tables_do_not_import_heavy_libraries():
    """The model card uses them."""
    heavy = "{'torch', 'transformers', 'datasets', 'sklearn', 'matplotlib'}"
    for name in ("results", "table", "senteval", "senteval_files"):
        code = f"import sys, informin.evaluation.{name}; print(*sys.modules.keys() & {heavy})"
        ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
        assert ran.stdout.strip() == "", name


# Tables


@pytest.mark.parametrize(
    "changes, expected",
    [
        (dict(), "model, cls"),
        (dict(model="folder/model/", pooler="mean"), "model, mean"),
        (dict(whitening={"dimensions": None, "fitted_on": "x"}), "model, cls, whitening"),
        (dict(whitening={"dimensions": 256, "fitted_on": "x"}), "model, cls, whitening 256"),
    ],
)
def test_label(changes, expected):
    assert label(results({}, **changes)) == expected


def rows_of_two() -> list[dict]:
    """Complete and incomplete groups, a missing value, and the aggregation of one year."""
    first = results(STS | {"MR": 81.256, "TREC": 100.0}, model="a_b&c%d")
    second = results({"STS12": 12.346, "STS-B": None, "MR": 5.0}, model="m", pooler="mean")
    second["tasks"]["STS12"] |= {"mean": 13.0, "wmean": 14.0}
    return [first, second]


def test_text():
    sts, transfer = score_tables(rows_of_two())
    assert render(sts, "text") == (
        "STS, Spearman x 100\n"
        "              STS12  STS13  STS14  STS15  STS16  STS-B  SICK-R    Avg\n"
        "a_b&c%d, cls  10.00  20.50  30.00  40.25  50.00  60.00   70.00  40.11\n"
        "m, mean       12.35      -      -      -      -      -       -      -"
    )
    assert render(transfer, "text") == (
        "Transfer, accuracy x 100\n"
        "                 MR    TREC  Avg\n"
        "a_b&c%d, cls  81.26  100.00    -\n"
        "m, mean        5.00       -    -"
    )


def test_markdown():
    assert render(score_tables(rows_of_two())[1], "markdown") == (
        "**Transfer, accuracy x 100**\n"
        "\n"
        "|              |    MR |   TREC | Avg |\n"
        "| ------------ | ----: | -----: | --: |\n"
        "| a_b&c%d, cls | 81.26 | 100.00 |   - |\n"
        "| m, mean      |  5.00 |      - |   - |"
    )


def test_latex():
    assert render(score_tables(rows_of_two())[1], "latex") == (
        "% Transfer, accuracy x 100\n"
        "\\begin{tabular}{lrrr}\n"
        "\\toprule\n"
        " & MR & TREC & Avg \\\\\n"
        "\\midrule\n"
        "a\\_b\\&c\\%d, cls & 81.26 & 100.00 & - \\\\\n"
        "m, mean & 5.00 & - & - \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}"
    )


def test_latex_of_signs_and_spread():
    row = Row("mean ± sd $#", {"a_b": -0.5, "c": 1.0}, {"a_b": 0.25, "c": 2.0}, signed=True)
    lines = render(Table("t", ["a_b", "c"], [row]), "latex").splitlines()
    assert lines[3] == " & a\\_b & c \\\\"
    assert lines[5] == "mean ± sd \\$\\# & -0.50 $\\pm$ 0.25 & +1.00 $\\pm$ 2.00 \\\\"


def test_text_cells_are_printed_unchanged():
    row = Row("a", {"b": "1.0 ± 0.5 (3)", "c": "signal", "d": 2.0})
    assert [row.cell(name) for name in "bcde"] == ["1.0 ± 0.5 (3)", "signal", "2.00", "-"]
    assert render(Table("t", ["b"], [row]), "latex").splitlines()[5] == "a & 1.0 $\\pm$ 0.5 (3) \\\\"


def test_groups_without_a_task_have_no_table():
    assert [table.title for table in score_tables([results({"MR": 1.0})])] == ["Transfer, accuracy x 100"]
    assert [table.title for table in score_tables([results({"STS12": 1.0})])] == ["STS, Spearman x 100"]
    assert score_tables([results({})]) == []


def test_columns_follow_the_order_of_papers():
    found = score_tables([results({"SICK-R": 1.0}), results({"STS13": 2.0})], others=[results(STS)])
    assert found[0].columns == ["STS13", "SICK-R", "Avg"]


SEEDS = ([80.0, 82.5, 81.1], [10.0, 9.0, 14.5])
BEFORE = ([79.0, 82.0, 79.5], [11.0, 9.5, 12.0])


def seeds(name: str, scores) -> list[dict]:
    return [results({"STS-B": a, "SICK-R": b}, model=f"{name}{i}") for i, (a, b) in enumerate(zip(*scores))]


def test_mean_and_standard_deviation_over_seeds():
    (table,) = score_tables(seeds("s", SEEDS), seeds=True)
    assert [row.label for row in table.rows] == ["s0, cls", "s1, cls", "s2, cls", "mean ± sd of these 3"]
    last = table.rows[-1]
    for name, values in zip(("STS-B", "SICK-R"), SEEDS):
        mean = sum(values) / 3
        assert last.values[name] == pytest.approx(mean)
        assert last.spread[name] == pytest.approx((sum((x - mean) ** 2 for x in values) / 2) ** 0.5)
        assert last.spread[name] == pytest.approx(np.std(values, ddof=1))
    assert last.cell("STS-B") == "81.20 ± 1.25" and last.cell("Avg") == "-"
    assert len(score_tables(seeds("s", SEEDS)[:1], seeds=True)[0].rows) == 1, "one seed has no spread"


def test_mean_of_a_column_with_a_gap():
    rows = seeds("s", SEEDS)
    rows[1]["tasks"]["STS-B"]["score"] = None
    last = score_tables(rows, seeds=True)[0].rows[-1]
    assert (last.cell("STS-B"), last.cell("SICK-R")) == ("-", "11.17 ± 2.93")


def test_differences_from_one():
    (table,) = score_tables(seeds("s", SEEDS)[:2], others=[results({"STS-B": 81.0}, model="base")])
    assert render(table, "text") == (
        "STS, Spearman x 100\n"
        "                     STS-B  SICK-R  Avg\n"
        "base, cls            81.00       -    -\n"
        "s0, cls              80.00   10.00    -\n"
        "s1, cls              82.50    9.00    -\n"
        "s0, cls - base, cls  -1.00       -    -\n"
        "s1, cls - base, cls  +1.50       -    -"
    )


def test_paired_differences_over_seeds():
    """Differences are computed per row: 1.0, 0.5, 1.6, with their own standard deviation."""
    (table,) = score_tables(seeds("s", SEEDS), seeds("b", BEFORE), seeds=True)
    assert [row.label for row in table.rows] == [
        *("b0, cls", "b1, cls", "b2, cls", "mean ± sd of these 3"),
        *("s0, cls", "s1, cls", "s2, cls", "mean ± sd of these 3"),
        *("s0, cls - b0, cls", "s1, cls - b1, cls", "s2, cls - b2, cls", "mean ± sd of these 3"),
    ]
    gains = np.subtract(SEEDS[0], BEFORE[0])
    assert [row.cell("STS-B") for row in table.rows[8:11]] == ["+1.00", "+0.50", "+1.60"]
    last = table.rows[-1]
    assert (last.values["STS-B"], last.spread["STS-B"]) == pytest.approx((gains.mean(), gains.std(ddof=1)))
    assert last.cell("STS-B") == "+1.03 ± 0.55"
    assert table.rows[3].cell("STS-B") == f"{np.mean(BEFORE[0]):.2f} ± {np.std(BEFORE[0], ddof=1):.2f}"


def test_average_is_shown_only_with_all_scores():
    (table,) = score_tables([results({"STS-B": 80.0})], [results(STS)])
    assert [row.cell("Avg") for row in table.rows] == ["-", "-", "-"]


def test_averages_are_compared_too():
    other = results({name: score - 1.5 for name, score in STS.items()})
    assert score_tables([results(STS)], [other])[0].rows[-1].cell("Avg") == "+1.50"


def test_aggregations_of_the_years():
    rows = rows_of_two()
    (table,) = aggregation_table(rows[1:])
    assert render(table, "text") == (
        "STS12-16 by aggregation\n"
        "                            STS12\n"
        "m, mean: all pairs at once  12.35\n"
        "m, mean: mean of subsets    13.00\n"
        "m, mean: weighted mean      14.00"
    )
    assert aggregation_table([results({"STS-B": 1.0, "MR": 2.0})]) == []


def test_seconds_by_task():
    first, second = results({"MR": 1.0, "STS12": 2.0}), results({"CR": 3.0}, model="m2")
    second["tasks"]["CR"]["seconds"] = {"encode": 10.0, "score": 100.125}
    assert render(time_table([first, second]), "text") == (
        "Seconds\n"
        "                    STS12    MR      CR     all\n"
        "model, cls: encode   1.50  1.50       -    3.00\n"
        "model, cls: score    0.25  0.25       -    0.50\n"
        "m2, cls: encode         -     -   10.00   10.00\n"
        "m2, cls: score          -     -  100.12  100.12"
    )


def test_footnotes():
    first, second = results(STS, model="a"), results({"MR": None, "CR": 1.0}, model="b", max_length=32)
    assert footnotes([first]) == []
    second["tasks"]["MR"]["truncated"], second["tasks"]["CR"]["truncated"] = 1200, 34
    assert footnotes([first, second]) == [
        "b, cls: MR has no score: nothing is finite.",
        "b, cls: 1,234 sentences were truncated to 32 tokens.",
    ]


def test_tables_leave_the_results_as_they_are():
    rows, others = seeds("s", SEEDS), seeds("b", BEFORE)
    before = copy.deepcopy((rows, others))
    score_tables(rows, others, seeds=True), aggregation_table(rows), time_table(rows), footnotes(rows)
    assert (rows, others) == before == tuple(json.loads(json.dumps(before)))


def sample(score: float | None, **more) -> dict:
    """Return the entry of a labeled sample."""
    names = ("v_measure", "nearest_neighbor", "nearest_10", "few_shot")
    measures = {} if score is None else {"measures": {name: score + i for i, name in enumerate(names)}}
    return entry(score, kind="labels", classes=3, **measures) | {"n": 1200} | more


def test_tables_of_samples():
    """One table per sample with all measures, differences and means."""
    rows, other = [results({}, model=f"org/seed{i}") for i in (1, 2)], results({}, model="org/start")
    for one, score in zip((*rows, other), (70.0, 72.0, 60.5)):
        add_task(one, "titles", sample(score))
    search = {"measures": {"mrr_10": 50.0, "accuracy_1": 40.0, "recall_10": None}, "documents": 1}
    add_task(rows[0], "faq", entry(50.0, kind="retrieval", **search))
    titles, faq = score_tables(rows, [other], seeds=True)
    assert render(titles, "markdown").splitlines() == [
        "**titles: 1,200 sentences of 3 classes, x 100**",
        "",
        "|                         |     V-measure |          1-NN |         10-NN |        8-shot |",
        "| ----------------------- | ------------: | ------------: | ------------: | ------------: |",
        "| start, cls              |         60.50 |         61.50 |         62.50 |         63.50 |",
        "| seed1, cls              |         70.00 |         71.00 |         72.00 |         73.00 |",
        "| seed2, cls              |         72.00 |         73.00 |         74.00 |         75.00 |",
        "| mean ± sd of these 2    |  71.00 ± 1.41 |  72.00 ± 1.41 |  73.00 ± 1.41 |  74.00 ± 1.41 |",
        "| seed1, cls - start, cls |         +9.50 |         +9.50 |         +9.50 |         +9.50 |",
        "| seed2, cls - start, cls |        +11.50 |        +11.50 |        +11.50 |        +11.50 |",
        "| mean ± sd of these 2    | +10.50 ± 1.41 | +10.50 ± 1.41 | +10.50 ± 1.41 | +10.50 ± 1.41 |",
    ]
    assert faq.title == "faq: search, 9 queries among 1 document, x 100"
    recalls, accuracies = ["recall@10", "recall@100"], ["accuracy@1", "accuracy@10"]
    assert faq.columns == ["MRR@10", "nDCG@10", "MAP@100", *recalls, *accuracies]
    assert faq.rows[1].cell("recall@10") == "-" and faq.rows[1].cell("accuracy@1") == "40.00"


def test_retrieval_scored_by_an_older_version_is_scored_again(tmp_path, caplog):
    """Its recall_10 is now called accuracy_10."""
    one = results({"STS-B": 80.0})
    add_task(one, "faq", entry(50.0, kind="retrieval", documents=1, measures={"mrr_10": 50.0, "recall_10": 90.0}))
    add_task(one, "titles", sample(60.0))
    save_results(tmp_path / "a.json", one)
    assert list(load_results(tmp_path / "a.json")["tasks"]) == ["STS-B", "titles"]
    assert "faq was scored by an older version, with other measures. Score it again." in caplog.text


def test_sample_without_scores_has_a_footnote():
    one = results({})
    add_task(one, "titles", sample(None))
    (table,) = score_tables([one])
    assert table.rows[0].cell("1-NN") == "-"
    assert footnotes([one]) == ["model, cls: titles has no score: nothing is finite."]
