"""Build the record of a run for training.json; `informin.publishing.record` documents its entries."""

import hashlib
import math
import os
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

from datasets import Dataset, IterableDataset
from transformers import TrainerState
from transformers.trainer_pt_utils import AcceleratorConfig

from informin import __version__
from informin.evaluation.development import Development
from informin.evaluation.results import environment
from informin.evaluation.senteval_files import HUB_DATA
from informin.files import last_name
from informin.guide.cache import CachedGuide
from informin.guide.replay import replay_path
from informin.models.checkpoint import Checkpoint
from informin.models.cpu_parts import parts_in_training
from informin.models.model import Model
from informin.objectives import OBJECTIVES
from informin.publishing.metadata import license_of
from informin.publishing.record import SCHEMA
from informin.training.data_options import CardArguments, DataArguments
from informin.training.fingerprints import fingerprint, fingerprint_of_tokens, fingerprints, source_of
from informin.training.history import all_scores
from informin.training.options import InforMinTrainingArguments
from informin.training.run_summary import evaluations, precision
from informin.training.sentences import HUB_SENTENCES
from informin.training.throughput import Throughput

# Options of every objective that affect the weights.
SHAPING = """
    projection_head max_seq_length learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps weight_decay
    max_grad_norm optim optim_args adam_beta1 adam_beta2 adam_epsilon num_train_epochs max_steps
    gradient_accumulation_steps
""".split()
RARE = """
    data_seed dataloader_drop_last train_sampling_strategy ignore_data_skip neftune_noise_alpha optim_target_modules
    full_determinism tf32 torch_compile use_liger_kernel metric_for_best_model pooler prompt
    gradient_cache_chunk_size backend train_dense lora_r lora_alpha lora_dropout lora_target_modules
""".split()  # recorded only if they differ from the default
DEFAULTS = {field.name: field.default for field in fields(InforMinTrainingArguments)}
DEFAULTS |= {
    "pooler": "cls",
    "prompt": "",
    "metric_for_best_model": "eval_spearman",
    "backend": "native",
}  # the resolved values


def describe_sentences(sentences: Dataset | IterableDataset) -> dict:
    """Return the entry `data` of the record; `sentences` has the column `text`."""
    number: dict[str, object] = {"sentences": None, "sha256": None}  # a stream is only read in training
    if not isinstance(sentences, IterableDataset):
        digest = hashlib.sha256()
        for batch in sentences.with_format("arrow").iter(10_000):
            for sentence in batch["text"].to_pylist():
                digest.update(sentence.encode().replace(b"\0", b"\xff") + b"\0")  # 0xff never occurs in UTF-8
        number = {"sentences": len(sentences), "sha256": digest.hexdigest()}
    return {"sources": ["sentences"], "hub_id": None, "description": None, **number}


def describe_inputs(
    args: InforMinTrainingArguments,
    model: Any,
    rows: object,
    sentences: Dataset | IterableDataset | None,
    guides: dict[str, CachedGuide],
) -> dict:
    """Return the entry `inputs` of the record: what affects the weights in addition to the options.

    Args:
        args: Arguments of the run.
        model: Model in training.
        rows: Tokenized rows.
        sentences: Column `text`; None if the trainer was given tokenized rows.
        guides: The guides, after `Term.prepare` of every term.
    """
    read = {name: model.config.informin.get(name) for name in ("pooling", "prompt", "training_prompt")}
    inputs = {name: value for name, value in read.items() if value}
    if isinstance(rows, IterableDataset):  # its order depends on the number of workers
        inputs |= {"streaming": True, "max_train_samples": args.max_train_samples}
        inputs |= {"dataloader_num_workers": args.dataloader_num_workers} | source_of(rows)
    elif sentences is None and isinstance(rows, Dataset | list):
        inputs["tokens"] = fingerprint_of_tokens(rows)
    if args.replay_weight:
        inputs["general sentences"] = [fingerprint(replay_path(args.replay_file))]
    if guides:
        inputs["embeddings of the guide"] = fingerprints(file for guide in guides.values() for file in guide.files)
    plugins = [args.deepspeed, args.fsdp_config]
    if configurations := [file for file in plugins if isinstance(file, str) and Path(file).is_file()]:
        inputs["configuration of DeepSpeed or FSDP"] = fingerprints(configurations)
    return {name: value for name, value in inputs.items() if value is not None}


def provenance(checkpoint: Checkpoint, data: DataArguments, card: CardArguments) -> dict:
    """Return the facts about a run that the trainer cannot derive.

    Returns:
        The names of the `data`, its `language`, the `license` with its name and link, and the `hub_id` of an encoder
        that is a local folder.
    """
    hub_id, sources = _data_names(data)
    return {
        "hub_id": card.base_model,
        "data": {"sources": sources, "hub_id": hub_id, "description": card.data_description},
        "language": card.language or ("en" if hub_id == HUB_DATA else None),
        "license": None,
        **({"license": card.license} if card.license else license_of(checkpoint, card.base_model)),
    }


def with_source_model(known: dict, model: Model, hub_id: str | None) -> dict:
    """Return the facts about a run with those of its source model: `base_model`, and the license if none is given.

    Args:
        known: See `provenance`.
        model: The model in training, before the first step. A model in memory has no source.
        hub_id: Hub id of a model in a local folder.
    """
    if model.checkpoint is None:
        return known
    known = known | {"base_model": model.record_entry(hub_id)}
    return known if "license" in known else known | license_of(model.checkpoint, known["base_model"]["hub_id"])


def _data_names(args: DataArguments) -> tuple[str | None, list[str]]:
    """Return the Hub id of the data set, None for files, and the names of its sources."""
    local = args.dataset_name and os.path.exists(args.dataset_name)  # load_dataset also accepts folders
    files = [args.dataset_name] if args.dataset_name and local else args.train_file
    if files:
        return None, [last_name(file) for file in files]
    own = [args.dataset_name, args.dataset_config, args.dataset_split]
    parts = own if args.dataset_name else [HUB_DATA, HUB_SENTENCES]
    return parts[0], ["/".join(part for part in parts if part)]


class RecordedTrainer(Protocol):
    """What `training_record` needs from a trainer; `known` has the entries that the trainer cannot derive."""

    args: InforMinTrainingArguments
    state: TrainerState
    trained: Model
    eval_dataset: Any
    known: dict
    throughput: Throughput
    is_in_train: bool


def training_record(trainer: RecordedTrainer) -> dict:
    """Return the record of the run so far."""
    args, state = trainer.args, trainer.state
    # Trainer loads the best checkpoint at the end of training; until then the weights are those of the last step.
    best = state.best_model_checkpoint  # also None if a run is resumed without that folder
    chosen = args.load_best_model_at_end and not trainer.is_in_train and best is not None
    return {
        "schema": SCHEMA,
        "informin": __version__,
        **{"base_model": None, "data": None, "language": None, "license": None, "earlier": []},
        "drift": None,  # until the end of a run
        **trainer.known,
        "objective": describe_objective(args),
        **trainer.trained.record_entries,
        **weights_settings(args, trainer.eval_dataset),
        "history": [_scores(entry) for entry in evaluations(state, defined=False)],
        "steps": state.global_step,
        "kept_step": state.best_global_step if chosen else state.global_step,
        "chosen": chosen,
        "sentences_per_second": trainer.throughput.sentences_per_second,
        "environment": environment(args.device),
    }


def describe_objective(args: InforMinTrainingArguments) -> dict:
    """Return the entry `objective` of the record, which the model card needs for an objective from outside, too."""
    objective = OBJECTIVES[args.objective]
    terms = [
        {"name": t.name, "title": t.title, "paper": t.paper, "own": t.weight is None or t.weight in objective.defaults}
        for t in args.terms
    ]
    return {"name": args.objective, "title": objective.title, "terms": terms}


def _scores(entry: dict) -> dict:
    values = {name: value if math.isfinite(value) else None for name, value in all_scores(entry).items()}
    return {"step": entry["step"]} | {name: value for name, value in values.items() if name != "step"}


def weights_settings(args: InforMinTrainingArguments, development: Development | None) -> dict:
    """Return the options, the seed and the evaluation data: what affects the weights and the choice of a checkpoint."""
    return {
        "seed": args.seed,
        "options": _options(args),
        "development": development.name if development else None,
        "development_sha256": development.sha256 if development else None,
        "development_sets": [{"kind": one.kind, "name": one.name} for one in development.sets] if development else [],
    }


def _options(args: InforMinTrainingArguments) -> dict:
    """Return the options that affect the weights."""
    options = args.objective_options | {"sentences_per_step": args.per_device_train_batch_size * args.world_size}
    options |= {name: getattr(getattr(args, name), "value", getattr(args, name)) for name in SHAPING}
    given = {name: getattr(args, name) for name in ("guide_model", "replay_file")}
    options |= {name: last_name(value) for name, value in given.items() if value}
    del options["max_steps" if args.max_steps < 0 else "num_train_epochs"]
    rare = {name: getattr(args, name) for name in RARE}
    if args.eval_strategy != "no":
        rare["load_best_model_at_end"] = args.load_best_model_at_end
    options |= {name: value for name, value in rare.items() if value != DEFAULTS[name]}
    usual = AcceleratorConfig(dispatch_batches=False)
    names = ("use_seedable_sampler", "split_batches", "dispatch_batches")
    loader = {name: getattr(args.accelerator_config, name) for name in names}
    options |= {name: value for name, value in loader.items() if value != getattr(usual, name)}
    options = {name: value for name, value in options.items() if value not in (None, {})}
    packed: dict[str, object] = {"padding_free": True} if args.padding_free else {}  # both change the dropout masks
    if (parts := parts_in_training(args)) > 1:
        packed["cpu_parts"] = parts
    return options | packed | {"precision": precision(args), "processes": args.world_size}
