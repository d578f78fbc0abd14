"""`informin train`: train sentence embeddings on unlabeled text.

What a run needs from the Hub is checked before torch is imported, so that a run that cannot start ends at once.
"""

import logging
import os
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from transformers import HfArgumentParser

from informin import program
from informin.errors import UsageError, error_line
from informin.options import check_fields
from informin.training.inputs import DataArguments, ModelArguments, SourceArguments, check_downloads, recipe_options

if TYPE_CHECKING:
    from informin.cli.train_options import Given
    from informin.training.arguments import InforMinTrainingArguments
    from trainer_informin import InforMinTrainer

logger = logging.getLogger(__name__)


def main(argv: list[str] | None = None) -> int:
    """Train one model.

    Returns:
        The exit code: 0, 1 (NaN loss, failed save or push), 2 (usage error), or 128 + signal.
    """
    argv = sys.argv[1:] if argv is None else argv
    parser = InputParser()
    code = program.exit_code(lambda: check_inputs(parser, argv), parser.option_names())
    if code:
        return code
    from informin.cli.train_options import Parser

    options = Parser().option_names()
    return program.exit_code(lambda: run(argv), options, "Nothing was saved since the last checkpoint.")


class InputParser(program.Parser, HfArgumentParser):
    """Reads the options that name what a run reads, and ignores the others."""

    def __init__(self):
        dataclasses: Any = [ModelArguments, DataArguments, SourceArguments]
        super().__init__(dataclasses, add_help=False)


def check_inputs(parser: InputParser, argv: list[str]) -> None:
    """Raise UsageError for everything that the run needs from the Hub, if it cannot be reached.

    The other options are not checked yet, because transformers needs seconds for them.
    """
    found, _ = parser.parse_known_args(argv)
    if found.recipe:
        parser.set_defaults(**recipe_options(found.recipe))
    model, data, sources, *_ = parser.parse_args_into_dataclasses(
        argv, look_for_args_file=False, return_remaining_strings=True
    )
    check_fields(sources)
    asks_for_help = "-h" in argv or "--help" in argv
    if model.model_name and not asks_for_help:
        models = {"model_name": model.model_name, "guide_model": sources.guide_model}
        check_downloads(data, models, sources.revision, sources.eval_strategy != "no")


def run(argv: list[str]) -> int:
    """Parse the options, load the data, train, export, and print the report. Returns the exit code."""
    from informin.cli.train_options import parse

    given = parse(argv)
    check_output(given.args)
    trainer = new_trainer(given)
    received = train(trainer)
    if received:
        return 128 + received
    trainer.export(report=False)  # first, so that the model exists whatever happens next
    trainer.report(senteval_dir=given.data.senteval_dir)
    page = trainer.push_to_hub() if trainer.args.push_to_hub else None
    if page:
        print(f"\nThe model is at {page}")
    return 0


def check_output(args: "InforMinTrainingArguments") -> None:
    """Raise UsageError if a new run would write to the folder of another one, before a guide embeds all sentences.

    `train` checks again: it also knows the default folder, which depends on the encoder.
    """
    from informin.training.checkpoints import is_restarted, raise_if_output_used

    if args.output_dir and not args.resume_from_checkpoint and not is_restarted():
        raise_if_output_used(args.output_dir)


def new_trainer(given: "Given") -> "InforMinTrainer":
    """Load the data, and return the trainer of a run."""
    import datasets

    from informin.distributed import first_of_machine_first
    from informin.training.data import load_development, load_sentences
    from informin.training.record import provenance
    from trainer_informin import InforMinTrainer

    check_reporters(list(given.args.report_to or []))
    if os.environ.get("RANK", "0") != "0":
        logging.getLogger("informin").setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    if given.args.gradient_accumulation_steps > 1:
        logger.warning("Gradient accumulation adds no negatives: each batch is contrasted only with itself.")
    with first_of_machine_first(given.args):
        development = load_development(given.data) if given.args.eval_strategy != "no" else None
        sentences = load_sentences(given.data, given.args.seed)
    return InforMinTrainer(
        given.model_name,
        given.args,
        train_dataset=sentences,
        eval_dataset=development,
        provenance=provenance(given.data, given.card),
        objective=given.objective,
        view=given.view,
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


def train(trainer: "InforMinTrainer") -> int:
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
            raise_if_output_used(folder, restarted=is_restarted())
        trainer.add_callback(stop)
        trainer.train(resume_from_checkpoint=resume)
    if stop.received and is_first:
        how = f"To resume, run the same command with --resume_from_checkpoint {LAST}"
        if trainer.args.save_only_model:
            how = "It cannot be resumed, because --save_only_model leaves out the optimizer state."
        print(f"Interrupted at step {trainer.state.global_step}; the checkpoint is in {folder}.\n{how}")
    return stop.received or 0
