"""Train sentence embeddings without labels. See README.md, or `python run_unsup.py --help`."""

from informin import program

if __name__ == "__main__":
    program.quiet_while_loading()

import logging
import os
import signal
import sys
import time
from contextlib import nullcontext

import datasets
import huggingface_hub
import transformers
from transformers import set_seed

from informin.encoders.loading import load_model, load_tokenizer
from informin.errors import NonFiniteLossError, PushError, SaveError, UsageError
from informin.publishing.record import objective_options, provenance
from informin.publishing.trainer import hub_destination
from informin.training.checkpoints import LAST, checkpoint_to_resume, refuse_used_folder, steps_taken
from informin.training.command_line import parse
from informin.training.lock import only_run_in
from informin.training.report import summary
from informin.training.sentences import load_evaluation_pairs, load_sentences, tokenise
from informin.training.signals import StopOnSignal, last_word
from trainer_informin import InforMinTrainer

logger = logging.getLogger("run_unsup")


def main(argv: list[str] | None = None) -> int:
    """Trains one model. Returns the exit code: 0, 1 (no finite loss, failed save or push), 2 (usage), 128 + signal."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        start_logging(verbose=False)
        model_args, data_args, card_args, args, config = parse(argv)
        start_logging(args.verbose)
        with only_run_in(args.output_dir) if args.process_index == 0 else nullcontext():
            return train(model_args, data_args, card_args, args, config)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (NonFiniteLossError, SaveError, PushError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted; nothing was saved since the last checkpoint.", file=sys.stderr)
        return 128 + signal.SIGINT


def train(model_args, data_args, card_args, args, config) -> int:
    """Data, model, training, the exported folder, the table."""
    of_model = settings(model_args, data_args, args)
    resume = args.resume_from_checkpoint
    if resume:
        resume = checkpoint_to_resume(args.output_dir, resume, of_model)
    else:
        refuse_used_folder(args.output_dir)
    if args.push_to_hub and args.process_index == 0:
        hub_destination(args)  # what cannot be pushed is said now, not after the training
    if args.gradient_accumulation_steps > 1:
        logger.warning("Gradient accumulation adds no in-batch negatives: each step contrasts within its own batch.")
    with args.main_process_first(desc="data"):
        pairs = load_evaluation_pairs(data_args) if args.eval_strategy != "no" else None
        sentences = load_sentences(data_args, args.seed)
        tokenizer = load_tokenizer(model_args.model_name, config, model_args.model_revision)
        train_dataset = tokenise(sentences, tokenizer, data_args.max_seq_length)
        known = provenance(model_args, data_args, card_args, sentences)
    huggingface_hub.utils.disable_progress_bars()  # downloads are over; a bar for each saved file says little
    set_seed(args.seed)  # decides the weights of fresh heads
    model = load_model(config, model_args.model_name, of_model, model_args.model_revision)
    data = {"train_dataset": train_dataset, "eval_dataset": pairs}
    trainer = InforMinTrainer(model=model, args=args, processing_class=tokenizer, provenance=known, **data)
    before, start = steps_taken(resume) if resume else 0, time.perf_counter()  # training may delete that checkpoint
    with StopOnSignal() as stop:
        trainer.add_callback(stop)
        trainer.train(resume_from_checkpoint=resume)
        seconds = time.perf_counter() - start - trainer.seconds_aside
    if stop.received:
        if trainer.is_world_process_zero():
            last_word(
                f"Interrupted at step {trainer.state.global_step}; the checkpoint is in {args.output_dir}.\n"
                f"Go on with the same command and --resume_from_checkpoint {LAST}"
            )
        return 128 + stop.received
    finish(trainer, (trainer.state.global_step - before) / seconds)
    return 0


def finish(trainer: InforMinTrainer, steps_per_second: float) -> None:
    """Export, table, push."""
    args, pairs = trainer.args, trainer.eval_dataset
    rate = steps_per_second * trainer.get_total_train_batch_size(args)
    trainer.sentences_per_second = rate or None  # 0 where a finished run was resumed
    trainer.export()
    if trainer.is_world_process_zero():
        print("\n" + summary(trainer.state, args, pairs and pairs.name, rate, args.output_dir))
    if args.push_to_hub:
        page = trainer.push_to_hub()
        if page:
            print(f"\nThe model is at {page}")


def settings(model_args, data_args, args) -> dict:
    """What the saved configuration says about how the model was made and is to be read (`config.informin`)."""
    return {
        "pooling": "cls",
        "projection_head": model_args.projection_head,
        "max_seq_length": data_args.max_seq_length,
        **args.heads,
        **objective_options(args),
    }


def start_logging(verbose: bool) -> None:
    """Of several processes one speaks; of transformers only warnings are shown; bars only of downloads and training."""
    logging.basicConfig(format="%(message)s")
    first = os.environ.get("RANK", "0") == "0"
    for name in ("informin", "run_unsup"):
        logging.getLogger(name).setLevel((logging.DEBUG if verbose else logging.INFO) if first else logging.ERROR)
    transformers.utils.logging.set_verbosity_warning()
    # It warns of every option that is not the checkpoint's; what matters is refused by name.
    logging.getLogger("transformers.trainer_utils").setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    if not huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS:
        huggingface_hub.utils.enable_progress_bars()  # which that turns off too
    datasets.disable_progress_bars()


if __name__ == "__main__":
    program.run(main)
