"""Train sentence embeddings without labels. See README.md, or `python run_unsup.py --help`."""

import logging
import os
import signal
import sys
import time

import transformers
from transformers import set_seed

from informin.checkpoints import LAST, checkpoint_to_resume, refuse_used_folder, steps_taken
from informin.cli import parse
from informin.data import load_evaluation_pairs, load_sentences, tokenise
from informin.errors import NonFiniteLossError, PushError, UsageError
from informin.interrupt import StopOnSignal
from informin.loading import load_model, load_tokenizer
from informin.publishing import hub_destination
from informin.record import objective_options, provenance
from informin.report import precision, summary
from trainer_informin import InforMinTrainer

logger = logging.getLogger("run_unsup")


def main(argv: list[str] | None = None) -> int:
    """Trains one model. Returns the exit code: 0, 1 (no finite loss, or a failed push), 2 (usage), 128 + signal."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        return train(argv)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (NonFiniteLossError, PushError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted; nothing was saved since the last checkpoint.", file=sys.stderr)
        return 128 + signal.SIGINT


def train(argv: list[str]) -> int:
    """Options, model, data, training, the exported folder, the table."""
    start_logging()
    model_args, data_args, card_args, args, config = parse(argv)
    resume = args.resume_from_checkpoint
    if resume:
        resume = str(checkpoint_to_resume(args.output_dir, resume, settings(model_args, data_args, args)))
        args.eval_on_start = False  # the score before the first step is in the checkpoint's history
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
    transformers.utils.logging.disable_progress_bar()  # downloads are over; a bar for each saved file says little
    set_seed(args.seed)  # decides the weights of fresh heads
    model = load_model(config, model_args.model_name, settings(model_args, data_args, args), model_args.model_revision)
    data = {"train_dataset": train_dataset, "eval_dataset": pairs}
    trainer = InforMinTrainer(model=model, args=args, processing_class=tokenizer, provenance=known, **data)
    logger.info(
        f"Training on {args.device} in {precision(args)}: {args.world_size} process(es) x "
        f"{args.per_device_train_batch_size} sentences a step, to {args.output_dir}"
    )
    before, start = steps_taken(resume) if resume else 0, time.perf_counter()  # training may delete that checkpoint
    with StopOnSignal() as stop:
        trainer.add_callback(stop)
        trainer.train(resume_from_checkpoint=resume)
        seconds = time.perf_counter() - start - trainer.seconds_aside
    if stop.received:
        if trainer.is_world_process_zero():
            print(f"Interrupted at step {trainer.state.global_step}; the checkpoint is in {args.output_dir}.")
            print(f"Go on with the same command and --resume_from_checkpoint {LAST}")
        return 128 + stop.received
    steps = trainer.state.global_step - before
    rate = steps * trainer.get_total_train_batch_size(args) / seconds
    trainer.sentences_per_second = rate or None  # 0 where a finished run was resumed
    trainer.export()
    if trainer.is_world_process_zero():
        print("\n" + summary(trainer.state, args, pairs and pairs.name, rate, args.output_dir))
    if args.push_to_hub:
        page = trainer.push_to_hub()
        if page:
            print(f"\nThe model is at {page}")
    return 0


def settings(model_args, data_args, args) -> dict:
    """What the saved configuration says about how the model was made and is to be read (`config.informin`)."""
    return {
        "pooling": "cls",
        "projection_head": model_args.projection_head,
        "max_seq_length": data_args.max_seq_length,
        **args.heads,
        **objective_options(args),
    }


def start_logging() -> None:
    """Of several processes one speaks; of transformers only warnings are shown."""
    logging.basicConfig(format="%(message)s")
    for name in ("informin", "run_unsup"):
        logging.getLogger(name).setLevel(logging.INFO if os.environ.get("RANK", "0") == "0" else logging.ERROR)
    transformers.utils.logging.set_verbosity_warning()


if __name__ == "__main__":
    sys.exit(main())
