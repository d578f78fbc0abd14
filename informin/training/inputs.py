"""The inputs of a run: the options that name them, recipes, and a check that they are available.

Nothing here imports torch, so that a run that cannot start fails at once.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, Optional, TypeVar

import yaml

from informin.errors import UsageError, counted, error_line
from informin.hub import HUB_DATA, HUB_SENTENCES, HUB_SENTEVAL, MODEL_FILES, hub_is_reachable, is_cached, names_of_model
from informin.options import check_fields, option, with_home
from informin.texts import lines

Kind = TypeVar("Kind")


@dataclass
class ModelArguments:
    """The encoder to train, and a file of options."""

    model_name: Optional[str] = option(None, "Encoder to train: Hub id or local folder. Required.")
    recipe: Optional[str] = option(
        None,
        "YAML file of options, or the name of one in informin/recipes, such as adapt. Options of the command line "
        "override it.",
    )

    def __post_init__(self):
        check_fields(self)
        self.model_name = with_home(self.model_name)


@dataclass
class DataArguments:
    """Training sentences and evaluation data.

    Raises:
        UsageError: Both `train_file` and `dataset_name` are given, or options of a dataset without its name.
    """

    train_file: Optional[list[str]] = option(
        None,
        "Training sentences: files or folders of .txt (one sentence per line), .csv, .tsv, .jsonl (each may be .gz), "
        ".parquet or .arrow. Default: wiki1m_for_simcse.txt from the Hub.",
    )
    text_column: Optional[list[str]] = option(
        None,
        "Column with the sentences, or several to join, such as subject,body. With view pair, the two columns of a "
        "pair, such as title body. Default: `text`, `sentence`, or the only column; for pairs anchor positive, or the "
        "only two.",
    )
    dataset_name: Optional[str] = option(None, "Dataset on the Hub, instead of train_file.")
    dataset_config: Optional[str] = option(None, "Configuration of the dataset.")
    dataset_split: str = option("train", "Split of the dataset.")
    streaming: bool = option(
        False, "Read the sentences during training instead of downloading them first. Requires max_steps."
    )
    senteval_dir: Optional[str] = option(
        None, "SentEval's data/downstream folder, for STS-B dev. Default: $SENTEVAL_DATA, else senteval.tar on the Hub."
    )
    eval_pairs: Optional[str] = option(
        None, "Scored sentence pairs, instead of STS-B dev: TSV, CSV or JSONL with sentence1, sentence2, score."
    )
    eval_labels: Optional[str] = option(
        None,
        "Labeled sentences, scored by clustering, nearest neighbors and few-shot classification: TSV, CSV or JSONL "
        "with text, label. STS-B dev is then scored only if it is available locally.",
    )
    eval_retrieval: Optional[str] = option(
        None, "Retrieval pairs: TSV, CSV or JSONL with query, document and, optionally, negative."
    )

    def __post_init__(self):
        for name in ("train_file", "text_column"):
            if isinstance(getattr(self, name), str):  # one value in a recipe
                setattr(self, name, [getattr(self, name)])
        check_fields(self)
        for name in ("train_file", "dataset_name", "senteval_dir", "eval_pairs", "eval_labels", "eval_retrieval"):
            setattr(self, name, with_home(getattr(self, name)))
        if self.train_file and self.dataset_name:
            raise UsageError("is given together with `dataset_name`", option="train_file", fix="Use one of them.")
        for name in ("dataset_config", "dataset_split"):
            if getattr(self, name) != getattr(type(self), name) and not self.dataset_name:
                raise UsageError("has no effect without `dataset_name`", option=name)


@dataclass
class SourceArguments:
    """The training arguments that name what a run reads, or whether it reads evaluation data."""

    revision: Optional[str] = option(None, "Branch, tag or commit of the encoder on the Hub.")
    guide_model: Optional[str] = option(
        None, "Frozen encoder that guides the training. Default: the encoder before training."
    )
    eval_strategy: str = option(
        "steps",
        "When to evaluate. no: nothing is scored, and the last checkpoint is kept.",
        choices=("steps", "epoch", "no"),
    )


# A recipe: a file of options

RECIPES = Path(__file__).parents[1] / "recipes"


def recipe_options(name: str) -> dict[str, Any]:
    """Return the options of a recipe: a YAML file, or the name of one in informin/recipes.

    Raises:
        UsageError: There is no such recipe, the file cannot be read, is not YAML in UTF-8, or has no options.
    """
    paths = {path.stem: path for path in sorted(RECIPES.glob("*.yaml"))}
    path = paths.get(name, Path(with_home(name)))
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"is {name}", option="recipe", needed=f"a .yaml file, or one of: {', '.join(paths)}")
    values = _read_yaml(path)
    if not isinstance(values, dict):
        raise UsageError(f"is {path}", option="recipe", needed="a file with lines of `option: value`")
    for option_name, value in values.items():
        if value is False and str(option_name).endswith("_strategy"):  # YAML reads a bare `no` as false
            values[option_name] = "no"
    return values


class _Loader(yaml.SafeLoader):
    """Refuses a key that a mapping has twice, of which YAML would use the last value."""

    def construct_mapping(self, node, deep=False):
        seen = []
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(problem=f"found {key.value} twice", problem_mark=key.start_mark)
            seen.append(key.value)
        return super().construct_mapping(node, deep)


def _read_yaml(path: Path) -> Any:
    """Return the content of a YAML file in UTF-8. Raises UsageError with the line of what cannot be read."""
    try:
        text = "".join(lines(path))
    except OSError as error:
        raise UsageError(f"is {path}, which cannot be read ({error.strerror})", option="recipe") from None
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:  # a ValueError of a date such as 2024-13-01
        place, found = str(path), error_line(error)
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
            line = min(error.problem_mark.line + 1, len(text.splitlines()))  # the end of the file is not in a line
            place, found = f"{path}, line {line}", " ".join(filter(None, [error.context, error.problem]))
        raise UsageError(f"{place}: {found}", needed="YAML with lines of `option: value`") from None


# What the Hub must provide


@dataclass(frozen=True)
class Download:
    """A model or a dataset on the Hub that a run reads.

    Attributes:
        what: Its name in the message.
        instead: Options that replace it.
        names, kind: Names that the repository may have, and its kind: `model` or `dataset`.
        files: Names of files, one of which is in the cache if it was downloaded.
        revision: Branch, tag or commit; None for main.
    """

    what: str
    instead: str
    names: list[str]
    kind: str
    files: tuple[str, ...]
    revision: str | None = None


def check_downloads(data: DataArguments, models: dict[str, str | None], revision: str | None, scores: bool) -> None:
    """Raise UsageError for everything that the run needs from the Hub and has not, if the Hub cannot be reached.

    Args:
        data: The training and evaluation data.
        models: The models to load by option; None for none.
        revision: Branch, tag or commit of `model_name`.
        scores: Whether the run is evaluated.
    """
    downloads = []
    for option_name, name in models.items():
        if name and not Path(name).is_dir():
            own = revision if option_name == "model_name" else None
            what, instead = f"the model {name}", f"`{option_name}` FOLDER"
            downloads.append(Download(what, instead, names_of_model(name), "model", MODEL_FILES, own))
    if not data.train_file and not data.dataset_name:
        what, instead = "the training sentences", "`train_file` FILE"
        downloads.append(Download(what, instead, [HUB_DATA], "dataset", (HUB_SENTENCES,)))
    given = [data.eval_pairs, data.eval_labels, data.eval_retrieval, data.senteval_dir, os.environ.get("SENTEVAL_DATA")]
    if scores and not any(given):
        what = "STS-B dev, which selects the checkpoint"
        instead = "`eval_pairs` FILE, `senteval_dir` FOLDER, or `eval_strategy` no"
        downloads.append(Download(what, instead, [HUB_DATA], "dataset", (HUB_SENTEVAL,)))
    missing = [
        one for one in downloads if not any(is_cached(name, one.files, one.kind, one.revision) for name in one.names)
    ]
    if missing and not hub_is_reachable():
        listed = "; ".join(f"{one.what}: {one.instead}" for one in missing)
        found = f"{counted(len(missing), 'input')} must be downloaded from the Hub"  # a warning says why it cannot be
        raise UsageError(found, fix=f"Without it, give local ones. {listed[0].upper()}{listed[1:]}.")


# The names of options in other programs

OLD_NAMES = {  # of the scripts of SimCSE, SCD and miCSE, of transformers 4 and of sentence-transformers
    "model_name_or_path": "model_name",
    "model": "model_name",
    "train_dataset": "train_file",
    "eval_dataset": "eval_pairs",
    "evaluator": "eval_pairs",
    "temp": "temperature",
    "pooler_type": "pooler",
    "do_mlm": "mlm_weight",
    "mlm_probability": "mlm_weight",
    "dropout1": "view_dropout",
    "dropout2": "view_dropout",
    "queue_length": "queue_size",
    "evaluation_strategy": "eval_strategy",
    "evaluation_steps": "eval_steps",
    "max_length": "max_seq_length",
    "model_revision": "revision",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "train_batch_size": "per_device_train_batch_size",
    "batch_size": "per_device_train_batch_size",
    "epochs": "num_train_epochs",
    "lr": "learning_rate",
    "warmup_ratio": "warmup_steps",
    "use_amp": "bf16",
    "no_cuda": "use_cpu",
    "loss": "objective",
    "prompts": "prompt",
}
LEFT_OUT = {  # options of these scripts without a counterpart
    "mlp_only_train": "The projection head is used in training only, as with this option of SimCSE.",
    "overwrite_output_dir": "A run never replaces another one: name a new folder, or delete the old one.",
    "hard_negative_weight": "Training needs no labels, and has no hard negatives.",
    "eval_transfer": "Run informin eval --tasks transfer on the finished model.",
    "pad_to_max_length": "Batches are padded to their longest text, or not at all.",
    "cache_dir": "Set the environment variable HF_HOME.",
    "config_name": "The configuration is that of `model_name`.",
    "tokenizer_name": "The tokenizer is that of `model_name`.",
    "use_fast_tokenizer": "The tokenizer is that of `model_name`.",
    "use_auth_token": "Log in with hf auth login, or set HF_TOKEN.",
    "overwrite_cache": "A file that has changed is read again.",
    "preprocessing_num_workers": "Tokenizers use all cores; TOKENIZERS_PARALLELISM=false turns that off.",
    "logging_dir": "Set the environment variable TENSORBOARD_LOGGING_DIR.",
    "scale": "It is 1 / `temperature`.",
    "compute_metrics": "`eval_pairs` names pairs to score; InforMinTrainer also takes functions, as `eval_dataset`.",
    "batch_sampler": "A copy of a sentence in its batch is not a negative, so no sampler has to avoid it.",
}

KEYWORDS = {  # of the trainers of transformers and sentence-transformers
    "tokenizer": "processing_class",
    "loss": "objective",
    "evaluator": "eval_dataset",
    "compute_metrics": "eval_dataset",
    "train_file": "train_dataset",
    "eval_pairs": "eval_dataset",
    "model_name": "model",
    "model_name_or_path": "model",
}


def name_here(name: str, known: Iterable[str], dashes: str = "") -> str:
    """Return a sentence that says what to write for a name that is not an option, or nothing.

    Args:
        name: The name.
        known: The names that exist.
        dashes: What stands before each name on the command line.
    """
    if name in OLD_NAMES:
        return f"{dashes}{name} is {dashes}{OLD_NAMES[name]} here."
    if name in LEFT_OUT:
        return f"Leave out {dashes}{name}. {LEFT_OUT[name]}"
    close = get_close_matches(name, known, n=1)
    return f"Did you mean {dashes}{close[0]}?" if close else ""


def keyword_here(name: str, known: Iterable[str]) -> str:
    """Return what to write for a name that is not a keyword of `InforMinTrainer`."""
    return f"{name} is `{KEYWORDS[name]}` here." if name in KEYWORDS else name_here(name, known)


def explains_keywords(advice: Callable[[str, Sequence[str]], str]) -> Callable[[type[Kind]], type[Kind]]:
    """Return a decorator of a class, whose TypeError for an unknown keyword then says what to write instead.

    Args:
        advice: Returns what to write, from the keyword and the names that exist.
    """

    def decorate(kind: type[Kind]) -> type[Kind]:
        create: Any = kind.__init__
        known = [*signature(create).parameters][1:]

        @wraps(create)
        def checked(self, *args, **given):
            unknown = [name for name in given if name not in known]
            if unknown:
                found = f"{kind.__name__}() got an unexpected keyword argument {', '.join(map(repr, unknown))}."
                raise TypeError(" ".join([found, *filter(None, [advice(name, known) for name in unknown])]))
            create(self, *args, **given)

        kind.__init__ = checked  # type: ignore[method-assign]
        return kind

    return decorate
