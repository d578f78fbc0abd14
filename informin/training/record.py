"""The record of a run, from which its model card is generated.

It contains no path, user name or host name: of files and folders, only the last part of the path.
"""

import hashlib
import logging
import math
import os
from dataclasses import fields
from typing import Any

from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from datasets import IterableDataset

from informin.evaluation.results import environment
from informin.files import last_name
from informin.hub_access import HUB_DATA, HUB_SENTENCES
from informin.records import RunRecord
from informin.training.inputs import DataArguments
from informin.training.log_entries import evaluations, logged_scores
from informin.training.option_values import as_json
from informin.training.options import CardArguments, InforMinTrainingArguments
from informin.training.sentences import Sentences

logger = logging.getLogger(__name__)

# Options of every objective that affect the weights.
SHAPING = """
    learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps weight_decay
    max_grad_norm optim optim_args adam_beta1 adam_beta2 adam_epsilon num_train_epochs max_steps
    gradient_accumulation_steps
""".split()
# Those of them that an optimizer of the user replaces, and a scheduler.
OF_OPTIMIZER = "learning_rate optim_args adam_beta1 adam_beta2 adam_epsilon".split()
OF_SCHEDULER = "lr_scheduler_kwargs warmup_steps".split()
RARE_OPTIONS = """
    data_seed dataloader_drop_last train_sampling_strategy ignore_data_skip neftune_noise_alpha optim_target_modules
    full_determinism tf32 torch_compile metric_for_best_model pooler prompt gradient_cache_chunk_size lora_r
    lora_dropout
""".split()  # recorded only if they differ from the default
DEFAULTS = {field.name: field.default for field in fields(InforMinTrainingArguments)}
# The resolved values.
DEFAULTS |= {"pooler": "cls", "prompt": "", "metric_for_best_model": "eval_spearman"}
LOADER = {"use_seedable_sampler": True, "split_batches": False, "dispatch_batches": False}  # of `accelerator_config`
DEFAULTS |= LOADER
ONLY_IF_CHANGED = {*RARE_OPTIONS, *LOADER, "load_best_model_at_end"}


def describe_sentences(sentences: Sentences) -> dict[str, Any]:
    """Return the entry `data` of the record; `sentences` has the column `text`."""
    number: dict[str, Any] = {"sentences": None, "sha256": None}  # a stream is only read in training
    if not isinstance(sentences, IterableDataset):
        digest = hashlib.sha256()
        for batch in sentences.with_format("arrow").iter(10_000):
            for sentence in batch["text"].to_pylist():
                digest.update(sentence.encode().replace(b"\0", b"\xff") + b"\0")  # 0xff never occurs in UTF-8
        number = {"sentences": len(sentences), "sha256": digest.hexdigest()}
    return {"sources": ["sentences"], "hub_id": None, **number}


def provenance(data: DataArguments, card: CardArguments) -> dict[str, Any]:
    """Return the facts about a run that the trainer cannot derive.

    Returns:
        The sources of the `data`, its `language`, the `license` if it was given, and the `hub_id` of an encoder that is
        a local folder.
    """
    is_local = data.dataset_name and os.path.exists(data.dataset_name)  # load_dataset also accepts folders
    files = [data.dataset_name] if data.dataset_name and is_local else data.train_file
    if files:
        hub_id, sources = None, [last_name(file) for file in files]
    else:
        named = [data.dataset_name, data.dataset_config, data.dataset_split]
        parts = named if data.dataset_name else [HUB_DATA, HUB_SENTENCES]
        hub_id, sources = parts[0], ["/".join(part for part in parts if part)]
    entry = {"sources": sources, "hub_id": hub_id}
    language = card.language or ("en" if hub_id == HUB_DATA else None)
    facts = {"hub_id": card.base_model, "data": entry, "language": language}
    return facts | ({"license": card.license} if card.license else {})


def training_record(trainer: Any) -> RunRecord:
    """Return the record of a trainer's run so far."""
    args = trainer.args
    state = trainer.state
    development = trainer.eval_dataset
    # Trainer loads the best checkpoint at the end of training; until then the weights are those of the last step.
    best = state.best_model_checkpoint  # also None if a run is resumed without that folder
    chosen = args.load_best_model_at_end and not trainer.is_in_train and best is not None
    sets = development.sets if development else ()
    return RunRecord(
        seed=args.seed,
        options=options_of(trainer) | trainer.trained.packing,
        objective=trainer.objective.describe(),
        steps=state.global_step,
        kept_step=state.best_global_step if chosen else state.global_step,
        chosen=chosen,
        environment=environment(args.device),
        development=development.name if development else None,
        development_sha256=development.sha256 if development else None,
        development_sets=[{"kind": one.kind, "name": one.name} for one in sets],
        history=[_scores_of(entry) for entry in evaluations(state.log_history)],
        sentences_per_second=trainer.throughput.sentences_per_second,
        dimensions=None if trainer.trained.is_native else trainer.trained.config.hidden_size,
        **trainer.facts,
    )


def _scores_of(entry: dict) -> dict[str, Any]:
    scores = {name: value if math.isfinite(value) else None for name, value in logged_scores(entry).items()}
    return scores | {"step": entry["step"]}


def precision(args: InforMinTrainingArguments) -> str:
    """Return the precision of the run: fp32, bf16 or fp16. The launcher can set it, too."""
    return args.mixed_precision if args.mixed_precision != "no" else "fp32"


def options_of(trainer: Any) -> dict[str, Any]:
    """Return the options that affect the weights."""
    args = trainer.args
    options = dict(trainer.objective.options)
    options["sentences_per_step"] = args.per_device_train_batch_size * args.world_size
    options |= {name: as_json(getattr(args, name), name) for name in SHAPING}
    options |= of_given_optimizer(trainer) | of_given_scheduler(trainer)
    settings = trainer.trained.module.config.informin
    options |= {name: settings[name] for name in ("projection_head", "max_seq_length")}
    files = {name: getattr(args, name) for name in ("guide_model", "replay_file")}
    options |= {name: last_name(value) for name, value in files.items() if value}
    del options["max_steps" if args.max_steps < 0 else "num_train_epochs"]
    rare = {name: getattr(args, name) for name in RARE_OPTIONS}
    rare |= {"pooler": settings["pooling"], "prompt": trainer.trained.prompt}
    if args.eval_strategy != "no":
        rare["load_best_model_at_end"] = args.load_best_model_at_end
    options |= {name: value for name, value in rare.items() if value != DEFAULTS[name]}
    loader = {name: getattr(args.accelerator_config, name) for name in LOADER}
    options |= {name: value for name, value in loader.items() if value != DEFAULTS[name]}
    if isinstance(trainer.train_dataset, IterableDataset):  # its order depends on the number of workers
        options |= {"streaming": True, "dataloader_num_workers": args.dataloader_num_workers}
        options["max_train_samples"] = args.max_train_samples
    options = {name: value for name, value in options.items() if value not in (None, {})}
    return options | {"precision": precision(args), "processes": args.world_size}


def of_given_optimizer(trainer: Any) -> dict[str, Any]:
    """Return the options that an optimizer or a class of the user replaces, None for those without effect."""
    if trainer.optimizer_cls_and_kwargs:
        kind, how = trainer.optimizer_cls_and_kwargs
        others = {name: as_json(value, "optim_args") for name, value in how.items() if name != "lr"}
        own = {"optim": kind.__name__, "learning_rate": as_json(how.get("lr"), "learning_rate"), "optim_args": others}
        return dict.fromkeys(OF_OPTIMIZER) | own
    if trainer.optimizer is None or trainer.created_optimizer:
        return {}
    is_wrapped = isinstance(trainer.optimizer, AcceleratedOptimizer)
    optimizer = trainer.optimizer.optimizer if is_wrapped else trainer.optimizer
    own = {"optim": type(optimizer).__name__, "weight_decay": optimizer.defaults.get("weight_decay")}
    return dict.fromkeys(OF_OPTIMIZER) | own | {"learning_rate": as_json(optimizer.defaults.get("lr"), "learning_rate")}


def of_given_scheduler(trainer: Any) -> dict[str, Any]:
    """Return the options that a scheduler of the user replaces, None for those without effect."""
    if trainer.lr_scheduler is None or trainer._created_lr_scheduler:
        return {}
    is_wrapped = isinstance(trainer.lr_scheduler, AcceleratedScheduler)
    scheduler = trainer.lr_scheduler.scheduler if is_wrapped else trainer.lr_scheduler
    return dict.fromkeys(OF_SCHEDULER) | {"lr_scheduler_type": type(scheduler).__name__}
