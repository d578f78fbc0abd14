"""`informin train`: train sentence embeddings on unlabeled text."""

import logging
import os
import sys
from contextlib import nullcontext

import datasets
import huggingface_hub
import transformers

from informin import program
from informin.cli.report import leave_report
from informin.distributed import first_of_machine_first
from informin.files import last_name
from informin.interrupts import during
from informin.lock import only_run_in
from informin.models.checkpoint import Checkpoint
from informin.publishing.origin import refuse_local_base
from informin.publishing.trainer import hub_destination
from informin.training.checkpoints import LAST, checkpoint_to_resume, refuse_used_folder, resumable_checkpoints
from informin.training.command_line import option_names, parse
from informin.training.data_options import CardArguments, DataArguments
from informin.training.heartbeat import Heartbeat
from informin.training.record import provenance
from informin.training.sentences import load_development, load_sentences
from informin.training.signals import StopOnSignal, print_at_end, restarted
from trainer_informin import InforMinTrainer, InforMinTrainingArguments

logger = logging.getLogger(__name__)
EVALUATED = ("eval_pairs", "eval_labels", "eval_retrieval")


def main(argv: list[str] | None = None) -> int:
    """Train one model.

    Returns:
        The exit code: 0, 1 (NaN loss, failed save or push), 2 (usage error), or 128 + signal.
    """
    argv = sys.argv[1:] if argv is None else argv
    return program.exit_code(lambda: run(argv), option_names(), "Nothing was saved since the last checkpoint.")


def run(argv: list[str]) -> int:
    """Parse the options, and train with the output folder locked."""
    start_logging(verbose=False)
    checkpoint, data, card, args = parse(argv)
    start_logging(args.verbose)
    alone = only_run_in(args.run_dir) if args.process_index == 0 else nullcontext()
    with Heartbeat(args.run_dir, args.device), alone:
        return train(checkpoint, data, card, args)


def train(checkpoint: Checkpoint, data: DataArguments, card: CardArguments, args: InforMinTrainingArguments) -> int:
    """Load the data, train, export, and print the report."""
    resume, again = args.resume_from_checkpoint, restarted()
    if again and (complete := resumable_checkpoints(args.run_dir)):
        resume = LAST
        logger.warning(f"A process died, and the run was restarted. It resumes from {complete[-1].name}.")
    if resume:
        resume = str(checkpoint_to_resume(args.run_dir, resume, args.model_settings))
    else:
        refuse_used_folder(args.run_dir, checkpoints=not again)  # a restarted run may have left incomplete ones
    if args.push_to_hub and args.process_index == 0:
        hub_id = card.base_model or (None if checkpoint.is_folder else checkpoint.name)
        refuse_local_base(args, {"name": last_name(checkpoint.name), "hub_id": hub_id})
        hub_destination(args)  # fails before training if the push cannot work
    if args.gradient_accumulation_steps > 1:
        logger.warning("Gradient accumulation adds no negatives: each batch is contrasted only with itself.")
    with first_of_machine_first(args):
        development = load_development(data) if args.eval_strategy != "no" else None
        if development is None and (unread := [name for name in EVALUATED if getattr(data, name)]):
            logger.warning(f"`{unread[0]}` has no effect, because `eval_strategy` is no. Set it to steps or epoch.")
        sentences = load_sentences(data, args.seed)
        known = provenance(checkpoint, data, card)
    trainer = InforMinTrainer(checkpoint, args, sentences, development, provenance=known)
    huggingface_hub.utils.disable_progress_bars()  # downloads are finished; no bar for each saved file
    with StopOnSignal() as stop:
        trainer.add_callback(stop)
        trainer.train(resume_from_checkpoint=resume)
        if stop.received:
            if trainer.is_world_process_zero():
                how = f"To resume, run the same command with --resume_from_checkpoint {LAST}"
                if args.save_only_model:
                    how = "It cannot be resumed, because --save_only_model leaves out the optimizer state."
                step = trainer.state.global_step
                print_at_end(f"Interrupted at step {step}; the checkpoint is in {args.output_dir}.\n{how}")
            return 128 + stop.received
    trainer.export(report=False)  # first, so that the model exists whatever happens next
    exported = f"The model is in {args.output_dir}."
    with during("the drift report", exported):
        trainer.report(senteval_dir=data.senteval_dir)
    with during("the report", exported):
        if trainer.is_world_process_zero():
            leave_report(args.run_dir)
    with during("the push", exported):
        if args.push_to_hub and (page := trainer.push_to_hub()):
            print(f"\nThe model is at {page}")
    return 0


def start_logging(verbose: bool) -> None:
    """Log only in the first process; show only warnings of transformers, and bars only for downloads and training."""
    logging.basicConfig(format="%(message)s")
    first = os.environ.get("RANK", "0") == "0"
    logging.getLogger("informin").setLevel((logging.DEBUG if verbose else logging.INFO) if first else logging.ERROR)
    transformers.utils.logging.set_verbosity_warning()
    # It warns about every option that differs from the checkpoint's; important differences are errors.
    logging.getLogger("transformers.trainer_utils").setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    if not huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS:
        huggingface_hub.utils.enable_progress_bars()  # the previous call disabled them, too
    datasets.disable_progress_bars()
