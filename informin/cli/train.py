"""`informin train`: train sentence embeddings on unlabeled text.

The names of the options, their numbers and choices, and what a run needs from the Hub are checked before torch is
imported, so that a run that cannot start ends at once.
"""

import logging
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from informin.cli.program import after_signal, exit_code
from informin.cli.train_names import check_names, given_options, option_names
from informin.errors import UsageError, error_line
from informin.options import check_fields, check_value, with_home
from informin.training.inputs import DataArguments, ModelArguments, SourceArguments, check_downloads, recipe_options

if TYPE_CHECKING:
    from informin.cli.train_options import RunOptions
    from informin.training.arguments import InforMinTrainingArguments
    from trainer_informin import InforMinTrainer

logger = logging.getLogger(__name__)

HELP = Path(__file__).with_name("train_help.tsv")  # by `python -m tools.train_help`: importing the parser takes seconds
BOOLEANS = dict.fromkeys(("true", "t", "yes", "y", "1"), True) | dict.fromkeys(("false", "f", "no", "n", "0"), False)
TYPES: dict[str, tuple[str, Callable[[str], Any]]] = {  # what a value has to be, and a function that refuses others
    "int": ("a whole number", int),
    "float": ("a number", float),
    "bool": ("true or false", lambda text: BOOLEANS[text.lower()]),
}


def main(words: list[str]) -> int:
    """Train one model, with options as on the command line.

    Returns:
        The exit code: 0, 1 (NaN loss, failed save or push), 2 (usage error), or 128 + signal.
    """
    return exit_code(lambda: run_training(words), option_names())


def run_training(words: list[str]) -> int:
    """Parse the options, load the data, train, export, and print the report. Returns the exit code."""
    if {"-h", "--help"} & {*words}:
        print_help()
        return 0
    check_inputs(words)
    from informin.cli.train_options import parse

    with after_signal("Nothing was saved since the last checkpoint."):
        run = parse(words)
        refuse_used_output(run.args)
        trainer = new_trainer(run)
        received = train_or_resume(trainer)
        if received:
            return 128 + received
        trainer.export(report=False)  # first, so that the model exists whatever happens next
    with after_signal(f"The model is in {trainer.args.output_dir}."):
        trainer.report(senteval_dir=run.data.senteval_dir)
        page = trainer.push_to_hub() if trainer.args.push_to_hub else None
        if page:
            print(f"\nThe model is at {page}")
        return 0


def print_help() -> None:
    """Print the options, wrapped to the terminal."""
    width, place = max(shutil.get_terminal_size().columns, 60), 34
    print("Usage: informin train --model_name MODEL [--recipe NAME | FILE.yaml] [options]\n")
    about = (
        "Train sentence embeddings on unlabeled text. The options of transformers' TrainingArguments also work; one "
        "without effect here is an error. "
        "Defaults from papers are those for BERT-base; some differ for RoBERTa and for large models."
    )
    print(fill(about, width), end="\n\n")
    for line in HELP.read_text(encoding="utf-8").splitlines():
        flag, text, _ = line.split("\t")
        if len(flag) > place - 4:
            print(f"  {flag}")
            flag = ""
        print(fill(text, width, initial_indent=f"  {flag}".ljust(place), subsequent_indent=" " * place))


def check_inputs(words: list[str]) -> None:
    """Raise UsageError for wrong options and missing files, and for what the Hub must provide and is not reachable.

    What depends on other options or on the content of files is not checked yet: transformers needs seconds for it.
    """
    given = given_options(words)
    check_names(given)
    check_values(given)
    values: dict[str, Any] = {
        name: found if name in ("train_file", "text_column") else found[-1] for name, found in given.items() if found
    }
    if "recipe" in values:
        of_recipe = recipe_options(str(values["recipe"]))
        check_names(of_recipe, "recipe", f"{values['recipe']}: ")
        values = of_recipe | values
    values.pop("streaming", None)  # not yet true or false, and not needed here
    model = ModelArguments(**values_of_fields(ModelArguments, values))
    data = DataArguments(**values_of_fields(DataArguments, values))
    sources = SourceArguments(**values_of_fields(SourceArguments, values))
    check_fields(sources)
    for name in ("train_file", "eval_pairs", "eval_labels", "eval_retrieval"):
        paths = getattr(data, name) or []
        for path in [paths] if isinstance(paths, str) else paths:
            if not Path(path).exists():
                raise UsageError(f"{path} does not exist", option=name)
    if not model.model_name:
        raise UsageError("is missing", option="model_name", fix="For example: `model_name` bert-base-uncased.")
    models = {"model_name": model.model_name, "guide_model": with_home(sources.guide_model)}
    check_downloads(data, models, sources.revision, sources.eval_strategy != "no")


def check_values(given: dict[str, list[str]]) -> None:
    """Raise UsageError for a value that its option cannot have: no number, or none of the choices."""
    for line in HELP.read_text(encoding="utf-8").splitlines():
        flag, _, kind = line.split("\t")
        name, _, shown = flag.removeprefix("--").partition(" ")
        if kind in ("int", "float") and given.get(name) == []:
            raise UsageError("has no value", option=name)
        for value in given.get(name, ()):
            choices = shown.strip("{}").split(",")
            check_value(kind != "choice" or value in choices, name, value, f"one of: {', '.join(choices)}")
            try:
                needed, parse = TYPES.get(kind, ("", str))
                parse(value)
            except (ValueError, KeyError):
                raise UsageError(f"is {value}", option=name, needed=needed) from None


def values_of_fields(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the options that are fields of a dataclass."""
    return {declared.name: values[declared.name] for declared in fields(kind) if declared.name in values}


def refuse_used_output(args: "InforMinTrainingArguments") -> None:
    """Raise UsageError if a new run would write to the folder of another one, before a guide embeds all sentences.

    `train_or_resume` checks again: it also knows the default folder, which depends on the encoder.
    """
    from informin.training.checkpoints import is_restarted, raise_if_output_used

    if args.output_dir and not args.resume_from_checkpoint and not is_restarted():
        raise_if_output_used(args.output_dir)


def new_trainer(run: "RunOptions") -> "InforMinTrainer":
    """Load the data, and return the trainer of a run."""
    import datasets

    from informin.distributed import first_of_machine_first
    from informin.training.data import load_development, load_sentences
    from informin.training.record import provenance
    from trainer_informin import InforMinTrainer

    check_reporters(list(run.args.report_to or []))
    if os.environ.get("RANK", "0") != "0":
        logging.getLogger("informin").setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    if run.args.gradient_accumulation_steps > 1:
        logger.warning("Gradient accumulation adds no negatives: each batch is contrasted only with itself.")
    with first_of_machine_first(run.args):
        development = load_development(run.data) if run.args.eval_strategy != "no" else None
        sentences = load_sentences(run.data, run.args.seed, run.view.columns)
    return InforMinTrainer(
        run.model_name,
        run.args,
        train_dataset=sentences,
        eval_dataset=development,
        provenance=provenance(run.data, run.card),
        objective=run.objective,
        view=run.view,
    )


def check_reporters(names: list[str]) -> None:
    """Raise UsageError for a name in `report_to` that transformers does not know, or whose package is missing."""
    from transformers.integrations import get_reporting_integration_callbacks

    problem = ""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None  # some callbacks that failed, such as MLflow's, fail again when deleted
    try:
        for callback in get_reporting_integration_callbacks(names):
            callback()
    except (ValueError, RuntimeError, ImportError) as error:
        problem = error_line(error)
    finally:
        sys.unraisablehook = hook
    if problem:
        raise UsageError(f"is {' '.join(names)}: {problem}", option="report_to")


def train_or_resume(trainer: "InforMinTrainer") -> int:
    """Train, or resume a run. Returns the number of the signal that interrupted it; 0 if it is finished."""
    from informin.files import only_writer
    from informin.training.checkpoints import (
        LAST,
        StopOnSignal,
        can_resume,
        complete_checkpoints,
        is_restarted,
        raise_if_output_used,
    )

    folder = str(trainer.args.output_dir)
    resume = trainer.args.resume_from_checkpoint
    is_first = trainer.args.process_index == 0
    with only_writer(folder, "output_dir") if is_first else nullcontext(), StopOnSignal() as stop:
        if is_restarted() and any(can_resume(path) for path in complete_checkpoints(folder)):
            resume = LAST
        if not resume:  # a restarted run may have left incomplete checkpoints
            raise_if_output_used(folder, allow_incomplete=is_restarted())
        trainer.add_callback(stop)
        trainer.train(resume_from_checkpoint=resume)
    if stop.received and is_first:
        how = f"To resume, run the same command with --resume_from_checkpoint {LAST}"
        if trainer.args.save_only_model:
            how = "It cannot be resumed, because --save_only_model leaves out the optimizer state."
        print(f"Interrupted at step {trainer.state.global_step}; the checkpoint is in {folder}.\n{how}")
    return stop.received or 0
