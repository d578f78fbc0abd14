"""Read a study from a YAML file: the same training repeated over settings and seeds.

title      title of table and plot
base       options of `informin train` for all runs
recipes    mapping from names to options that override base; one row of the table each, in this order
grid       mapping from options to lists of values; every recipe runs with every combination
seeds      list of seeds
baseline   recipe to compare the others with, paired by seed and grid combination; or a mapping from recipes to their
           baselines
tasks      tasks of `informin eval`: sts, transfer or names. Without tasks, only the development score is reported.
labels     labeled files to score on, as for `informin eval`
retrieval  files of retrieval pairs to score on, as for `informin eval`
before     true: also score the encoders before training
published  mapping from names of settings to what a paper reports: sts, transfer or names of tasks, each with the
           reference of a figure in experiments/published.yaml. The table shows the figures beside ours, and those of
           other names, such as a paper's own baseline, in rows of their own.

`recipes` and `seeds` are required. Precedence of options, highest first: grid, `--set`, recipe, base. A null value
leaves an option out.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from experiments.published import figure
from informin.errors import UsageError
from informin.evaluation.results import task_name
from informin.files import last_name

GROUPS = {
    "sts": ["STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R"],
    "transfer": ["MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC"],
}
SAMPLES = ("labels", "retrieval")
KEYS = ("title", "base", "recipes", "grid", "seeds", "baseline", "tasks", *SAMPLES, "before", "published")
CARD = {"base_model", "license", "language"}  # options that do not affect the weights
SHORT = {"per_device_train_batch_size": "batch", "learning_rate": "lr", "max_train_samples": "sentences"}
COMPARED = {"labels": ("v_measure", "nearest_neighbor"), "retrieval": ("mrr_10", "ndcg_10")}  # measures of samples
DEVELOPMENT, BEFORE = "dev", "before training"
READING = ("model_name", "pooler", "prompt", "use_cpu", "bf16", "senteval_dir", "trust_remote_code")


@dataclass(frozen=True)
class Setting:
    """A recipe at one combination of the grid. Its runs differ only in the seed.

    Attributes:
        name: Name in tables, such as "simcse, batch 64, lr 1e-4"; without a grid, that of the recipe.
        recipe: Name of the recipe.
        options: Options of `informin train`, without seed and output_dir.
        baseline: Name of the setting to compare with.
        trained: False for an encoder before training.
    """

    name: str
    recipe: str
    options: dict
    baseline: str | None = None
    trained: bool = True

    @property
    def folder(self) -> str:
        """Name of the folder of the runs: the setting's, and a digest of the options that affect the weights."""
        shaping = {name: value for name, value in self.options.items() if name not in CARD} | {"trained": self.trained}
        digest = hashlib.sha256(json.dumps(normalized(shaping), sort_keys=True).encode()).hexdigest()[:8]
        slug = re.sub(r"[^a-z0-9.]+", "-", self.name.lower())[:40].strip("-.")
        return f"{slug or 'run'}-{digest}"


@dataclass(frozen=True)
class Study:
    """Content of a study file. `samples` are (labels or retrieval, file) by name, `grid` the options that vary."""

    name: str
    title: str
    settings: list[Setting]
    seeds: list[int]
    tasks: list[str]
    grid: list[str]
    samples: dict[str, tuple[str, str]] = field(default_factory=dict)
    before: list[Setting] = field(default_factory=list)
    published: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def scored(self) -> list[str]:
        """Names of the scores that `informin eval` gives each run."""
        return [*self.tasks, *self.samples]

    @property
    def measures(self) -> list[str]:
        """Measures that settings are compared by: averages of whole groups, single tasks, SAMPLE/MEASURE, or `dev`."""
        whole = [group for group, names in GROUPS.items() if set(names) <= set(self.tasks)]
        averaged = {name for group in whole for name in GROUPS[group]}
        single = [name for name in self.tasks if name not in averaged]
        samples = [f"{name}/{measure}" for name, (kind, _) in self.samples.items() for measure in COMPARED[kind]]
        return whole + single + samples or [DEVELOPMENT]


def read_study(
    path: str | Path, overrides: Sequence[str] = (), seeds: Sequence[int] | None = None, files: Sequence[str] = ()
) -> Study:
    """Read a study from its YAML file.

    Args:
        overrides: OPTION=VALUE words, which override the file, except for its grid.
        seeds: Seeds to use instead of those in the file.
        files: Files to use instead of the samples with the same names.

    Raises:
        UsageError: A key is unknown, a baseline or a published figure does not exist, or two settings have the same
            options.
    """
    content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    _raise_if_unknown(f"{path}: key", content, KEYS)
    recipes, grid = content["recipes"], content.get("grid") or {}
    forced = dict(word.split("=", 1) for word in overrides)
    forced = {name: yaml.safe_load(value) for name, value in forced.items()}
    _raise_if_unknown("--set: option outside the grid", forced, set(forced) - set(grid))
    settings = _settings(content.get("base") or {}, recipes, forced, grid, _baselines(path, content, recipes))
    if len({setting.folder[-8:] for setting in settings}) < len(settings):
        raise UsageError(f"{path}: two settings have the same options", fix="Leave one out.")
    return Study(
        name=Path(path).stem,
        title=str(content.get("title", Path(path).stem)),
        settings=settings,
        seeds=list(seeds or content["seeds"]),
        tasks=[name for task in content.get("tasks") or [] for name in GROUPS.get(task, [task])],
        grid=list(grid),
        samples=_samples(content, files),
        before=_before(settings) if content.get("before") else [],
        published={
            name: {measure: figure(str(reference)) for measure, reference in measures.items()}
            for name, measures in (content.get("published") or {}).items()
        },
    )


def normalized(value):
    """Return the same value for equivalent spellings: 3e-5 (text in YAML) and 0.00003; a and [a]."""
    if isinstance(value, dict):
        return {str(name): normalized(item) for name, item in value.items()}
    if isinstance(value, list):
        return normalized(value[0]) if len(value) == 1 else [normalized(item) for item in value]
    try:
        number = float(value)
    except (ValueError, TypeError):
        return value
    return value if isinstance(value, bool) else int(number) if number.is_integer() else number


def shown(value) -> str:
    """Format the value of an option for a name: 1e-4, 128, none."""
    value = normalized(value)
    if isinstance(value, float) and 0 < abs(value) < 0.001:
        return re.sub(r"\.?0*e-0*", "e-", f"{value:.6e}")
    return json.dumps(value) if isinstance(value, bool | dict) else last_name(str(value))


def _raise_if_unknown(what: str, names, known) -> None:
    unknown = [str(name) for name in names if name not in known]
    if unknown:
        raise UsageError(f"{what} unknown: {', '.join(unknown)}", needed=f"of: {', '.join(known)}")


def _baselines(path, content: dict, recipes: dict) -> dict[str, str]:
    """Return the baseline of each recipe that has one."""
    baseline = content.get("baseline") or {}
    if not isinstance(baseline, dict):
        baseline = {name: baseline for name in recipes if name != baseline}
    _raise_if_unknown(f"{path}: recipe in baseline", [*baseline, *baseline.values()], recipes)
    return baseline


def _settings(base: dict, recipes: dict, forced: dict, grid: dict, baselines: dict) -> list[Setting]:
    """Return every recipe at every grid combination, sorted by combination if there are baselines, else by recipe."""
    settings = []
    for combination in itertools.product(*grid.values()):
        varied = dict(zip(grid, combination))
        at = "".join(f", {SHORT.get(name, name.replace('_', ' '))} {shown(value)}" for name, value in varied.items())
        for recipe, changes in recipes.items():
            options = base | (changes or {}) | forced | varied
            options = {name: value for name, value in options.items() if value not in (None, [])}
            baseline = f"{baselines[recipe]}{at}" if recipe in baselines else None
            settings.append(Setting(f"{recipe}{at}", recipe, options, baseline))
    if not baselines:  # with baselines, keep each one above the settings compared with it
        settings.sort(key=lambda setting: list(recipes).index(setting.recipe))
    return settings


def _samples(content: dict, files: Sequence[str]) -> dict[str, tuple[str, str]]:
    instead = {Path(file).name: file for file in files}
    named = [(kind, file) for kind in SAMPLES for file in content.get(kind) or []]
    samples: dict[str, tuple[str, str]] = {}
    for kind, file in named:
        chosen = instead.get(Path(file).name, file)
        if (name := task_name(chosen)) in samples:
            raise UsageError(f"{file} and {samples[name][1]} are both named {name}", fix="Rename one of them.")
        samples[name] = kind, chosen
    return samples


def _before(settings: Sequence[Setting]) -> list[Setting]:
    """Return settings for the encoders before training, one for each way they are used."""
    starts: list[dict] = []
    for setting in settings:
        start = {name: setting.options[name] for name in READING if name in setting.options}
        if start not in starts:
            starts.append(start)
    names = (
        [BEFORE]
        if len(starts) == 1
        else [f"{BEFORE}, {shown(start['model_name'])} {i}" for i, start in enumerate(starts)]
    )
    return [Setting(name, BEFORE, start, trained=False) for name, start in zip(names, starts)]
