"""`informin train`: train sentence embeddings on unlabeled text."""

import logging
import os
import sys
from contextlib import nullcontext

from informin import program


def main(argv: list[str] | None = None) -> int:
    """Train one model.

    Returns:
        The exit code: 0, 1 (NaN loss, failed save or push), 2 (usage error), or 128 + signal.
    """
    from informin.training.command_line import Parser

    argv = sys.argv[1:] if argv is None else argv
    options = Parser().option_names()
    return program.exit_code(lambda: run(argv), options, "Nothing was saved since the last checkpoint.")


def run(argv: list[str]) -> int:
    """Parse the options, load the data, train, export, and print the report."""
    import datasets

    from informin.distributed import first_of_machine_first
    from informin.outputs import only_writer
    from informin.training.checkpoints import (
        LAST,
        can_resume,
        complete_checkpoints,
        raise_if_used,
    )
    from informin.training.command_line import parse
    from informin.training.record import provenance
    from informin.training.sentences import load_development, load_sentences
    from informin.training.signals import StopOnSignal, is_restarted
    from trainer_informin import InforMinTrainer

    logger = logging.getLogger(__name__)
    if os.environ.get("RANK", "0") != "0":
        logging.getLogger("informin").setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    model_name, data, card, args = parse(argv)
    if args.gradient_accumulation_steps > 1:
        logger.warning("Gradient accumulation adds no negatives: each batch is contrasted only with itself.")
    with first_of_machine_first(args):
        development = load_development(data) if args.eval_strategy != "no" else None
        sentences = load_sentences(data, args.seed)
    trainer = InforMinTrainer(model_name, args, sentences, development, provenance=provenance(data, card))
    args = trainer.args
    folder, resume = str(args.output_dir), args.resume_from_checkpoint
    with only_writer(folder) if args.process_index == 0 else nullcontext(), StopOnSignal() as stop:
        if is_restarted() and any(can_resume(path) for path in complete_checkpoints(folder)):
            resume = LAST
        if not resume:
            raise_if_used(folder, restarted=is_restarted())  # a restarted run may have left incomplete checkpoints
        trainer.add_callback(stop)
        trainer.train(resume_from_checkpoint=resume)
    if stop.received:
        if trainer.is_world_process_zero():
            how = f"To resume, run the same command with --resume_from_checkpoint {LAST}"
            if args.save_only_model:
                how = "It cannot be resumed, because --save_only_model leaves out the optimizer state."
            print(f"Interrupted at step {trainer.state.global_step}; the checkpoint is in {folder}.\n{how}")
        return 128 + stop.received
    trainer.export(report=False)  # first, so that the model exists whatever happens next
    trainer.report(senteval_dir=data.senteval_dir)
    if args.push_to_hub and (page := trainer.push_to_hub()):
        print(f"\nThe model is at {page}")
    return 0
