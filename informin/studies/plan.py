"""A study: the same training repeated over settings and seeds, as a YAML file says.

title      of table and plot
base       options of run_unsup.py that all runs share
recipes    name: options over base; the rows of the table, in this order
grid       option: values; every recipe with every combination of them
seeds      of the runs
baseline   the recipe that the others are compared with, seed by seed and at the same combination of the grid; or a
           mapping, recipe: its baseline
tasks      of run_eval.py: sts, transfer or names; none for the development score of the training alone
labels     files of labeled samples, retrieval of searches, that runs are scored on too: see run_eval.py
before     true: the tables begin with the encoders before training, scored once

`recipes` and `seeds` are needed. An option `config: FILE` of base or of a recipe starts from a recipe file, without its
seed and output_dir. What sets an option, the strongest first: grid, the command line (which may not set what the grid
varies), recipe, base, `config` (one file, named by the strongest of these).
"""

import difflib
import hashlib
import itertools
import json
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from informin.errors import UsageError, counted
from informin.evaluation.scoring import load_tasks, sample_name
from informin.evaluation.senteval import GROUPS, TASKS, chosen_tasks
from informin.evaluation.senteval_files import senteval_folder
from informin.files import last_name
from informin.training.command_line import option_names, parse, read_options_file
from informin.training.data_options import CardArguments
from informin.yamlfiles import parse_yaml, read_mapping

SAMPLES = ("labels", "retrieval")
KEYS = ("title", "base", "recipes", "grid", "seeds", "baseline", "tasks", *SAMPLES, "before")
OWN = ("seed", "output_dir", "resume_from_checkpoint", "resume_with_changes", "push_to_hub")  # what a study decides
CARD = {field.name for field in fields(CardArguments)}
SHORT = {"per_device_train_batch_size": "batch", "learning_rate": "lr", "max_train_samples": "sentences"}
MOST_SETTINGS, MOST_RUNS = 1000, 10_000
DEVELOPMENT = "dev"
BEFORE = "before training"
READING = ("model_name", "pooler", "prompt")  # options that say what is scored before training
COMPARED = {"labels": ("v_measure", "nearest_neighbor"), "retrieval": ("mrr_10", "ndcg_10")}  # measures of samples
DATA_INSTEAD = "`set` senteval_dir=FOLDER (SentEval's data/downstream), or set SENTEVAL_DATA to it"


@dataclass(frozen=True)
class Setting:
    """A recipe at one combination of the grid: its runs differ by the seed alone."""

    name: str  # "simcse, batch 64, lr 1e-4"; without a grid the recipe's
    recipe: str
    options: dict  # of run_unsup.py, without seed and output_dir
    baseline: str | None = None  # the name of the setting that it is compared with
    trained: bool = True  # else it is an encoder as it came

    @property
    def digest(self) -> str:
        """8 hexadecimal digits of the SHA-256 of the options that change a weight, however their numbers are spelt."""
        shaping = {"pooler": "auto"} | {name: value for name, value in self.options.items() if name not in CARD}
        if shaping["pooler"] == "cls":  # what all runs had before it was an option: their folders keep their names
            del shaping["pooler"]
        shaping |= {} if self.trained else {"trained": False}
        return hashlib.sha256(json.dumps(normalized(shaping), sort_keys=True).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Study:
    """What a file says, with what the command line changes."""

    name: str  # the file's, without suffix
    title: str
    settings: list[Setting]
    seeds: list[int]
    tasks: list[str]  # names, in the papers' order
    grid: list[str]  # the options that are varied
    samples: dict[str, tuple[str, str]] = field(default_factory=dict)  # by name: labels or retrieval, and the file
    before: list[Setting] = field(default_factory=list)  # encoders as they came

    @property
    def scored(self) -> list[str]:
        """The tasks of run_eval.py that runs are scored on, samples among them."""
        return [*self.tasks, *self.samples]

    @property
    def measures(self) -> list[str]:
        """What settings are compared by: the averages of whole groups of tasks, tasks by themselves, SAMPLE/MEASURE.

        Without any of them, `dev`.
        """
        whole = [group for group, names in GROUPS.items() if set(names) <= set(self.tasks)]
        averaged = {name for group in whole for name in GROUPS[group]}
        own = [f"{name}/{measure}" for name, (kind, _) in self.samples.items() for measure in COMPARED[kind]]
        return [*whole, *(name for name in self.tasks if name not in averaged), *own] or [DEVELOPMENT]


def read_study(
    path: str | Path,
    overrides: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    files: Sequence[str] = (),
) -> Study:
    """A study from its YAML file. Raises UsageError where it cannot be read, or says what cannot be run.

    Args:
        overrides: option=value, stronger than the file but for its grid.
        seeds: in place of the file's.
        files: in place of those samples of the file that have the same names.
    """
    path = Path(path)
    if path.stem.startswith("."):
        raise UsageError(f"{path}: the tables of a study lie in a folder of its name, {path.stem!r}. Rename the file.")
    if path.stem == "runs":
        raise UsageError(f"{path}: the runs of all studies lie in a folder `runs`. Give the file another name.")
    given = read_mapping(path, str(path), f"a mapping of {', '.join(KEYS)}")
    _refuse_unknown(str(path), "key", given, KEYS, f" Needed {', '.join(KEYS)}.")
    known = set(option_names())
    recipes = _mapping(f"{path}: recipes", given.get("recipes"))
    if not recipes:
        raise UsageError(f"{path}: needed `recipes`, a mapping of names to options; found none.")
    recipes = {name: _checked(f"{path}: recipe {name}", options, known) for name, options in recipes.items()}
    base = _checked(f"{path}: base", given.get("base"), known)
    grid = _checked(f"{path}: grid", given.get("grid"), known - {"config"})
    forced = _checked("`set`", _overrides(overrides), known)
    for option, values in grid.items():
        if not isinstance(values, list) or not values:
            raise UsageError(f"{path}: grid: {option} is {values!r}; needed a list of values.")
        if option in forced:
            raise UsageError(f"`set` {option}: the grid of {path} varies it. Change the grid, or leave it out.")
    seeds = _seeds(f"{path}: seeds", given.get("seeds")) if seeds is None else _seeds("`seeds`", seeds)
    _refuse_many(path, len(recipes), grid, len(seeds))
    settings = _settings(path, base, recipes, forced, grid, _baselines(path, given.get("baseline"), recipes))
    tasks, samples = _tasks(path, given.get("tasks")), _samples(path, given, files)
    return Study(
        name=path.stem,
        title=str(given.get("title", path.stem)),
        settings=settings,
        seeds=list(seeds),
        tasks=tasks,
        grid=list(grid),
        samples=samples,
        before=_before(path, given.get("before"), settings, [*tasks, *samples]),
    )


def check_options(study: Study) -> None:
    """Parses the options of every setting, so that a mistake in the last one is found before the first one runs.

    What only the encoder or the sentences can tell (layers, heads, how many there are) is found when a run starts.
    Raises UsageError where run_unsup.py would refuse a setting's options, or nothing of its runs would be scored.
    """
    for setting in study.settings:
        try:
            *_, args = parse([], setting.options | {"seed": study.seeds[0], "output_dir": "unused"})
            if args.eval_strategy == "no" and not study.scored:
                raise UsageError(
                    "nothing of its runs is scored. Give the study `tasks`, or labels or retrieval, or leave "
                    "eval_strategy on."
                )
        except UsageError as error:
            raise UsageError(f"{setting.name}: {error}") from None


def check_data(study: Study) -> None:
    """Reads the data of the tasks before anything is trained. Raises UsageError as `load_tasks`."""
    files = {kind: [file for own, file in study.samples.values() if own == kind] for kind in SAMPLES}
    load_tasks(None, [], **files)
    if study.tasks:
        for folder in dict.fromkeys(setting.options.get("senteval_dir") for setting in study.settings):
            load_tasks(senteval_folder(folder, DATA_INSTEAD), study.tasks)


def normalized(value):
    """One value for all spellings: 3e-5, which YAML reads as text, and 0.00003; no and false; a and [a]."""
    if isinstance(value, dict):
        return {str(name): normalized(item) for name, item in value.items()}
    if isinstance(value, list):
        return normalized(value[0]) if len(value) == 1 else [normalized(item) for item in value]
    word = str(value).lower()
    if word in ("yes", "true", "no", "false"):
        return word in ("yes", "true")
    try:
        number = float(value)
    except (ValueError, TypeError):
        return value
    return int(number) if number.is_integer() else number


def shown(value) -> str:
    """An option's value in a name: 1e-4, 128, none."""
    value = normalized(value)
    if isinstance(value, float) and 0 < abs(value) < 0.001:
        return re.sub(r"\.?0*e-0*", "e-", f"{value:.6e}")
    return json.dumps(value) if isinstance(value, (bool, dict)) else str(value)


def without_paths(value):
    """An option's value with files and folders by the last part of their names, as training.json has them."""
    if isinstance(value, dict):
        return {name: without_paths(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_paths(item) for item in value]
    if not isinstance(value, str):
        return value
    path = Path(value)
    return last_name(value) if path.is_absolute() or value.startswith("~") or os.path.exists(value) else value


def _refuse_unknown(where: str, kind: str, names: Iterable, known: Collection[str], needed: str = "") -> None:
    """Raises UsageError where a name is none of those known, with the nearest of them."""
    unknown = [str(name) for name in names if name not in known]
    if unknown:
        near = [match for name in unknown for match in difflib.get_close_matches(name, known, n=1)]
        hint = f" Did you mean {', '.join(near)}?" if near else ""
        raise UsageError(f"{where}: no such {kind}: {', '.join(unknown)}.{hint}{needed}")


def _mapping(where: str, given) -> dict:
    """By names that are text; an empty one where nothing is given."""
    if not isinstance(given or {}, dict):
        raise UsageError(f"{where} is {type(given).__name__}; needed a mapping.")
    return {str(name): value for name, value in (given or {}).items()}


def _checked(where: str, given, known: Collection[str]) -> dict:
    """Options by names that exist, and that a study leaves to its files."""
    options = _mapping(where, given)
    _refuse_unknown(where, "option", options, known)
    own = [name for name in OWN if name in options]
    if own:
        raise UsageError(f"{where} sets {', '.join(own)}, which the study decides for each run. Leave it out.")
    return options


def _overrides(given: Sequence[str]) -> dict:
    """Words like option=value as options; their values are read as in the file."""
    options = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"`set` {word}: needed option=value.")
        try:
            options[name] = parse_yaml(value, f"`set` {name}")
        except UsageError:
            options[name] = value
    return options


def _refuse_many(path: Path, recipes: int, grid: dict[str, list], seeds: int) -> None:
    """Raises UsageError for more settings or runs than a study takes."""
    settings = recipes * math.prod(map(len, grid.values()))
    if settings > MOST_SETTINGS or settings * seeds > MOST_RUNS:
        sizes = " x ".join([f"{recipes:,} recipes", *(f"{len(values):,} {name}" for name, values in grid.items())])
        raise UsageError(
            f"{path}: found {counted(settings, 'setting')} ({sizes}) and {counted(seeds, 'seed')}; a study takes up to "
            f"{MOST_SETTINGS:,} settings and {MOST_RUNS:,} runs. Split it."
        )


def _settings(path: Path, base: dict, recipes: dict, forced: dict, grid: dict, baselines: dict) -> list[Setting]:
    """Every recipe at every combination of the grid: by combination where there are baselines, else by recipe."""
    settings, names = [], {}
    for combination in itertools.product(*grid.values()):
        varied = dict(zip(grid, combination))
        seen = without_paths(varied).items()
        at = "".join(f", {SHORT.get(option, option.replace('_', ' '))} {shown(value)}" for option, value in seen)
        for recipe, own in recipes.items():
            baseline = f"{baselines[recipe]}{at}" if recipe in baselines else None
            setting = Setting(f"{recipe}{at}", recipe, _resolved(base | own | forced | varied), baseline)
            if setting.digest in names:
                both = f"{names[setting.digest]} and {setting.name}"
                raise UsageError(f"{path}: {both} have the same options. Leave one out.")
            if setting.name in names.values():
                raise UsageError(f"{path}: two settings would be called {setting.name}. Rename what they differ in.")
            names[setting.digest] = setting.name
            settings.append(setting)
    if not baselines:  # where there are, a baseline stands above those that are compared with it
        settings.sort(key=lambda setting: list(recipes).index(setting.recipe))
    return settings


def _resolved(options: dict) -> dict:
    """Options over those of their `config`; null and [] give way to what run_unsup.py fills in."""
    file = options.get("config")
    start = {name: value for name, value in read_options_file(file).items() if name not in OWN} if file else {}
    return {name: value for name, value in (start | options).items() if name != "config" and value not in (None, [])}


def _baselines(path: Path, given, recipes: dict) -> dict[str, str]:
    """From recipes to their baselines."""
    if isinstance(given, dict):
        baselines = {str(name): str(baseline) for name, baseline in given.items()}
    else:
        baselines = {} if given is None else {name: str(given) for name in recipes if name != str(given)}
    named = dict.fromkeys([*baselines, *baselines.values()])
    _refuse_unknown(f"{path}: baseline", "recipe", named, recipes, f" Needed of: {', '.join(recipes)}.")
    own = [name for name, baseline in baselines.items() if name == baseline]
    if own:
        raise UsageError(f"{path}: baseline: {', '.join(own)} would be compared with itself. Name another recipe.")
    return baselines


def _seeds(where: str, seeds) -> list[int]:
    if not (seeds and isinstance(seeds, list) and all(type(seed) is int and seed >= 0 for seed in seeds)):
        raise UsageError(f"{where}: found {seeds!r}; needed a list of whole numbers, [1, 2, 3] for instance.")
    repeated = sorted(seed for seed, times in Counter(seeds).items() if times > 1)
    if repeated:
        raise UsageError(f"{where}: {', '.join(map(str, repeated))} repeated. A seed is run once.")
    return seeds


def _tasks(path: Path, tasks) -> list[str]:
    if not isinstance(tasks or [], list):
        raise UsageError(f"{path}: tasks: found {tasks!r}; needed a list, [sts] for instance.")
    try:
        return chosen_tasks([str(task) for task in tasks or []], "test")
    except UsageError as error:
        raise UsageError(f"{path}: tasks {error.found}", needed=error.needed, fix=error.fix) from None


def _samples(path: Path, given: dict, files: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The labeled samples and searches by name: their kind and file; `files` stand for those of the same name."""
    instead, samples = {Path(file).name: file for file in files}, {}
    for kind in SAMPLES:
        named = given.get(kind) or []
        if not isinstance(named, list) or not all(isinstance(file, str) for file in named):
            raise UsageError(f"{path}: {kind}: found {named!r}; needed a list of files.")
        for file in named:
            name = sample_name(file)
            if name in samples or name in TASKS:
                raise UsageError(f"{path}: {kind}: there is a task {name} already. Rename {file}.")
            samples[name] = (kind, instead.pop(Path(file).name, file))
    if instead:
        known = ", ".join(Path(file).name for _, file in samples.values()) or "none"
        raise UsageError(f"`labels` {', '.join(instead.values())}: {path} names no such file. It names: {known}.")
    return samples


def _before(path: Path, given, settings: Sequence[Setting], scored: Sequence[str]) -> list[Setting]:
    """The encoders that the settings start from, as they are read."""
    if given not in (None, True, False):
        raise UsageError(f"{path}: before: found {given!r}; needed true or false.")
    if not given:
        return []
    if not scored:
        raise UsageError(f"{path}: before: nothing says what is scored. Give the study tasks or labels.")
    if any("model_revision" in setting.options for setting in settings):
        raise UsageError(f"{path}: before: run_eval.py reads no `model_revision`. Leave one of them out.")
    kept = [*READING, "senteval_dir", "use_cpu"]
    starts = [{name: s.options[name] for name in kept if name in s.options} for s in settings]
    read = [{name: start[name] for name in READING if name in start} for start in map(without_paths, starts)]
    told = [name for name in READING if len({str(own.get(name)) for own in read}) > 1]
    found: dict[str, Setting] = {}
    for start, own in zip(starts, read):
        name = ", ".join([BEFORE, *(f"{option} {shown(own.get(option))}" for option in told)])
        found.setdefault(name, Setting(name, BEFORE, start, trained=False))
    return list(found.values())
