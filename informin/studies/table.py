"""Statistics of a study: means over seeds, differences paired by seed, and their confidence intervals."""

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.stats import bootstrap, t, ttest_1samp

from informin.errors import counted
from informin.evaluation.measures import ALL
from informin.evaluation.senteval import GROUPS
from informin.evaluation.table import Row, Table
from informin.studies.plan import CARD, DEVELOPMENT, Setting, Study, normalized, shown, without_paths
from informin.studies.runs import run_name

SCHEMA = 2
RESAMPLES = 10_000
FEWEST = 3  # seeds, for an interval
EQUAL = 1e-9  # a range of values that is only rounding
LEVEL, HOLM = 0.05, "p (Holm)"
SIGNAL = "signal"  # verdict of a difference whose intervals exclude 0
GEOMETRY = ("alignment", "uniformity")
SEEDS_NOTE = (
    "n is the number of seeds used for both settings. With only 3 to 5 seeds, bootstrap intervals are too narrow, so "
    "the table also reports paired t intervals, which assume normally distributed differences. The verdict is `signal` "
    "if both intervals exclude 0. The intervals reflect variation across seeds, including the sampled training "
    "sentences, but not across test sentences."
)


def name_of(measure: str) -> str:
    """Return the name of a measure in tables and plots."""
    if "/" in measure:  # SAMPLE/MEASURE
        sample, _, key = measure.rpartition("/")
        return f"{sample} {ALL[key].title}"
    return {"sts": "STS average", "transfer": "transfer average", DEVELOPMENT: "dev Spearman"}.get(measure, measure)


def value_of(record: dict, measure: str) -> float | None:
    """Return a measure from a run's run.json, x 100 except for alignment and uniformity."""
    if measure in GROUPS:
        return record["averages"][measure]
    if measure in (DEVELOPMENT, *GEOMETRY):
        return record["dev"]["spearman" if measure == DEVELOPMENT else measure]
    if "/" in measure:
        sample, _, key = measure.rpartition("/")
        return record.get("samples", {}).get(sample, {"measures": {}})["measures"].get(key)
    return record["scores"].get(measure)


def summarize(study: Study, records: dict[tuple[str, int | None], dict]) -> dict:
    """Return the statistics of a study, as stored in its summary.json.

    Args:
        study: The study.
        records: Contents of run.json of each finished run, by name of the setting and seed. The seed of an untrained
            encoder is None.
    """
    settings, columns = {}, (DEVELOPMENT, *study.measures, *GEOMETRY)
    for setting in study.settings:
        own = {seed: records[setting.name, seed] for seed in study.seeds if (setting.name, seed) in records}
        settings[setting.name] = {
            "recipe": setting.recipe,
            "options": without_paths(setting.options),
            "baseline": setting.baseline,
            **{
                column: mean_and_sd({seed: value_of(record, column) for seed, record in own.items()})
                for column in columns
            },
        }
    before = {s.name: records[s.name, None] for s in study.before if (s.name, None) in records}
    trained = [record for (_, seed), record in records.items() if seed is not None]
    pairs = [setting for setting in study.settings if setting.baseline]
    scored = study.scored or [DEVELOPMENT]
    undefined = [[*key, [name for name in scored if value_of(run, name) is None]] for key, run in records.items()]
    return {
        "schema": SCHEMA,
        "name": study.name,
        "title": study.title,
        "tasks": study.tasks,
        "grid": study.grid,
        "samples": {name: [kind, Path(file).name] for name, (kind, file) in study.samples.items()},
        "seeds": study.seeds,
        "measures": study.measures,
        "published": study.published,
        "missing": [[name, seed] for name, seed in _all_runs(study) if (name, seed) not in records],
        "undefined": [run for run in undefined if run[-1]],
        "unlike": _unlike(study, trained),
        "before": {name: {column: value_of(record, column) for column in columns} for name, record in before.items()},
        "settings": settings,
        "differences": [compare(pair, measure, settings, study.seeds) for measure in study.measures for pair in pairs],
        "best": _best(study.settings, settings) if study.grid and not pairs else {},
    }


def _all_runs(study: Study) -> list[tuple[str, int | None]]:
    return [(s.name, None) for s in study.before] + [(s.name, seed) for seed in study.seeds for s in study.settings]


def mean_and_sd(values: Mapping[int, float | None]) -> dict:
    """Return the values that are not None, their mean, standard deviation (n - 1; None for one value) and number n."""
    known = {seed: value for seed, value in values.items() if value is not None}
    numbers = list(known.values())
    return {
        "values": known,
        "mean": float(np.mean(numbers)) if numbers else None,
        "sd": float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None,
        "n": len(numbers),
    }


def compare(setting: Setting, measure: str, settings: dict, seeds: Sequence[int]) -> dict:
    """Return the differences between a setting and its baseline, paired by seed, with 95% intervals of their mean."""
    own, other = (settings[name][measure]["values"] for name in (setting.name, setting.baseline))
    gains = {seed: own[seed] - other[seed] for seed in seeds if seed in own and seed in other}
    resampled, normal = intervals(list(gains.values()))
    return {
        "setting": setting.name,
        "baseline": setting.baseline,
        "measure": measure,
        **mean_and_sd(gains),
        "left_out": [seed for seed in seeds if seed not in gains],
        "bootstrap": resampled,
        "t": normal,
        "verdict": verdict(resampled, normal) if resampled or len(gains) < FEWEST else "equal values: no interval",
    }


def intervals(gains: Sequence[float]) -> tuple[list[float] | None, list[float] | None]:
    """Return 95% intervals of the mean, by percentile bootstrap and by Student's t; None for fewer than 3 values.

    Values that are equal up to rounding have none either: scores in coarse steps can agree by chance.
    """
    n = len(gains)
    if n < FEWEST or np.ptp(gains) < EQUAL:
        return None, None
    generator = np.random.default_rng(0)  # reproducible intervals
    resampled = bootstrap((gains,), np.mean, n_resamples=RESAMPLES, method="percentile", random_state=generator)
    half = t.ppf(0.975, n - 1) * np.std(gains, ddof=1) / math.sqrt(n)
    return [float(x) for x in resampled.confidence_interval], [float(np.mean(gains) + sign * half) for sign in (-1, 1)]


def verdict(resampled: Sequence[float] | None, normal: Sequence[float] | None) -> str:
    """Return "signal" if both intervals exclude 0, otherwise "not shown", which does not mean that there is none."""
    if resampled is None or normal is None:
        return f"n < {FEWEST}: no interval"
    return SIGNAL if all(low > 0 or high < 0 for low, high in (resampled, normal)) else "not shown"


def tables(summary: dict) -> list[Table]:
    """Return the table of means, and with baselines a table of differences for each measure."""
    columns = {column: name_of(column) for column in (DEVELOPMENT, *summary["measures"], *GEOMETRY)}
    published = summary["published"]
    beside = {
        measure: f"{columns[measure]}, published"
        for measure in summary["measures"]
        if any(measure in scores for scores in published.values())
    }
    rows = [
        Row(label, {name: _number(before[column], column) for column, name in columns.items()})
        for label, before in summary["before"].items()
    ]
    rows += [
        Row(
            label,
            {name: _mean(setting[column], column) for column, name in columns.items()}
            | {name: published.get(label, {}).get(measure) for measure, name in beside.items()},
        )
        for label, setting in summary["settings"].items()
    ]
    shown = [name for column in columns for name in (columns[column], beside.get(column)) if name]
    means = Table(f"{summary['title']}: mean ± sd over seeds (n)", shown, rows)
    return [means, *(_differences(summary, measure) for measure in summary["measures"] if summary["differences"])]


def _differences(summary: dict, measure: str) -> Table:
    """Return a table of settings minus their baselines by one measure."""
    seeds = [f"seed {seed}" for seed in summary["seeds"]]
    columns = ["mean", "95% bootstrap", "95% t", "seeds (n)", "verdict", HOLM, *seeds]
    rows = []
    for gain, p in zip(summary["differences"], holm([p_value(gain) for gain in summary["differences"]])):
        if gain["measure"] == measure:
            both = (gain[kind] and "{:+.2f} to {:+.2f}".format(*gain[kind]) for kind in ("bootstrap", "t"))
            by_seed = (gain["values"].get(seed) for seed in summary["seeds"])
            corrected = None if p is None else f"{p:.3f}{', signal' if p < LEVEL else ''}"
            cells = [gain["mean"], *both, str(gain["n"]), gain["verdict"], corrected, *by_seed]
            rows.append(Row(f"{gain['setting']} - {gain['baseline']}", dict(zip(columns, cells)), signed=True))
    return Table(f"{name_of(measure)}: difference, paired by seed", columns, rows)


def p_value(gain: Mapping) -> float | None:
    """Return the p value of the paired t test of a difference; None for fewer than 3 seeds or equal values."""
    values = list(gain["values"].values())
    if len(values) < FEWEST or np.ptp(values) < EQUAL:
        return None
    return float(ttest_1samp(values, 0).pvalue)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Return p values corrected for all comparisons, in the order given; None stays None.

    Source:
        Holm (1979).
    """
    known = sorted((p, i) for i, p in enumerate(values) if p is not None)
    corrected: list[float | None] = [None] * len(values)
    largest = 0.0
    for rank, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        corrected[i] = largest
    return corrected


def notes(summary: dict) -> list[str]:
    """Return notes that explain the tables: intervals, missing and undefined runs, inconsistent environments."""
    lines = [SEEDS_NOTE] if summary["differences"] else []
    count = sum(gain["t"] is not None for gain in summary["differences"])
    if count > 1:
        chance = f"about {LEVEL * count:.2g} signals are expected by chance"
        lines.append(
            f"The table has {count} comparisons. Verdicts are not corrected for multiple comparisons: {chance}. "
            f"{HOLM} is the p value of the paired t test with Holm's correction for {count} comparisons."
        )
    for gain in summary["differences"]:
        if gain["left_out"]:
            where = f"{gain['setting']} - {gain['baseline']}, {name_of(gain['measure'])}"
            seeds = ", ".join(map(str, gain["left_out"]))
            lines.append(f"{where}: without seeds that are missing or undefined in one of the two: {seeds}.")
    for name, seed, measures in summary["undefined"]:
        lines.append(f"{run_name(name, seed)}: {', '.join(map(name_of, measures))} undefined.")
    for what, counts in summary["unlike"].items():
        values = ", ".join(f"{value} ({runs})" for value, runs in counts.items())
        lines.append(f"The finished runs differ in {what} (number of runs): {values}.")
    if summary["missing"]:
        runs = ", ".join(run_name(name, seed) for name, seed in summary["missing"])
        lines.append(f"{counted(len(summary['missing']), 'run')} not finished: {runs}.")
    for recipe, best in summary["best"].items():
        options = " ".join(f"--{name} {_words(value)}" for name, value in best["options"].items() if name not in CARD)
        numbers = {name: setting[DEVELOPMENT]["n"] for name, setting in summary["settings"].items()}
        few = f", of those with {counted(numbers[best['setting']], 'seed')}" if len({*numbers.values()}) > 1 else ""
        lines.append(
            f"Best combination of {recipe} by development score{few}: {best['setting']} ({best['mean']:.2f}): {options}"
        )
    return lines


def plot_rows(summary: dict) -> list[dict]:
    """Return one row per setting, seed and measure, for `run_plots.seeds`."""
    rows, settings = [], summary["settings"]
    for measure in summary["measures"]:
        for name, setting in settings.items():
            line = settings[setting["baseline"]][measure]["mean"] if setting["baseline"] else None
            for seed, value in setting[measure]["values"].items():
                rows.append(dict(measure=name_of(measure), setting=name, seed=seed, value=value, baseline_mean=line))
    return rows


def _best(settings: Sequence[Setting], summaries: dict) -> dict:
    """Return the grid combination with the highest mean development score for each recipe, of those with most seeds."""
    best: dict[str, dict] = {}
    scores = {setting.name: summaries[setting.name][DEVELOPMENT] for setting in settings}
    scored = [setting for setting in settings if scores[setting.name]["n"]]
    for recipe in dict.fromkeys(setting.recipe for setting in scored):
        own = {one.name: one for one in scored if one.recipe == recipe}
        name = max(own, key=lambda name: (scores[name]["n"], scores[name]["mean"]))
        options = without_paths(own[name].options)
        best[recipe] = {"setting": name, "mean": scores[name]["mean"], "options": options}
    return best


def _unlike(study: Study, records: Sequence[dict]) -> dict[str, dict[str, int]]:
    """Return conditions that differ between runs but should not, with the number of runs for each value."""
    conditions = [
        {
            "the encoder's weights": str(record["base_model"]["weights_sha256"])[:8],
            "precision": record["precision"],
            "sentences": str((record["data"] or {}).get("sentences")),
            **{name: value for name, value in record["environment"].items() if name not in ("device", "threads")},
        }
        for record in records
    ]
    sizes = {str(setting.options.get("max_train_samples")) for setting in study.settings}
    names = dict.fromkeys(name for run in conditions for name in run if name != "sentences" or len(sizes) == 1)
    counts = {name: dict(Counter(run.get(name, "none") for run in conditions)) for name in names}
    return {name: values for name, values in counts.items() if len(values) > 1}


def _words(value) -> str:
    """Format the value of an option for a shell. Booleans become yes and no, which eval_strategy accepts too."""
    items = value if isinstance(value, list) else [value]
    words = {True: "yes", False: "no"}
    return " ".join(shlex.quote(words[i] if isinstance(i, bool) else shown(i)) for i in map(normalized, items))


def _mean(summary: dict, column: str) -> str | None:
    if not summary["n"]:
        return None
    spread = "" if summary["sd"] is None else f" ± {_number(summary['sd'], column)}"
    return f"{_number(summary['mean'], column)}{spread} ({summary['n']})"


def _number(value: float | None, column: str) -> str | None:
    return None if value is None else f"{value:.{3 if column in GEOMETRY else 2}f}"
