"""Statistics of a study: means over seeds, differences paired by seed, and their confidence intervals."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.stats import bootstrap, t, ttest_1samp

from experiments.studies.plan import CARD, DEVELOPMENT, GROUPS, Setting, Study
from experiments.studies.runner import without_paths, words
from experiments.tables import markdown

SCHEMA = 2
RESAMPLES = 10_000
FEWEST = 3  # seeds, for an interval
EQUAL = 1e-9  # a range of values that is only rounding
SIGNAL, LEVEL = "signal", 0.05
GEOMETRY = ("alignment", "uniformity")
TITLES = {"v_measure": "V-measure", "nearest_neighbor": "1-NN", "mrr_10": "MRR@10", "ndcg_10": "nDCG@10"}
TITLES |= {"sts": "STS average", "transfer": "transfer average", DEVELOPMENT: "dev Spearman"}
NOTE = (
    "n is the number of seeds used for both settings. With only 3 to 5 seeds, bootstrap intervals are too narrow, so "
    "the table also reports paired t intervals, which assume normally distributed differences. The verdict is `signal` "
    "if both intervals exclude 0. The intervals reflect variation across seeds, including the sampled training "
    "sentences, but not across test sentences."
)
Records = Mapping[tuple[str, int | None], dict]  # contents of run.json by setting and seed


def name_of(measure: str) -> str:
    """Return the name of a measure in tables and plots."""
    sample, _, key = measure.rpartition("/")
    return f"{sample} {TITLES.get(key, key)}".strip()


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


def summarize(study: Study, records: Records) -> dict:
    """Return the statistics of a study, as stored in its summary.json."""
    settings, columns = {}, (DEVELOPMENT, *study.measures, *GEOMETRY)
    for setting in study.settings:
        runs = {seed: records[setting.name, seed] for seed in study.seeds if (setting.name, seed) in records}
        values = {column: {seed: value_of(run, column) for seed, run in runs.items()} for column in columns}
        settings[setting.name] = {
            "recipe": setting.recipe,
            "options": without_paths(setting.options),
            "baseline": setting.baseline,
            **{column: mean_and_sd(by_seed) for column, by_seed in values.items()},
        }
    before = {s.name: records[s.name, None] for s in study.before if (s.name, None) in records}
    pairs = [setting for setting in study.settings if setting.baseline]
    every = [(s.name, None) for s in study.before] + [(s.name, seed) for seed in study.seeds for s in study.settings]
    return {
        "schema": SCHEMA,
        **{name: getattr(study, name) for name in ("name", "title", "tasks", "grid", "seeds", "measures", "published")},
        "samples": {name: [kind, Path(file).name] for name, (kind, file) in study.samples.items()},
        "missing": [list(key) for key in every if key not in records],
        "unlike": _unlike(study, records),
        "before": {name: {column: value_of(record, column) for column in columns} for name, record in before.items()},
        "settings": settings,
        "differences": [compare(pair, measure, settings, study.seeds) for measure in study.measures for pair in pairs],
        "best": _best(study.settings, settings) if study.grid and not pairs else {},
    }


def mean_and_sd(values: Mapping[int, float | None]) -> dict:
    """Return the values that are not None, their mean, standard deviation (n - 1; None for one value) and number n."""
    defined = {seed: value for seed, value in values.items() if value is not None}
    numbers = list(defined.values())
    return {
        "values": defined,
        "mean": float(np.mean(numbers)) if numbers else None,
        "sd": float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None,
        "n": len(numbers),
    }


def compare(setting: Setting, measure: str, settings: dict, seeds: Sequence[int]) -> dict:
    """Return the differences between a setting and its baseline, paired by seed, with 95% intervals of their mean."""
    values, other = (settings[name][measure]["values"] for name in (setting.name, setting.baseline))
    gains = {seed: values[seed] - other[seed] for seed in seeds if seed in values and seed in other}
    resampled, normal = intervals(list(gains.values()))
    names = {"setting": setting.name, "baseline": setting.baseline, "measure": measure}
    few = f"n < {FEWEST}" if len(gains) < FEWEST else "equal values"
    shown = verdict(resampled, normal) if resampled else f"{few}: no interval"
    return names | mean_and_sd(gains) | {"bootstrap": resampled, "t": normal, "verdict": shown}


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


def verdict(resampled: Sequence[float], normal: Sequence[float]) -> str:
    """Return "signal" if both intervals exclude 0, otherwise "not shown", which does not mean that there is none."""
    return SIGNAL if all(low > 0 or high < 0 for low, high in (resampled, normal)) else "not shown"


def p_value(gain: Mapping) -> float | None:
    """Return the p value of the paired t test of a difference; None for fewer than 3 seeds or equal values."""
    values = list(gain["values"].values())
    return float(ttest_1samp(values, 0).pvalue) if gain["t"] else None


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Return p values corrected for all comparisons, in the order given; None stays None.

    Source:
        Holm (1979).
    """
    ordered = sorted((p, i) for i, p in enumerate(values) if p is not None)
    corrected: list[float | None] = [None] * len(values)
    largest = 0.0
    for rank, (p, i) in enumerate(ordered):
        largest = max(largest, min(1.0, (len(ordered) - rank) * p))
        corrected[i] = largest
    return corrected


def tables(summary: dict) -> list[str]:
    """Return the table of means, with baselines a table of differences for each measure, and notes."""
    measures, published = summary["measures"], summary.get("published", {})
    columns = tuple(dict.fromkeys((DEVELOPMENT, *measures, *GEOMETRY)))
    beside = [measure for measure in measures if any(measure in scores for scores in published.values())]
    rows: list[list[object]] = []
    for name, before in summary["before"].items():
        rows.append([name, *(_number(before[column], column) for column in columns), *(None for _ in beside)])
    for name, setting in summary["settings"].items():
        paper = published.get(name, {})
        rows.append([name, *(_mean(setting[column], column) for column in columns), *map(paper.get, beside)])
    for name in [name for name in published if name not in summary["settings"]]:
        rows.append([name, *(None for _ in columns), *map(published[name].get, beside)])
    titles = ["", *map(name_of, columns), *(f"{name_of(measure)}, published" for measure in beside)]
    parts = [markdown(f"{summary['title']}: mean ± sd over seeds (n)", titles, rows)]
    parts += [_differences(summary, measure) for measure in measures if summary["differences"]]
    return [*parts, *_notes(summary)]


def _differences(summary: dict, measure: str) -> str:
    """Return a table of settings minus their baselines by one measure."""
    rows = []
    for gain, p in zip(summary["differences"], holm([p_value(gain) for gain in summary["differences"]])):
        if gain["measure"] == measure:
            both = (gain[kind] and "{:+.2f} to {:+.2f}".format(*gain[kind]) for kind in ("bootstrap", "t"))
            mean = None if gain["mean"] is None else f"{gain['mean']:+.2f}"
            by_seed = [gain["values"].get(seed) for seed in summary["seeds"]]
            cells = [mean, *both, gain["n"], gain["verdict"], p and f"{p:.3f}{', signal' if p < LEVEL else ''}"]
            cells += [None if value is None else f"{value:+.2f}" for value in by_seed]
            rows.append([f"{gain['setting']} - {gain['baseline']}", *cells])
    titles = ["", "mean", "95% bootstrap", "95% t", "seeds (n)", "verdict", "p (Holm)"]
    titles += [f"seed {seed}" for seed in summary["seeds"]]
    return markdown(f"{name_of(measure)}: difference, paired by seed", titles, rows)


def _notes(summary: dict) -> list[str]:
    lines = [NOTE] if summary["differences"] else []
    count = sum(gain["t"] is not None for gain in summary["differences"])
    if count > 1:
        lines.append(
            f"The table has {count} comparisons. Verdicts are not corrected for multiple comparisons: about "
            f"{LEVEL * count:.2g} signals are expected by chance. p (Holm) is the p value of the paired t test with "
            f"Holm's correction for {count} comparisons."
        )
    for what, counts in summary["unlike"].items():
        values = ", ".join(f"{value} ({runs})" for value, runs in counts.items())
        lines.append(f"The finished runs differ in {what} (number of runs): {values}.")
    if summary["missing"]:
        runs = ", ".join(name if seed is None else f"{name} seed {seed}" for name, seed in summary["missing"])
        lines.append(f"Not finished: {runs}.")
    for recipe, best in summary["best"].items():
        options = " ".join(words({name: value for name, value in best["options"].items() if name not in CARD}))
        where = f"{best['setting']} ({best['mean']:.2f}): {options}"
        lines.append(f"Best combination of {recipe} by development score: {where}")
    return lines


def plot_rows(summary: dict) -> list[dict]:
    """Return one row per measure, setting and seed, for `plots.seeds`."""
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
    for recipe in dict.fromkeys(setting.recipe for setting in settings):
        scored = {one.name: one for one in settings if one.recipe == recipe and scores[one.name]["n"]}
        if scored:
            name = max(scored, key=lambda name: (scores[name]["n"], scores[name]["mean"]))
            options = without_paths(scored[name].options)
            best[recipe] = {"setting": name, "mean": scores[name]["mean"], "options": options}
    return best


def _unlike(study: Study, records: Records) -> dict[str, dict[str, int]]:
    """Return conditions and files that differ between runs but should not, with the number of runs for each value."""
    trained = [record for (_, seed), record in records.items() if seed is not None]
    packages = dict.fromkeys(name for record in trained for name in record["environment"])
    values = {
        "the encoder's weights": [str(record["base_model"]["weights_sha256"])[:8] for record in trained],
        "precision": [record["precision"] for record in trained],
        "sentences": [(record["data"] or {}).get("sentences") for record in trained],
    } | {name: [record["environment"].get(name, "none") for record in trained] for name in packages}
    if len({str(setting.options.get("max_train_samples")) for setting in study.settings}) > 1:
        del values["sentences"]
    for name in study.samples:
        samples = [record["samples"][name] for record in records.values() if name in record.get("samples", {})]
        checksums = [(sample["data"] or {}).values() for sample in samples]
        values[f"the content of {name}"] = ["".join(checksum[:8] for checksum in each) for each in checksums]
    counts = {name: dict(Counter(map(str, found))) for name, found in values.items()}
    machine = ("device", "threads")  # which may differ
    return {name: found for name, found in counts.items() if len(found) > 1 and name not in machine}


def _mean(summary: dict, column: str) -> str | None:
    if not summary["n"]:
        return None
    spread = "" if summary["sd"] is None else f" ± {_number(summary['sd'], column)}"
    return f"{_number(summary['mean'], column)}{spread} ({summary['n']})"


def _number(value: float | None, column: str) -> str | None:
    return None if value is None else f"{value:.{3 if column in GEOMETRY else 2}f}"
