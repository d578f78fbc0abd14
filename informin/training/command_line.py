"""From the command line and a YAML file to checked options."""

import difflib
import json
import re
import textwrap
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import get_type_hints

from transformers import HfArgumentParser

from informin.encoders.loading import load_config
from informin.errors import UsageError
from informin.objectives import OBJECTIVES
from informin.program import NearestOption
from informin.training import defaults
from informin.training.options import CardArguments, DataArguments, InforMinTrainingArguments, TrainingDefaults
from informin.training.recipes import recipe_file
from informin.yamlfiles import read_mapping

OFTEN_USED = (
    "output_dir per_device_train_batch_size learning_rate num_train_epochs max_steps warmup_steps lr_scheduler_type "
    "weight_decay max_grad_norm gradient_accumulation_steps seed bf16 fp16 eval_strategy eval_steps save_steps "
    "logging_steps save_total_limit resume_from_checkpoint resume_with_changes report_to run_name measure_drift "
    "verbose push_to_hub hub_model_id hub_private_repo hub_strategy hub_overwrite"
).split()
VIEWS = ("objective projection_head view view_dropout view_dropout_rate guide_model guide_cache replay_file").split()
OWN = {
    "model_name": "An encoder like BERT: Hub id or folder. Required.",
    "config": "A YAML file of options by these names; the command line wins over it.",
}
WIDTH, INDENT = 120, 34  # of the help
UNSET = object()


def parse(
    argv: list[str], options: Mapping | None = None
) -> tuple[str, DataArguments, CardArguments, InforMinTrainingArguments]:
    """The model and the options of a run.

    What fills an option, the strongest first: the command line, the file that `recipe` or `config` names, `options`,
    what `informin.training.defaults` has for the model, the default.

    Args:
        options: values as from a YAML file.

    Raises:
        UsageError: an option is wrong, or the model cannot be used.
        SystemExit: after --help.
    """
    parser = Parser()
    given = parser.given(argv)
    path = given_file(given.get("recipe"), given.pop("config", None))
    in_file = parser.given_in_yaml(read_options_file(path)) if path else {}
    given = parser.given_in_yaml(options or {}) | in_file | given
    model_name = given.pop("model_name", None)
    if not model_name:
        raise UsageError("Which encoder? Give `model_name`, for instance `model_name` bert-base-uncased.")
    config = load_config(model_name, given.get("model_revision"))
    kinds = (DataArguments, CardArguments)
    own = [{field.name: given.pop(field.name) for field in fields(kind) if field.name in given} for kind in kinds]
    try:
        data, card = (kind(**values) for kind, values in zip(kinds, own))
        args = InforMinTrainingArguments(**given)
    except (ValueError, TypeError, ImportError) as error:  # TrainingArguments' own checks
        raise UsageError(str(error)) from None
    args.for_model(model_name, config)
    return model_name, data, card, args


def given_file(recipe: str | None, config: str | None) -> str | Path | None:
    """The file of options that one of the two names. Raises UsageError for both, and for an unknown recipe."""
    if recipe is None:
        return config
    if config is not None:
        raise UsageError("`recipe` and `config` both name a file of options. Give one.")
    return recipe_file(recipe)


def option_names() -> list[str]:
    """The options of run_unsup.py, without dashes."""
    return [*OWN, *own_fields()]


def own_fields() -> dict[str, Field]:
    """The options by name, as fields of their dataclasses."""
    return {field.name: field for kind in kinds() for field in fields(kind)}


def kinds() -> list[type]:
    """The dataclasses whose fields are options."""
    return [DataArguments, CardArguments, TrainingDefaults, *defaults.option_kinds()]


class Parser(NearestOption, HfArgumentParser):
    """HfArgumentParser with `--config`, errors that are raised, and a `--help` in groups, what people use first."""

    def __init__(self):
        super().__init__(
            kinds(), usage="informin train --model_name MODEL [--config FILE.yaml] [options]", allow_abbrev=False
        )
        for name in OWN:
            self.add_argument(f"--{name}", f"--{name.replace('_', '-')}")

    def error(self, message: str):
        """Raises UsageError, where argparse ends the program."""
        raise UsageError(message)

    def given(self, argv: list[str]) -> dict:
        """The options that were given, and no others, each of its kind."""
        self.set_defaults(**dict.fromkeys([*OWN, *own_fields()], UNSET))
        return {name: value for name, value in vars(self.parse_args(argv)).items() if value is not UNSET}

    def given_in_yaml(self, values: Mapping) -> dict:
        """The same of values as from a YAML file, where null and an empty list say nothing.

        Raises UsageError: one is not of its option's kind, or a list for an option that takes one value.
        """
        hints = {name: str(hint) for kind in kinds() for name, hint in get_type_hints(kind).items()}
        given = {}
        for name, value in values.items():
            if value is None or value == []:
                continue
            if isinstance(value, list) and "list[" not in hints.get(name, ""):
                raise UsageError(f"`{name}` is {value}; needed one value, no list.")
            items = value if isinstance(value, list) else [value]
            read = [self.given([f"--{name}={_text(item)}"])[name] for item in items]
            if isinstance(read[0], list):  # each of one item
                given[name] = [item for one in read for item in one]
            else:
                given[name] = read if isinstance(value, list) else read[0]
        return given

    def format_help(self) -> str:
        known = own_fields()
        own = [[field.name for field in fields(kind)] for kind in (DataArguments, CardArguments)]
        groups = {
            "model": ["model_name", "recipe", "config", "model_revision", "pooler", "prompt", "export_prompt"],
            "objective": [*VIEWS, *defaults.term_options()],
            "data and evaluation data": ["max_seq_length", "max_train_samples", *own[0]],
            "model card": own[1],
            "training, often used": OFTEN_USED,
        }
        listed = {name for names in groups.values() for name in names}
        groups["training, the rest of transformers' TrainingArguments"] = [n for n in known if n not in listed]
        lines = [f"usage: {self.usage}", "", "Train sentence embeddings without labels."]
        for title, names in groups.items():
            lines += ["", f"{title}:"]
            for name in names:
                if name in OWN:
                    lines += _help_lines(name, "X", OWN[name])
                else:
                    lines += _help_lines(name, _values(known[name]), _help(known[name], short=name not in listed))
        return "\n".join(lines) + "\n"


def _values(field: Field) -> str:
    """What an option takes, in the help."""
    kind = str(field.type)
    choices = field.metadata.get("choices") or getattr(field.type, "__args__", ()) * ("Literal" in kind)
    if choices:
        return "{" + ",".join(map(str, choices)) + "}"
    if field.type is bool or kind == "typing.Optional[bool]":
        return "[true|false]"
    return "[X]" if field.metadata.get("nargs") == "?" else "X [X ...]" if "list[" in kind else "X"


def _help(field: Field, short: bool) -> str:
    """An option's line: its help, of transformers' paragraphs the first sentence, and its default."""
    text = " ".join(field.metadata.get("help", "").split())
    if short:
        text = re.split(r"(?<=[a-z)`])\. ", text)[0]
    own = {name: o.defaults[field.name] for name, o in OBJECTIVES.items() if field.name in o.defaults}
    if own and list(own.values()) != [field.default]:
        rest = [f"else {field.default or '0 (off)'}"] if field.default is not None else []
        said = [f"{' '.join(map(str, v)) if isinstance(v, list) else v} for {name}" for name, v in own.items()]
        return f"{text} Default: {', '.join([*said, *rest])}."
    silent = field.default in (None, MISSING, "") or "efault" in text
    return text if silent else f"{text} (default: {getattr(field.default, 'value', field.default)})"


def _help_lines(name: str, values: str, text: str) -> list[str]:
    head = f"  --{name} {values}"
    wrapped = textwrap.wrap(text, WIDTH - INDENT, break_on_hyphens=False) or [""]
    if len(head) > INDENT - 2:
        return [head, *(" " * INDENT + line for line in wrapped)]
    return [head.ljust(INDENT) + wrapped[0], *(" " * INDENT + line for line in wrapped[1:])]


def read_options_file(path: str) -> dict:
    """A YAML file of options. Raises UsageError where it is none, or has a key that is no option."""
    values = read_mapping(path, f"`config` {path}", "lines of `option: value`")
    known = [name for name in option_names() if name not in ("recipe", "config")]
    unknown = sorted(str(key) for key in values if key not in known)
    if unknown:
        near = [match for key in unknown for match in difflib.get_close_matches(key, known, n=1)]
        hint = f" Did you mean {', '.join(near)}?" if near else ""
        raise UsageError(f"`config` {path}: no such option: {', '.join(unknown)}.{hint}")
    return values


def _text(value: object) -> str:
    """A value of a YAML file as one would type it."""
    if isinstance(value, bool):  # YAML reads a bare `no` as false, and options like eval_strategy want the word
        return "yes" if value else "no"
    return json.dumps(value) if isinstance(value, dict) else str(value)
