"""From the command line, a YAML file and the papers' tables to checked options. Later ones win."""

import argparse
import dataclasses
import difflib
import json
import logging
import os
import re
from pathlib import Path

import torch
import yaml
from transformers import HfArgumentParser, PreTrainedConfig
from transformers.utils import is_torch_bf16_gpu_available

from informin.encoders.loading import load_config
from informin.errors import UsageError
from informin.objectives import OBJECTIVES
from informin.program import NearestOption
from informin.training.options import (
    CardArguments,
    DataArguments,
    InforMinTrainingArguments,
    ModelArguments,
    ObjectiveArguments,
    read_options,
    refuse_unread,
)
from informin.training.papers import ROWS, paper_row

logger = logging.getLogger(__name__)

OBJECTIVE = [field.name for field in dataclasses.fields(ObjectiveArguments)]
OFTEN_USED = (
    "output_dir per_device_train_batch_size learning_rate num_train_epochs max_steps warmup_steps lr_scheduler_type "
    "weight_decay max_grad_norm gradient_accumulation_steps seed bf16 fp16 eval_strategy eval_steps save_steps "
    "logging_steps save_total_limit resume_from_checkpoint resume_with_changes report_to run_name verbose push_to_hub "
    "hub_model_id hub_private_repo hub_strategy hub_overwrite"
).split()
DEFAULTS = {field.name: field.default for field in dataclasses.fields(InforMinTrainingArguments)}
UNSET = object()


class _OneLineHelp(argparse.HelpFormatter):
    """Shows each option under one name, its default only where it says something."""

    def __init__(self, prog):
        super().__init__(prog, max_help_position=34, width=120)

    def _format_action_invocation(self, action):
        name = action.option_strings[0]
        return name if action.nargs == 0 else f"{name} {self._format_args(action, action.dest.upper())}"

    def _format_args(self, action, default_metavar):
        if action.choices:
            return "{" + ",".join(map(str, action.choices)) + "}"
        optional = "[true|false]" if action.const is True else "[X]"
        return {"+": "X [X ...]", "?": optional}.get(action.nargs, "X")

    def _get_help_string(self, action):
        text = " ".join((action.help or "").split()).replace("%", "%%")
        silent = action.default in (None, argparse.SUPPRESS, "") or "efault" in text
        return text if silent else f"{text} (default: {action.default})"


class Parser(NearestOption, HfArgumentParser):
    """HfArgumentParser with `--config`, and a `--help` in groups, what people use first."""

    def __init__(self):
        super().__init__(
            [ModelArguments, DataArguments, CardArguments, InforMinTrainingArguments],
            formatter_class=_OneLineHelp,
            usage="python run_unsup.py --model_name MODEL [--config FILE.yaml] [options]",
            allow_abbrev=False,
            description="Train sentence embeddings without labels: BERT or RoBERTa, [CLS], InforMin-CL and its family.",
        )
        self.add_argument("--config", help="A YAML file of options by these names; the command line wins over it.")

    def options(self) -> dict[str, argparse.Action]:
        """Each option by its name. (The --no_X twins of switches follow the switch, so the first one is it.)"""
        found: dict[str, argparse.Action] = {}
        for action in self._actions:
            if action.dest != "help":
                found.setdefault(action.dest, action)
        return found

    def format_help(self) -> str:
        options = self.options()
        own = [[f.name for f in dataclasses.fields(kind)] for kind in (ModelArguments, DataArguments, CardArguments)]
        groups = {
            "model": ["config", *own[0]],
            "objective": OBJECTIVE,
            "data and evaluation data": own[1],
            "model card": own[2],
            "training, often used": OFTEN_USED,
        }
        listed = {name for names in groups.values() for name in names}
        groups["training, the rest of transformers' TrainingArguments"] = [n for n in options if n not in listed]
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for title, names in groups.items():
            formatter.start_section(title)
            for name in names:
                action = options[name]
                if name not in listed:  # these helps run to paragraphs: the first sentence is enough here
                    action.help = re.split(r"(?<=[a-z)`])\. |\n\n", " ".join((action.help or "").split()))[0]
                formatter.add_argument(action)
            formatter.end_section()
        return formatter.format_help()


def parse(
    argv: list[str],
) -> tuple[ModelArguments, DataArguments, CardArguments, InforMinTrainingArguments, PreTrainedConfig]:
    """The options of a run and the configuration of its model.

    What fills an option, the strongest first: the command line, `--config`, the paper's row for the model, the default.

    Raises:
        UsageError: an option is wrong, or the model cannot be used.
        SystemExit: argparse's, with code 2, for options that do not exist or do not parse.
    """
    parser = Parser()
    path = _explicit(parser, [arg for arg in argv if arg not in ("-h", "--help")], strict=False).get("config")
    given = _explicit(parser, (yaml_arguments(path, parser) if path else []) + argv)
    given.pop("config", None)
    if not given.get("model_name"):
        raise UsageError("Which encoder? Give --model_name, for instance --model_name bert-base-uncased.")
    config = load_config(given["model_name"], given.get("model_revision"))
    objective = given.get("objective", "informin")
    refuse_unread(objective, given)
    name, row = paper_values(given, config)
    values = {"projection_head": OBJECTIVES[objective].projection_head} | bf16_value(given) | row | given
    values.setdefault("output_dir", default_output_dir(DEFAULTS | values))
    try:
        built = [
            kind(**{f.name: values[f.name] for f in dataclasses.fields(kind) if f.name in values})
            for kind in (ModelArguments, DataArguments, CardArguments, InforMinTrainingArguments)
        ]
    except (ValueError, ImportError) as error:  # TrainingArguments' own checks
        raise UsageError(str(error)) from None
    built[-1].paper_row = name
    return (*built, config)


def paper_values(given: dict, config: PreTrainedConfig) -> tuple[str | None, dict]:
    """The name of the paper's row, None where it fills in nothing, and what it fills in; listed with --verbose."""
    objective = given.get("objective", "informin")
    row = paper_row(objective, config)
    if row is None:
        return None, {}
    processes = int(os.environ.get("WORLD_SIZE", 1))
    values = {"per_device_train_batch_size": max(1, row.batch_size // processes), "learning_rate": row.learning_rate}
    read, _ = read_options(objective, row.options | given)
    options = {name: value for name, value in row.options.items() if name in read or name not in OBJECTIVE}
    values = {name: value for name, value in (values | options).items() if name not in given}
    if not values:
        return None, {}
    if given.get("verbose"):
        filled = ", ".join(f"{name} {value}" for name, value in values.items())
        exact = (config.model_type, config.hidden_size) in ROWS[objective]
        fallback = (
            "" if exact else f"; it has no row for {config.model_type} of width {config.hidden_size}, so this one"
        )
        logger.info(f"From the paper ({row.name}{fallback}): {filled}")
    return row.name, values


def bf16_value(given: dict) -> dict:
    """bf16 where the hardware has it, unless the user or the launcher chose a precision."""
    launched = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if {"bf16", "fp16"} & given.keys() or launched != "no":
        return {}
    if given.get("use_cpu") or torch.accelerator.current_accelerator() is None:
        return {"bf16": torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()}
    return {"bf16": is_torch_bf16_gpu_available()}


def default_output_dir(values: dict) -> str:
    """outputs/MODEL-OBJECTIVE-batchN-lrX-seedN, the batch over all processes."""
    path = Path(values["model_name"])
    model = (path.resolve() if path.is_dir() else path).name
    batch = values["per_device_train_batch_size"] * int(os.environ.get("WORLD_SIZE", 1))
    rate = f"{values['learning_rate']:g}".replace("e-0", "e-")
    return f"outputs/{model}-{values['objective']}-batch{batch}-lr{rate}-seed{values['seed']}"


class UniqueKeys(yaml.SafeLoader):
    """Refuses a key that a mapping has twice, of which YAML's own loader keeps the last and says nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):  # YAML refuses others itself
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is there twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_mapping(path: str | Path, name: str, needed: str) -> dict:
    """A YAML file that is a mapping.

    Args:
        name, needed: what errors call the file, and what should be in it.

    Raises:
        UsageError: it cannot be read, has a key twice, or is no mapping.
    """
    try:
        values = yaml.load(Path(path).read_text(encoding="utf-8"), UniqueKeys)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"{name} cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise UsageError(f"{name}: found {type(values).__name__}; needed {needed}.")
    return values


def yaml_arguments(path: str, parser: Parser) -> list[str]:
    """A YAML file of options as command-line arguments.

    Raises:
        UsageError: no such file, not a mapping, or a key that is no option.
    """
    values = read_mapping(path, f"--config {path}", "lines of `option: value`")
    options = parser.options().keys() - {"config"}
    unknown = sorted(str(key) for key in values if key not in options)
    if unknown:
        near = [match for key in unknown for match in difflib.get_close_matches(key, options, n=1)]
        hint = f" Did you mean {', '.join(near)}?" if near else ""
        raise UsageError(f"--config {path}: no such option: {', '.join(unknown)}.{hint}")
    arguments = []
    for key, value in values.items():
        if value is None or value == []:
            continue
        items = value if isinstance(value, list) else [value]
        # YAML reads a bare `no` as false, and options like eval_strategy want the word: switches take it too.
        words = {True: "yes", False: "no"}
        texts = [words[i] if isinstance(i, bool) else json.dumps(i) if isinstance(i, dict) else str(i) for i in items]
        # One item goes in as --key=value, so that a value may begin with a dash.
        arguments += [f"--{key}={texts[0]}"] if len(texts) == 1 else [f"--{key}", *texts]
    return arguments


def _explicit(parser: Parser, argv: list[str], strict: bool = True) -> dict:
    """Only the options that were given: argparse fills in a default only where the namespace has nothing."""
    namespace = argparse.Namespace(**dict.fromkeys(parser.options(), UNSET))
    if strict:
        parser.parse_args(argv, namespace)
    else:
        parser.parse_known_args(argv, namespace)
    return {name: value for name, value in vars(namespace).items() if value is not UNSET}
