"""What a run writes down: the facts and options in training.json, its first line, the drift and the final table."""

import hashlib
import logging
import math
import os
import resource
import sys
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from typing import Any

import torch
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from datasets import IterableDataset
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import TrainerState

from informin.distributed import rank
from informin.errors import InforMinError, capitalized, counted, error_line
from informin.evaluation.development import Development
from informin.evaluation.drift import (
    FEWEST,
    MEASURES,
    distinct,
    measure_drift,
    neighbor_examples,
    rows_to_read,
    stsb_dev,
)
from informin.evaluation.encode import Encode, embed_once
from informin.evaluation.results import environment
from informin.files import last_name
from informin.hub import HUB_DATA, HUB_SENTENCES
from informin.model.open import has_own_code
from informin.model.records import RunRecord
from informin.objectives.presets import Preset
from informin.training.arguments import BY_METRIC, CardArguments, InforMinTrainingArguments
from informin.training.callbacks import evaluations, logged_scores, logged_terms, loss_text
from informin.training.data import Sentences
from informin.training.inputs import DataArguments
from informin.training.model import TrainedModel
from informin.training.objective import ActiveObjective, recorded_value

logger = logging.getLogger(__name__)


# Options of every objective that affect the weights.
SHAPING = """
    learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps weight_decay
    max_grad_norm optim optim_args adam_beta1 adam_beta2 adam_epsilon num_train_epochs max_steps
    gradient_accumulation_steps
""".split()
# Those of them that a given optimizer replaces, and those that a given scheduler replaces.
OF_OPTIMIZER = "learning_rate optim_args adam_beta1 adam_beta2 adam_epsilon".split()
OF_SCHEDULER = "lr_scheduler_kwargs warmup_steps".split()
RARE_OPTIONS = """
    data_seed dataloader_drop_last train_sampling_strategy ignore_data_skip neftune_noise_alpha optim_target_modules
    full_determinism tf32 torch_compile metric_for_best_model pooler prompt fast gradient_cache_chunk_size
    lora_r lora_dropout max_train_samples
""".split()  # recorded only if they differ from the default
DEFAULTS = {field.name: field.default for field in fields(InforMinTrainingArguments)}
# The resolved values.
DEFAULTS |= {"pooler": "cls", "prompt": "", "metric_for_best_model": "eval_spearman", "greater_is_better": True}
LOADER = {"use_seedable_sampler": True, "split_batches": False, "dispatch_batches": False}  # of `accelerator_config`
DEFAULTS |= LOADER
CHOOSING = ("load_best_model_at_end", "greater_is_better")  # of a run with evaluation
EVALUATION = ("eval_strategy", "eval_steps", "eval_delay")  # recorded if the scheduler follows the scores
ONLY_IF_CHANGED = {*RARE_OPTIONS, *LOADER, *CHOOSING}


def describe_sentences(sentences: Sentences) -> dict[str, Any]:
    """Return the entry `data` of the record; `sentences` has columns of texts."""
    number: dict[str, Any] = {"sentences": None, "sha256": None}  # a stream is only read in training
    if not isinstance(sentences, IterableDataset):
        digest = hashlib.sha256()
        for batch in sentences.with_format("arrow").iter(10_000):
            for texts in zip(*(batch[name].to_pylist() for name in sentences.column_names)):
                for text in texts:
                    digest.update(text.encode().replace(b"\0", b"\xff") + b"\0")  # 0xff never occurs in UTF-8
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


def run_facts(
    args: InforMinTrainingArguments,
    objective: ActiveObjective,
    model: TrainedModel,
    sentences: Sentences | None,
    provenance: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the entries of the record that are known before the first step.

    Args:
        args: Training arguments.
        objective: The objective of the run.
        model: The model in training.
        sentences: The training sentences; None for tokenized rows.
        provenance: See `provenance`.
    """
    facts = dict(provenance)
    hub_id = facts.pop("hub_id", None)
    base_model = model.record_entry()
    facts["base_model"] = base_model | {"hub_id": hub_id or base_model["hub_id"]}
    if sentences is not None:
        facts["data"] = describe_sentences(sentences) | (facts.get("data") or {})
    facts |= {"seed": args.seed, "objective": objective.describe(), "environment": environment(args.device)}
    if model.is_native:
        return facts
    return facts | {"dimensions": model.config.hidden_size, "remote_code": has_own_code(model.finished)}


def development_facts(development: Development | None) -> dict[str, Any]:
    """Return the entries of the record about the evaluation data."""
    if development is None:
        return {}
    sets = [{"kind": one.kind, "name": one.name} for one in development.sets]
    return {
        "development": development.name,
        "development_sha256": development.sha256,
        "development_sets": sets,
    }


def scores_of(log_history: list[dict]) -> list[dict[str, Any]]:
    """Return the entry `history` of the record: the scores of each evaluation with its step, None if undefined."""
    return [
        {name: value if math.isfinite(value) else None for name, value in logged_scores(entry).items()}
        | {"step": entry["step"]}
        for entry in evaluations(log_history)
    ]


def options_of(
    args: InforMinTrainingArguments,
    objective: ActiveObjective,
    model: TrainedModel,
    given: dict[str, Any],
    is_stream: bool,
) -> dict[str, Any]:
    """Return the options that affect the weights.

    Args:
        args: Training arguments.
        objective: The objective of the run.
        model: The model in training.
        given: See `of_given_optimizer` and `of_given_scheduler`.
        is_stream: Whether the training data is a stream.
    """
    options = dict(objective.options)
    options["sentences_per_step"] = args.per_device_train_batch_size * args.world_size
    options |= {name: recorded_value(getattr(args, name), name) for name in SHAPING}
    options |= given
    settings = model.model.config.informin
    options |= {name: settings[name] for name in ("projection_head", "max_seq_length")}
    files = {name: getattr(args, name) for name in ("guide_model", "replay_file")}
    options |= {name: last_name(value) for name, value in files.items() if value}
    del options["max_steps" if args.max_steps < 0 else "num_train_epochs"]
    rare = {name: getattr(args, name) for name in RARE_OPTIONS}
    rare |= {"pooler": settings["pooling"], "prompt": model.prompt}
    if args.eval_strategy != "no":
        rare |= {name: getattr(args, name) for name in CHOOSING}
    options |= {name: value for name, value in rare.items() if value != DEFAULTS[name]}
    loader = {name: getattr(args.accelerator_config, name) for name in LOADER}
    options |= {name: value for name, value in loader.items() if value != DEFAULTS[name]}
    if args.lr_scheduler_type in BY_METRIC:
        options |= {name: recorded_value(getattr(args, name), name) for name in EVALUATION}
    if is_stream:  # its order depends on the number of workers
        options |= {"streaming": True, "dataloader_num_workers": args.dataloader_num_workers}
    options = {name: value for name, value in options.items() if value not in (None, {})}
    precision = args.mixed_precision if args.mixed_precision != "no" else "fp32"  # the launcher can set it, too
    return options | {"precision": precision, "processes": args.world_size} | model.packing


def of_given_optimizer(
    optimizer: Optimizer | None, cls_and_kwargs: tuple[type[Optimizer], dict[str, Any]] | None
) -> dict[str, Any]:
    """Return the options that a given optimizer, or its class, replaces; None for those without effect."""
    if cls_and_kwargs:
        kind, values = cls_and_kwargs
        others = {name: recorded_value(value, "optim_args") for name, value in values.items() if name != "lr"}
        own = {"optim": kind.__name__, "learning_rate": recorded_value(values.get("lr"), "learning_rate")}
        return dict.fromkeys(OF_OPTIMIZER) | own | {"optim_args": others}
    if optimizer is None:
        return {}
    optimizer = optimizer.optimizer if isinstance(optimizer, AcceleratedOptimizer) else optimizer
    own = {"optim": type(optimizer).__name__, "weight_decay": optimizer.defaults.get("weight_decay")}
    own["learning_rate"] = recorded_value(optimizer.defaults.get("lr"), "learning_rate")
    return dict.fromkeys(OF_OPTIMIZER) | own


def of_given_scheduler(scheduler: LRScheduler | AcceleratedScheduler | None) -> dict[str, Any]:
    """Return the options that a given scheduler replaces; None for those without effect."""
    if scheduler is None:
        return {}
    scheduler = scheduler.scheduler if isinstance(scheduler, AcceleratedScheduler) else scheduler
    # A checkpoint has the values of a scheduler, but not those of its functions, such as the length of a linear one.
    functions = [one for one in getattr(scheduler, "lr_lambdas", []) if isinstance(one, partial)]
    own = {"lr_scheduler_kwargs": recorded_value([one.keywords for one in functions], "optimizers") or None}
    return {**dict.fromkeys(OF_SCHEDULER), "lr_scheduler_type": type(scheduler).__name__} | own


def headline(
    args: InforMinTrainingArguments,
    preset: Preset,
    model_name: str,
    options: dict[str, Any],
    sentences: int | None,
    step: int,
) -> str:
    """Return a line that describes a run.

    Args:
        args: Training arguments.
        preset: The objective.
        model_name: Name or folder of the encoder.
        options: See `options_of`.
        sentences: Number of sentences; None for a stream.
        step: The step from which the run continues; 0 for a new one.
    """
    of = "a stream of sentences" if sentences is None else counted(sentences, "sentence")
    processes = f"{args.world_size} x " if args.world_size > 1 else ""
    parts = [
        f"{capitalized(preset.title)} on {model_name}: {of}",
        f"batch size {processes}{args.per_device_train_batch_size}",
        f"max length {options['max_seq_length']}",
        f"learning rate {options.get('learning_rate', 'of the optimizer')}",
        f"{options['precision']} on {args.device}",
        f"output in {args.output_dir}",
    ]
    parts += ["without evaluation"] if args.eval_strategy == "no" else []
    parts += [f"resuming from step {step}"] if step else []
    return ", ".join(parts)


def drift_of_run(
    sentences: Sentences | None, encode: Encode, encode_before: Encode, senteval_dir: str | None
) -> tuple[dict[str, Any], list[dict]] | None:
    """Measure how much training changed the embeddings. Call it in every process.

    The sample of sentences does not depend on the run's seed, so that runs can be compared.

    Args:
        sentences: The training sentences; None for tokenized rows.
        encode: Encodes with the model after training.
        encode_before: Encodes with the model before training, in the same precision.
        senteval_dir: Folder with STS-B dev; see `stsb_dev`.

    Returns:
        In the first process the entry `drift` of the record, and examples for the report; None in the others, and if it
        was not measured.
    """
    if sentences is None or isinstance(sentences, IterableDataset):
        logger.info("Drift was not measured: it requires sentences that are not a stream.")
        return None
    sample = sentences[rows_to_read(len(sentences))]  # together: alone, a row takes 0.2 milliseconds
    texts = distinct([text for name in sentences.column_names for text in sample[name]])
    if len(texts) < FEWEST:
        logger.info(f"Drift was not measured: it requires {FEWEST} distinct sentences, and there are {len(texts)}.")
        return None
    try:
        pairs = stsb_dev(senteval_dir)
        wanted = texts + (pairs.texts() if pairs else [])
        new = embed_once(encode, wanted)
        old = embed_once(encode_before, wanted)
        if rank() > 0:
            return None
        return measure_drift(old, new, texts, pairs).record(), neighbor_examples(texts, old, new)
    except (InforMinError, OSError, torch.OutOfMemoryError) as error:  # must not make a finished run fail
        logger.warning(f"Drift could not be measured: {error_line(error)}")
        return None


def summary(
    folder: str,
    args: InforMinTrainingArguments,
    state: TrainerState,
    record: RunRecord,
    development: Development | None,
) -> str:
    """Return a short table of what a run did, for its exported folder, and the lines that load the model."""
    rows = _score_rows(state, record.kept_step, development) + _drift_rows(record.drift)
    logged = [entry for entry in state.log_history if "loss" in entry]
    if logged:
        terms = [f"{name} {loss_text(value)}" for name, value in logged_terms(logged[-1]).items()]
        rows.append(("last terms, unweighted", f"{', '.join(terms)}; loss {loss_text(logged[-1]['loss'])}"))
    rate = record.sentences_per_second
    if rate:
        processes = "1 process" if args.world_size == 1 else f"{args.world_size} processes"
        rows.append(("training speed", f"{rate:.1f} sentences/s ({processes}, {record.options['precision']})"))
    rows += [("peak memory", peak_memory(args.device)), ("model", folder)]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    scored = evaluations(state.log_history)
    first = scored[0].get(str(args.metric_for_best_model)) if scored and scored[0]["step"] == 0 else None
    sign = 1 if args.greater_is_better else -1
    if first is not None and state.best_metric is not None and sign * first > sign * state.best_metric:
        lines.append(
            "\nNote: the best score is the one before the first step. Training made this encoder worse, and the saved "
            "model is the best checkpoint after the start. Try a stronger encoder or a lower learning_rate."
        )
    lines += [f"\nNote: training {warning}" for warning in (record.drift or {}).get("warnings", [])]
    lines += ["\nLoad the model:", "    from sentence_transformers import SentenceTransformer"]
    lines += [f'    model = SentenceTransformer("{folder}")']
    return "\n".join(lines)


def _score_rows(state: TrainerState, kept_step: int, development: Development | None) -> list[tuple[str, str]]:
    """Return each score before the first step, if it was evaluated, and at the step whose weights were kept."""
    scored = evaluations(state.log_history)
    if not scored or development is None:
        return []
    kept = next((entry for entry in scored if entry["step"] == kept_step), scored[-1])
    first = logged_scores(scored[0]) if scored[0]["step"] == 0 else {}
    names = {key: one.name for one in development.sets + development.own for key in one.measures}
    rows = []
    for name, value in logged_scores(kept).items():
        measure = development.measures.get(name)
        shown = measure.shown if measure else "{:.4g}".format
        title = f"{names[name]}, {measure.title}" if measure else name
        before = f"{shown(first[name])} before, " if name in first else ""
        rows.append((title, f"{before}{shown(value)} after (step {kept['step']})"))
    return rows


def _drift_rows(drift: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Return the main lines about drift; training.json and the model card have all of them."""
    if drift is None:
        return []
    rows = []
    for name in ("neighbors_kept", "neighbor_distance", "hubness", "stsb_dev"):
        measure = MEASURES[name]
        before = drift["old"][name]
        after = drift["new"][name]
        if after is not None:
            old = "" if name == "neighbors_kept" or before is None else f"{measure.shown(before)} before, "
            rows.append((f"drift, {measure.title}", f"{old}{measure.shown(after)}{' after' if old else ''}"))
    return rows


def peak_memory(device: torch.device) -> str:
    """Return the peak memory of this process as text: GPU memory if it trained on a GPU, else main memory."""
    if device.type == "cuda":
        return f"{torch.cuda.max_memory_allocated(device) / 2**30:.2f} GiB of GPU memory"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return f"{peak / 2**30:.2f} GiB"
