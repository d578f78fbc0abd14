"""Parse the options of `informin train`: the command line over a file of options over the papers' values."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Optional

from transformers import HfArgumentParser

from informin import program
from informin.errors import UsageError, error_line
from informin.objectives.terms import option
from informin.training.defaults import option_defaults
from informin.training.options import CardArguments, DataArguments, InforMinTrainingArguments, recipe_options

# Options of transformers that are often used; `--help` shows them and ours.
OFTEN_USED = (
    "output_dir per_device_train_batch_size learning_rate num_train_epochs max_steps warmup_steps lr_scheduler_type "
    "weight_decay max_grad_norm gradient_accumulation_steps seed bf16 eval_strategy eval_steps save_steps "
    "logging_steps save_total_limit resume_from_checkpoint report_to push_to_hub hub_model_id"
).split()


@dataclass
class ModelArguments:
    """The encoder to train."""

    model_name: Optional[str] = option(None, "Encoder to train: Hub id or local folder. Required.")


class Formatter(argparse.HelpFormatter):
    """Shows one spelling of each option, and its default."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=34, width=120)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        values = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else "X"
        return action.option_strings[0] + (f" {values}" if action.nargs != 0 else "")


class Parser(program.Parser, HfArgumentParser):
    """HfArgumentParser with a short `--help`, and the values of `--recipe` as defaults."""

    def __init__(self):
        kinds: Any = [ModelArguments, DataArguments, CardArguments, InforMinTrainingArguments]
        usage = "informin train --model_name MODEL [--recipe NAME | FILE.yaml] [options]"
        about = (
            "Train sentence embeddings on unlabeled text. All options of transformers' TrainingArguments are accepted."
        )
        super().__init__(kinds, usage=usage, description=about, formatter_class=Formatter)
        of_transformers = {field.name for field in fields(InforMinTrainingArguments)} - ours()
        for action in self._actions:
            is_negation = action.option_strings[0].startswith("--no_")
            if is_negation or action.dest in of_transformers - set(OFTEN_USED):
                action.help = argparse.SUPPRESS

    def set_file(self, values: dict[str, Any], name: str) -> None:
        """Use the values of a file as defaults. Raise UsageError for one that is not an option."""
        known = {action.dest for action in self._actions} - {"recipe", "help"}
        if unknown := sorted(map(str, set(values) - known)):
            raise UsageError(f"{name}: no such option: {', '.join(unknown)}", option="recipe")
        for option_name, value in values.items():
            if value is False and option_name.endswith("_strategy"):  # YAML reads a bare `no` as false
                values[option_name] = "no"
        self.set_defaults(**values)


def ours() -> set[str]:
    """Return the names of the options that transformers' TrainingArguments does not have."""
    declared = set(InforMinTrainingArguments.__annotations__) | set(option_defaults())
    inherited = {field.name for field in fields(InforMinTrainingArguments.__mro__[2])}
    return declared - inherited - {"paper_row", "resolved_for"}


def parse(
    argv: Sequence[str], options: dict[str, Any] | None = None
) -> tuple[str, DataArguments, CardArguments, InforMinTrainingArguments]:
    """Return the model's name and the options of a run.

    Precedence, highest first: the command line, the file that `recipe` names, `options`, the paper's values
    for the model, the default.

    Args:
        argv: Arguments of the command line, without the program's name.
        options: Values as in a YAML file.

    Raises:
        UsageError: An option is wrong.
        SystemExit: After `--help`, and if argparse refuses an argument.
    """
    parser = Parser()
    parser.set_file(dict(options or {}), "options")
    first = program.Parser(add_help=False)
    first.add_argument("--recipe")
    given, rest = first.parse_known_args(argv)
    if given.recipe:
        parser.set_file(recipe_options(given.recipe), given.recipe)
    try:
        model, data, card, args = parser.parse_args_into_dataclasses(rest, look_for_args_file=False)
    except UsageError:
        raise
    except (ValueError, TypeError, ImportError) as error:  # from TrainingArguments
        raise UsageError(error_line(error), fix="See `informin train --help`.") from error
    if not model.model_name:
        raise UsageError("is missing", option="model_name", fix="For example: `model_name` bert-base-uncased.")
    return model.model_name, data, card, args
