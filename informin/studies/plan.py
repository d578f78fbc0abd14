"""Read a study from a YAML file: the same training repeated over settings and seeds.

title      title of table and plot
base       options of run_unsup.py for all runs
recipes    mapping from names to options that override base; one row of the table each, in this order
grid       mapping from options to lists of values; every recipe runs with every combination
seeds      list of seeds
baseline   recipe to compare the others with, paired by seed and grid combination; or a mapping from recipes to their
           baselines
tasks      tasks of `informin eval`: sts, transfer or names. Without tasks, only the development score is reported.
labels     labeled files to score on, as for `informin eval`
retrieval  files of retrieval pairs to score on, as for `informin eval`
before     true: also score the encoders before training
published  mapping from names of settings to the scores that a paper reports: sts, transfer or names of tasks. The table
           shows them beside ours.

`recipes` and `seeds` are required. The option `config: FILE` in base or in a recipe starts from a file of options,
without its seed and output_dir. Precedence, highest first: grid, command line (which cannot set an option of the grid),
recipe, base, `config`.
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
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from informin.errors import UsageError, counted
from informin.evaluation.scoring import load_tasks, sample_name
from informin.evaluation.senteval import GROUPS, TASKS, chosen_tasks
from informin.evaluation.senteval_files import senteval_folder
from informin.files import last_name
from informin.program import LARGEST_SEED
from informin.training.command_line import option_names, parse, read_options_file
from informin.training.data_options import CardArguments
from informin.training.recipes import recipe_file
from informin.yamlfiles import parse_yaml, read_mapping

SAMPLES = ("labels", "retrieval")
KEYS = ("title", "base", "recipes", "grid", "seeds", "baseline", "tasks", *SAMPLES, "before", "published")
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
    """A recipe at one combination of the grid. Its runs differ only in the seed."""

    name: str  # "simcse, batch 64, lr 1e-4"; without a grid, the recipe's name
    recipe: str
    options: dict  # of run_unsup.py, without seed and output_dir
    baseline: str | None = None  # name of the setting to compare with
    trained: bool = True  # False for an encoder before training

    @property
    def digest(self) -> str:
        """First 8 hex digits of the SHA-256 of the options that affect the weights, with normalized numbers."""
        shaping = {"pooler": "auto"} | {name: value for name, value in self.options.items() if name not in CARD}
        if shaping["pooler"] == "cls":  # older runs have no such option; keep the names of their folders
            del shaping["pooler"]
        shaping |= {} if self.trained else {"trained": False}
        return hashlib.sha256(json.dumps(normalized(shaping), sort_keys=True).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Study:
    """Content of a study file, with the changes of the command line."""

    name: str  # of the file, without suffix
    title: str
    settings: list[Setting]
    seeds: list[int]
    tasks: list[str]  # names, in the order of the papers
    grid: list[str]  # options that vary
    samples: dict[str, tuple[str, str]] = field(default_factory=dict)  # by name: (labels or retrieval, file)
    before: list[Setting] = field(default_factory=list)  # encoders before training
    published: dict[str, dict[str, float]] = field(default_factory=dict)  # scores in a paper, by setting and measure

    @property
    def scored(self) -> list[str]:
        """Tasks of `informin eval` that runs are scored on, including samples."""
        return [*self.tasks, *self.samples]

    @property
    def measures(self) -> list[str]:
        """Measures that settings are compared by: averages of complete groups, single tasks, SAMPLE/MEASURE.

        `dev` if there are none.
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
    """Read a study from its YAML file. Raise UsageError if the file is unreadable or invalid.

    Args:
        overrides: List of option=value. They override the file, except for its grid.
        seeds: Seeds to use instead of those in the file.
        files: Files to use instead of the samples with the same names.
    """
    path = Path(path)
    if path.stem.startswith("."):
        raise UsageError(
            f"{path}: tables are saved in a folder of the file's name, which cannot be {path.stem!r}",
            fix="Rename the file.",
        )
    if path.stem == "runs":
        raise UsageError(
            f"{path}: the name `runs` is reserved for the folder with the runs of all studies", fix="Rename the file."
        )
    given = read_mapping(path, str(path), f"a mapping of {', '.join(KEYS)}")
    _refuse_unknown(str(path), "key", given, KEYS, "keys of: " + ", ".join(KEYS))
    known = set(option_names())
    recipes = _mapping(f"{path}: recipes", given.get("recipes"))
    if not recipes:
        raise UsageError(f"{path}: found no recipes", needed="a key recipes, a mapping of names to options")
    recipes = {name: _checked(f"{path}: recipe {name}", options, known) for name, options in recipes.items()}
    base = _checked(f"{path}: base", given.get("base"), known)
    grid = _checked(f"{path}: grid", given.get("grid"), known - {"config"})
    forced = _checked("`set`", _overrides(overrides), known)
    for option, values in grid.items():
        if not isinstance(values, list) or not values:
            raise UsageError(f"{path}: grid: {option} is {values!r}", needed="a list of values")
        if option in forced:
            raise UsageError(
                f"{option}: the grid of {path} varies it", option="set", fix="Change the grid, or leave the option out."
            )
    seeds = _seeds(f"{path}: seeds", given.get("seeds")) if seeds is None else _seeds("`seeds`", seeds)
    _refuse_many(path, len(recipes), grid, len(seeds))
    settings = _settings(path, base, recipes, forced, grid, _baselines(path, given.get("baseline"), recipes))
    tasks, samples = _tasks(path, given.get("tasks")), _samples(path, given, files)
    study = Study(
        name=path.stem,
        title=str(given.get("title", path.stem)),
        settings=settings,
        seeds=list(seeds),
        tasks=tasks,
        grid=list(grid),
        samples=samples,
        before=_before(path, given.get("before"), settings, [*tasks, *samples]),
    )
    return _with_published(f"{path}: published", given.get("published"), study)


def check_options(study: Study) -> None:
    """Parse the options of every setting, to find mistakes before the first run starts.

    Checks that depend on the encoder or on the sentences happen when a run starts. Raise UsageError if run_unsup.py
    would reject the options of a setting, or if its runs would not be scored.
    """
    for setting in study.settings:
        try:
            *_, args = parse([], setting.options | {"seed": study.seeds[0], "output_dir": "unused"})
            if args.eval_strategy == "no" and not study.scored:
                raise UsageError(
                    "its runs are not scored",
                    needed="tasks, labels or retrieval in the study, or a development score",
                    fix="Add one of them, or leave eval_strategy on.",
                )
        except UsageError as error:
            about = f"`{error.option}` " if error.option else ""
            raise UsageError(f"{setting.name}: {about}{error.found}", needed=error.needed, fix=error.fix) from None


def check_data(study: Study) -> None:
    """Read the data of all tasks before training. Raise UsageError as `load_tasks`."""
    files = {kind: [file for own, file in study.samples.values() if own == kind] for kind in SAMPLES}
    load_tasks(None, [], labels=files["labels"], retrieval=files["retrieval"])
    if study.tasks:
        for folder in dict.fromkeys(setting.options.get("senteval_dir") for setting in study.settings):
            load_tasks(senteval_folder(folder, DATA_INSTEAD), study.tasks)


def normalized(value):
    """Return the same value for equivalent spellings: 3e-5 (text in YAML) and 0.00003; no and false; a and [a]."""
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
    """Format the value of an option for a name: 1e-4, 128, none."""
    value = normalized(value)
    if isinstance(value, float) and 0 < abs(value) < 0.001:
        return re.sub(r"\.?0*e-0*", "e-", f"{value:.6e}")
    return json.dumps(value) if isinstance(value, (bool, dict)) else str(value)


def without_paths(value):
    """Return the value of an option with paths reduced to their last part, as in training.json."""
    if isinstance(value, dict):
        return {name: without_paths(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_paths(item) for item in value]
    if not isinstance(value, str):
        return value
    path = Path(value)
    return last_name(value) if path.is_absolute() or value.startswith("~") or os.path.exists(value) else value


def _refuse_unknown(where: str, kind: str, names: Iterable, known: Collection[str], needed: str | None = None) -> None:
    """Raise UsageError if a name is unknown, and suggest the closest known name."""
    unknown = [str(name) for name in names if name not in known]
    if unknown:
        near = [match for name in unknown for match in difflib.get_close_matches(name, known, n=1)]
        hint = f"Did you mean {', '.join(near)}?" if near else "Correct or remove it."
        raise UsageError(f"{where}: no such {kind}: {', '.join(unknown)}", needed=needed, fix=hint)


def _mapping(where: str, given) -> dict:
    """Return a mapping with its keys as text; empty if there is none."""
    if not isinstance(given or {}, dict):
        raise UsageError(f"{where} is {type(given).__name__}", needed="a mapping")
    return {str(name): value for name, value in (given or {}).items()}


def _checked(where: str, given, known: Collection[str]) -> dict:
    """Return the options, after checking that they exist and that study files may set them."""
    options = _mapping(where, given)
    _refuse_unknown(where, "option", options, known)
    own = [name for name in OWN if name in options]
    if own:
        raise UsageError(
            f"{where} sets {', '.join(own)}, which the study sets for each run",
            fix=f"Remove {', '.join(own)}.",
        )
    return options


def _overrides(given: Sequence[str]) -> dict:
    """Parse words like option=value into options, with values as in YAML."""
    options = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"is {word!r}", option="set", needed="option=value")
        try:
            options[name] = parse_yaml(value, f"`set` {name}")
        except UsageError:
            options[name] = value
    return options


def _refuse_many(path: Path, recipes: int, grid: dict[str, list], seeds: int) -> None:
    """Raise UsageError if there are too many settings or runs."""
    settings = recipes * math.prod(map(len, grid.values()))
    if settings > MOST_SETTINGS or settings * seeds > MOST_RUNS:
        sizes = " x ".join([f"{recipes:,} recipes", *(f"{len(values):,} {name}" for name, values in grid.items())])
        raise UsageError(
            f"{path}: found {counted(settings, 'setting')} ({sizes}) and {counted(seeds, 'seed')}",
            needed=f"up to {MOST_SETTINGS:,} settings and {MOST_RUNS:,} runs",
            fix="Split the study.",
        )


def _settings(path: Path, base: dict, recipes: dict, forced: dict, grid: dict, baselines: dict) -> list[Setting]:
    """Return every recipe at every grid combination, sorted by combination if there are baselines, else by recipe."""
    settings: list[Setting] = []
    names: dict[str, str] = {}  # by digest
    for combination in itertools.product(*grid.values()):
        varied = dict(zip(grid, combination))
        seen = without_paths(varied).items()
        at = "".join(f", {SHORT.get(option, option.replace('_', ' '))} {shown(value)}" for option, value in seen)
        for recipe, own in recipes.items():
            baseline = f"{baselines[recipe]}{at}" if recipe in baselines else None
            setting = Setting(f"{recipe}{at}", recipe, _resolved(base | own | forced | varied), baseline)
            if setting.digest in names:
                both = f"{names[setting.digest]} and {setting.name}"
                raise UsageError(f"{path}: {both} have the same options", fix="Leave one out.")
            if setting.name in names.values():
                raise UsageError(
                    f"{path}: two settings have the name {setting.name}", fix="Rename the values in which they differ."
                )
            names[setting.digest] = setting.name
            settings.append(setting)
    if not baselines:  # with baselines, keep each one above the settings compared with it
        settings.sort(key=lambda setting: list(recipes).index(setting.recipe))
    return settings


def _resolved(options: dict) -> dict:
    """Merge options with those of their `config` file or recipe. Drop null and [], so that defaults apply."""
    recipe = options.get("recipe")
    file = str(recipe_file(recipe)) if recipe else options.get("config")
    start = {name: value for name, value in read_options_file(file).items() if name not in OWN} if file else {}
    return {
        name: value
        for name, value in (start | options).items()
        if name not in ("config", "recipe") and value not in (None, [])
    }


def _baselines(path: Path, given, recipes: dict) -> dict[str, str]:
    """Return the baseline of each recipe that has one."""
    if isinstance(given, dict):
        baselines = {str(name): str(baseline) for name, baseline in given.items()}
    else:
        baselines = {} if given is None else {name: str(given) for name in recipes if name != str(given)}
    named = dict.fromkeys([*baselines, *baselines.values()])
    _refuse_unknown(f"{path}: baseline", "recipe", named, recipes, f"recipes of: {', '.join(recipes)}")
    own = [name for name, baseline in baselines.items() if name == baseline]
    if own:
        raise UsageError(
            f"{path}: baseline: {', '.join(own)} would be compared with itself", fix="Choose another recipe."
        )
    return baselines


def _seeds(where: str, seeds) -> list[int]:
    fits = isinstance(seeds, list) and all(type(seed) is int and 0 <= seed <= LARGEST_SEED for seed in seeds)
    if not (seeds and fits):
        needed = f"a list of integers from 0 to {LARGEST_SEED}, such as [1, 2, 3]"
        raise UsageError(f"{where}: found {seeds!r}", needed=needed)
    repeated = sorted(seed for seed, times in Counter(seeds).items() if times > 1)
    if repeated:
        raise UsageError(
            f"{where}: {', '.join(map(str, repeated))} repeated", needed="different seeds", fix="Remove the duplicates."
        )
    return seeds


def _tasks(path: Path, tasks) -> list[str]:
    if not isinstance(tasks or [], list):
        raise UsageError(f"{path}: tasks: found {tasks!r}", needed="a list, such as [sts]")
    try:
        return chosen_tasks([str(task) for task in tasks or []], "test")
    except UsageError as error:
        raise UsageError(f"{path}: tasks {error.found}", needed=error.needed, fix=error.fix) from None


def _samples(path: Path, given: dict, files: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return kind and file of each sample by name. Files in `files` replace those with the same name."""
    instead, samples = {Path(file).name: file for file in files}, {}
    for kind in SAMPLES:
        named = given.get(kind) or []
        if not isinstance(named, list) or not all(isinstance(file, str) for file in named):
            raise UsageError(f"{path}: {kind}: found {named!r}", needed="a list of files")
        for file in named:
            name = sample_name(file)
            if name in samples or name in TASKS:
                raise UsageError(f"{path}: {kind}: a task {name} already exists", fix=f"Rename {file}.")
            samples[name] = (kind, instead.pop(Path(file).name, file))
    if instead:
        known = ", ".join(Path(file).name for _, file in samples.values()) or "none"
        raise UsageError(
            f"{', '.join(instead.values())}: {path} lists no such file",
            option="labels",
            needed=f"files with these names: {known}",
        )
    return samples


def _with_published(where: str, given, study: Study) -> Study:
    """Return the study with published scores. Raise UsageError for an unknown setting or measure."""
    published = {name: _mapping(f"{where}: {name}", scores) for name, scores in _mapping(where, given).items()}
    names = [setting.name for setting in study.settings]
    _refuse_unknown(where, "setting", published, names, f"settings of: {'; '.join(names)}")
    for name, scores in published.items():
        _refuse_unknown(f"{where}: {name}", "measure", scores, study.measures, f"of: {', '.join(study.measures)}")
        for measure, score in scores.items():
            if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
                raise UsageError(f"{where}: {name}: {measure} is {score!r}", needed="a number")
    return replace(study, published=published)


def _before(path: Path, given, settings: Sequence[Setting], scored: Sequence[str]) -> list[Setting]:
    """Return settings for the encoders before training, one for each way they are used."""
    if given not in (None, True, False):
        raise UsageError(f"{path}: before: found {given!r}", needed="true or false")
    if not given:
        return []
    if not scored:
        raise UsageError(
            f"{path}: before is set, but the study has nothing to score", fix="Add tasks, labels or retrieval."
        )
    if any("model_revision" in setting.options for setting in settings):
        raise UsageError(
            f"{path}: before cannot be combined with model_revision, which `informin eval` does not support",
            fix="Leave one of them out.",
        )
    told = [*READING, "use_cpu", "bf16"]
    kept = [*told, "senteval_dir", "trust_remote_code"]
    usual = {"pooler": "auto", "use_cpu": False, "bf16": False}
    starts = [{name: s.options[name] for name in kept if name in s.options} for s in settings]
    read = [usual | {name: start[name] for name in told if name in start} for start in map(without_paths, starts)]
    told = [name for name in told if len({str(own.get(name)) for own in read}) > 1]
    found: dict[str, Setting] = {}
    for start, own in zip(starts, read):
        name = ", ".join([BEFORE, *(f"{option} {shown(own.get(option))}" for option in told)])
        setting = found.setdefault(name, Setting(name, BEFORE, start, trained=False))
        if usual | setting.options != usual | start:
            needed = "one encoder and one `senteval_dir`, or folders with different names"
            raise UsageError(f"{path}: before: settings differ in the folder of {name}", needed=needed)
    return list(found.values())
