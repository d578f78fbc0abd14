"""Parse the command line and a YAML file into checked options."""

import difflib
import json
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NoReturn, Optional, get_type_hints

from transformers import HfArgumentParser

from informin import program
from informin.errors import UsageError, error_line
from informin.models.checkpoint import Checkpoint
from informin.models.open_model import open_model
from informin.training.data_options import CardArguments, DataArguments
from informin.training.encoder_options import EncoderOptions
from informin.training.option_checks import require_known_metric
from informin.training.options import InforMinTrainingArguments, arguments_class
from informin.training.recipes import recipe_file
from informin.training.term_fields import term_options
from informin.yamlfiles import read_mapping

OFTEN_USED = (
    "output_dir per_device_train_batch_size learning_rate num_train_epochs max_steps warmup_steps lr_scheduler_type "
    "weight_decay max_grad_norm gradient_accumulation_steps seed bf16 fp16 eval_strategy eval_steps save_steps "
    "logging_steps save_total_limit resume_from_checkpoint resume_with_changes report_to run_name measure_drift "
    "measure_information verbose push_to_hub hub_model_id hub_private_repo hub_strategy hub_overwrite"
).split()
VIEWS = ("objective projection_head view view_dropout view_dropout_rate guide_model guide_cache replay_file").split()
PROGRAM = {
    "import": "Python file to run first, with an objective, a term or a view of your own. May be repeated.",
    "model_name": "Encoder to train: Hub id or local folder. Required.",
    "config": "YAML file with options. The command line overrides it.",
}
WIDTH, INDENT = 120, 34  # of the help
UNSET = object()
TYPES = {"int": "an integer", "float": "a number"}  # in messages of argparse
KEEP_PROMPTS = ("dropout", "neighbor")  # views that take whole sentences, with their prompts


def parse(
    argv: list[str], options: Mapping | None = None
) -> tuple[Checkpoint, DataArguments, CardArguments, InforMinTrainingArguments]:
    """Return the model's files and the options of a run.

    Precedence, highest first: the command line, the file that `recipe` or `config` names, `options`, the paper's values
    for the model, the default.

    Args:
        argv: Arguments of the command line, without the program's name.
        options: Values as in a YAML file.

    Raises:
        UsageError: An option is wrong, or the model cannot be used.
        SystemExit: After `--help`.
    """
    argv = import_files(argv)
    parser = Parser()
    given = parser.given(argv)
    recipe, path = given.pop("recipe", None), given.pop("config", None)
    if recipe is not None:
        if path is not None:
            fix = "Both name a file of options: use one."
            raise UsageError("is given together with `config`", option="recipe", fix=fix)
        path = recipe_file(recipe)
    in_file = parser.given_in_yaml(read_options_file(path)) if path else {}
    given = parser.given_in_yaml(options or {}) | in_file | given
    model_name = given.pop("model_name", None)
    if not model_name:
        raise UsageError("is missing", option="model_name", fix="For example: `model_name` bert-base-uncased.")
    kinds = (DataArguments, CardArguments)
    own = [{field.name: given.pop(field.name) for field in fields(kind) if field.name in given} for kind in kinds]
    try:
        data, card = (kind(**values) for kind, values in zip(kinds, own))
        given |= prompt_of_rows(given) if data.prompt_column else {}
        args = InforMinTrainingArguments(**given)
    except UsageError:
        raise
    except (ValueError, TypeError, ImportError) as error:  # from TrainingArguments
        raise UsageError(f"TrainingArguments: {error_line(error)}", fix="See `informin train --help`.") from None
    require_known_metric(args)
    checkpoint = Checkpoint(model_name, args.model_revision)
    return checkpoint, data, card, args.resolve(open_model(checkpoint, args))


def import_files(argv: Sequence[str]) -> list[str]:
    """Run the files that `--import` names, and return the other arguments.

    Raises:
        UsageError: There is no such file, or it raises an error.
    """
    words, others = iter(argv), []
    for word in words:
        name, _, path = word.partition("=")
        if name == "--import":
            _import_file(Path(path or next(words, "")))
        else:
            others.append(word)
    return others


def _import_file(path: Path) -> None:
    if not path.is_file():
        raise UsageError(f"is {path}, which is not a file", option="import", needed="a Python file")
    spec = spec_from_file_location(path.stem, path, loader=SourceFileLoader(path.stem, str(path)))
    assert spec is not None and spec.loader is not None  # the loader is given
    module = module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and pickle look it up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[path.stem]
        raise UsageError(f"{path}: {type(error).__name__}: {error_line(error)}", option="import") from error


def prompt_of_rows(given: Mapping) -> dict[str, str]:
    """Return the options of a run in which each row has its own prompt, which is part of the sentence.

    Raises:
        UsageError: An option sets one prompt for all rows, or the view would change the prompts.
    """
    for name in ("prompt", "export_prompt"):
        if given.get(name):
            raise UsageError(f"cannot be combined with `{name}`", option="prompt_column", fix="Leave one of them out.")
    view = given.get("view", "dropout")
    if view not in KEEP_PROMPTS:
        raise UsageError(
            f"cannot be combined with `view` {view}, which would also change the tokens of the prompts",
            option="prompt_column",
            needed=f"`view` {' or '.join(KEEP_PROMPTS)}",
        )
    return {"prompt": ""}


def option_names() -> list[str]:
    """Return the names of run_unsup.py's options, without dashes."""
    return [*PROGRAM, *own_fields()]


def own_fields() -> dict[str, Field]:
    """Return the options by name, as fields of their dataclasses."""
    return {field.name: field for kind in kinds() for field in fields(kind) if field.init}


def kinds() -> list[type]:
    """Return the dataclasses whose fields are options."""
    return [DataArguments, CardArguments, arguments_class()]


class Parser(program.Parser, HfArgumentParser):
    """HfArgumentParser with `--config`, errors as exceptions, and a grouped `--help`."""

    def __init__(self):
        classes: Any = kinds()
        super().__init__(classes, usage="informin train --model_name MODEL [--config FILE.yaml] [options]")
        for name in PROGRAM:
            self.add_argument(f"--{name}", f"--{name.replace('_', '-')}")

    def error(self, message: str):
        """Raise UsageError instead of ending the program."""
        raise usage_error(message)

    def refuse(self, error: UsageError) -> NoReturn:
        raise error

    def given(self, argv: list[str]) -> dict:
        """Return the options that were given, converted to their types."""
        self.set_defaults(**dict.fromkeys([*PROGRAM, *own_fields()], UNSET))
        return {name: value for name, value in vars(self.parse_args(argv)).items() if value is not UNSET}

    def given_in_yaml(self, values: Mapping) -> dict:
        """Return values as in a YAML file, converted to their types, without null and empty lists.

        Raises:
            UsageError: A value has the wrong type, or a list is given for a single value.
        """
        hints = {name: str(hint) for kind in kinds() for name, hint in get_type_hints(kind).items()}
        given = {}
        for name, value in values.items():
            if value is None or value == []:
                continue
            if isinstance(value, list) and "list[" not in hints.get(name, ""):
                raise UsageError(f"is {value}", option=name, needed="one value instead of a list")
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
            "model": ["model_name", "recipe", "config", "import", *(field.name for field in fields(EncoderOptions))],
            "objective": [*VIEWS, *term_options()],
            "data and evaluation data": ["max_seq_length", "max_train_samples", *own[0]],
            "model card": own[1],
            "training, often used": OFTEN_USED,
        }
        listed = {name for names in groups.values() for name in names}
        groups["training, the rest of transformers' TrainingArguments"] = [n for n in known if n not in listed]
        lines = [f"usage: {self.usage}", "", "Train sentence embeddings on unlabeled text."]
        for title, names in groups.items():
            lines += ["", f"{title}:"]
            for name in names:
                if name in PROGRAM:
                    lines += _help_lines(name, "X", PROGRAM[name])
                else:
                    lines += _help_lines(name, _values(known[name]), _help(known[name], short=name not in listed))
        return "\n".join(lines) + "\n"


def usage_error(message: str) -> UsageError:
    """Return a message of argparse as an error with fields."""
    about = re.fullmatch(r"argument --(\w+)\S*: (.*)", message, re.DOTALL)
    if not about:
        found, _, fix = message.partition(". ")
        return UsageError(found, fix=fix or "See --help.")
    option, problem = about.groups()
    if wrong := re.fullmatch(r"invalid choice: (.*) \(choose from (.*)\)", problem, re.DOTALL):
        return UsageError(f"is {wrong[1]}", option=option, needed=f"one of: {wrong[2]}".replace("'", ""))
    if wrong := re.fullmatch(r"invalid (\w+) value: (.*)", problem, re.DOTALL):
        return UsageError(f"is {wrong[2]}", option=option, needed=TYPES.get(wrong[1], f"a {wrong[1]}"))
    if wrong := re.fullmatch(r"Truthy value expected: got (.*) but expected one of .*", problem, re.DOTALL):
        return UsageError(f"is {wrong[1]!r}", option=option, needed="true or false")
    if re.fullmatch(r"expected (one|at least one) argument", problem):
        return UsageError("has no value", option=option)
    return UsageError(f"cannot be used: {problem}", option=option)


def _values(field: Field) -> str:
    """Return the placeholder for an option's value in the help text."""
    kind = str(field.type)
    choices = field.metadata.get("choices") or getattr(field.type, "__args__", ()) * ("Literal" in kind)
    if choices:
        return "{" + ",".join(map(str, choices)) + "}"
    if field.type in (bool, Optional[bool]):
        return "[true|false]"
    return "[X]" if field.metadata.get("nargs") == "?" else "X [X ...]" if "list[" in kind else "X"


def _help(field: Field, short: bool) -> str:
    """Return an option's help text and its default; with `short`, only the first sentence of the text."""
    text = " ".join(field.metadata.get("help", "").split())
    if short:
        text = re.split(r"(?<=[a-z)`])\. ", text)[0]
    silent = field.default in (None, MISSING, "") or "efault" in text
    return text if silent else f"{text} (default: {getattr(field.default, 'value', field.default)})"


def _help_lines(name: str, values: str, text: str) -> list[str]:
    head = f"  --{name} {values}"
    wrapped = textwrap.wrap(text, WIDTH - INDENT, break_on_hyphens=False) or [""]
    if len(head) > INDENT - 2:
        return [head, *(" " * INDENT + line for line in wrapped)]
    return [head.ljust(INDENT) + wrapped[0], *(" " * INDENT + line for line in wrapped[1:])]


def read_options_file(path: str | Path) -> dict:
    """Return the options in a YAML file.

    Raises:
        UsageError: It is not a file of options, or a key is not an option.
    """
    values = read_mapping(path, f"`config` {path}", "lines of `option: value`")
    known = [name for name in option_names() if name not in ("recipe", "config", "import")]
    unknown = sorted(str(key) for key in values if key not in known)
    if unknown:
        similar = [match for key in unknown for match in difflib.get_close_matches(key, known, n=1)]
        hint = f"Did you mean {', '.join(similar)}?" if similar else None
        raise UsageError(f"{path}: no such option: {', '.join(unknown)}", option="config", fix=hint)
    return values


def _text(value: object) -> str:
    """Return a value from a YAML file as it would be typed on the command line."""
    if isinstance(value, bool):  # YAML reads a bare `no` as false, and options like eval_strategy expect the word
        return "yes" if value else "no"
    return json.dumps(value) if isinstance(value, dict) else str(value)
