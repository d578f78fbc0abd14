"""Statistics and notes in the tables of a study."""

import csv
import itertools
import json
import math
import shlex
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ttest_rel

from informin.cli import study as study_command
from informin.evaluation.senteval import STS_TASKS
from informin.evaluation.table import render
from informin.figures import run_plots
from informin.studies.plan import read_study
from informin.studies.summary import load_study, save_study
from informin.studies.table import holm, intervals, notes, p_value, plot_rows, summarize, tables, verdict
from informin.training.command_line import parse
from tests.conftest import raises_usage
from tests.studies.helpers import calls

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


def test_published_scores_are_beside_ours(three_recipes, tmp_path):
    study, records = three_recipes
    study = replace(study, published={"warm": {"sts": 76.25}})
    common = {"schema": 1, "seconds": {"training": 1.0, "scoring": 1.0}}
    base = {"name": "tiny", "weights_sha256": 64 * "0"}
    records = {key: run | common | {"seed": key[1], "base_model": base} for key, run in records.items()}
    save_study(tmp_path / "summary.json", study, records)
    for found in ((study, records), load_study(tmp_path / "summary.json")):
        means = tables(summarize(*found))[0]
        assert means.columns[1:3] == ["STS average", "STS average, published"]
        assert [row.cell("STS average, published") for row in means.rows] == ["-", "76.25", "-"]


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
    assert cells[0] == [
        "",
        "mean",
        "95% bootstrap",
        "95% t",
        "seeds (n)",
        "verdict",
        "p (Holm)",
        "seed 1",
        "seed 2",
        "seed 3",
    ]
    assert cells[2] == [
        "warm - cold",
        "+2.00",
        "+1.00 to +3.00",
        "-0.48 to +4.48",
        "3",
        "not shown",
        "0.148",
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
        "1.000",
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
    assert intervals([2.0, 2.0, 2.0]) == (None, None)
    assert intervals([1.0, 2.0]) == (None, None)


def test_holm_corrects_for_all_comparisons():
    """Against the definition: the k-th smallest of m is multiplied by m - k + 1, and none is below a smaller one."""
    found = holm([0.01, None, 0.04, 0.03])
    assert found[1] is None and [found[0], *found[2:]] == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([]) == []


def test_p_values_are_those_of_the_paired_t_test():
    one, other = np.array([1.0, 2.5, 2.0, 4.0]), np.array([0.5, 1.0, 2.2, 3.0])
    gain = {"values": dict(enumerate(one - other))}
    assert p_value(gain) == pytest.approx(ttest_rel(one, other).pvalue)
    assert p_value({"values": {1: 0.5, 2: 0.7}}) is None and p_value({"values": dict.fromkeys(range(5), 0.1)}) is None


def test_equal_values_are_no_signal(three_recipes):
    """A score in coarse steps can change by the same amount for all seeds, bit by bit or up to rounding."""
    for gains in ([0.5, 0.5, 0.5], [72.5 - 72.0, 71.3 - 70.8, 70.9 - 70.4]):
        assert intervals(gains) == (None, None) and p_value({"values": dict(enumerate(gains))}) is None
    study, records = three_recipes
    for setting, seed in records:
        records[setting, seed] = record(70 + (setting == "warm"))
    warm = next(one for one in summarize(study, records)["differences"] if one["setting"] == "warm")
    assert warm["verdict"] == "equal values: no interval"


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
    assert "n is the number of seeds" in said[0] and "not across test sentences" in said[0]
    assert "warm - cold, STS average: without seeds that are missing or undefined in one of the two: 2, 3." in said
    assert f"cold seed 3: {', '.join(STS_TASKS)} undefined." in said
    assert not any("correction" in note for note in said), "no difference has an interval"
    assert said[-1] == "3 runs not finished: mild seed 1, warm seed 2, mild seed 3."


def test_note_on_multiple_comparisons(three_recipes):
    assert notes(summarize(*three_recipes))[1:] == [
        "The table has 2 comparisons. Verdicts are not corrected for multiple comparisons: about 0.1 signals are "
        "expected by chance. p (Holm) is the p value of the paired t test with Holm's correction for 2 comparisons."
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


def test_the_best_combination_is_one_with_most_seeds(write):
    study = read_study(write(baseline=None, grid={"learning_rate": ["1e-4", "3e-4"]}, seeds=[1, 2]))
    names = [setting.name for setting in study.settings]
    scores = {(names[0], 1): 90.0, (names[1], 1): 82.0, (names[1], 2): 83.0}
    said = notes(summarize(study, {run: record(None, score) for run, score in scores.items()}))
    (best,) = (line for line in said if line.startswith("Best"))
    assert best.startswith(
        "Best combination of cold by development score, of those with 2 seeds: cold, lr 3e-4 (82.50)"
    )


def test_report_without_running(write, stub, tmp_path, capsys):
    """Starts no run, needs no models, and uses the numbers in the files."""
    path = write(seeds=[1, 2, 3])
    arguments = [str(path), "--output", str(tmp_path / "out")]
    assert study_command.main([*arguments, "--seeds", "1"]) == 0
    before = calls(stub)
    capsys.readouterr()
    for folder in tmp_path.glob("out/runs/*/seed1/model"):
        folder.rename(folder.with_name("elsewhere"))
    assert study_command.main([*arguments, "--report"]) == 0
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
