"""The lines printed at the start and at the end of a run."""

import logging
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch
from transformers import TrainerState

from informin.errors import counted, error_line
from informin.evaluation.development import Development
from informin.evaluation.drift import MEASURES, NOT_SCORED
from informin.evaluation.measures import ALL
from informin.files import read_json
from informin.models.embedding_config import EmbeddingConfig
from informin.objectives import OBJECTIVES
from informin.publishing.record import load_record
from informin.publishing.report_record import REPORT, logged, save_report
from informin.training.history import all_scores, logged_scores, logged_terms, loss_text, own_scores
from informin.training.options import InforMinTrainingArguments

if TYPE_CHECKING:  # it imports this module
    from informin.training.reporting import ReportingTrainer

logger = logging.getLogger(__name__)


def evaluations(state: TrainerState, defined: bool = True) -> list[dict]:
    """Return the log entries of a run's evaluations in order; with `defined`, only those with a defined score."""
    scored = [entry for entry in state.log_history if all_scores(entry) and "aside" not in entry]
    return [entry for entry in scored if any(map(math.isfinite, all_scores(entry).values())) or not defined]


def peak_memory(device: torch.device) -> str:
    """Return the peak memory of this process as text: GPU memory if it trained on a GPU, else main memory."""
    if device.type == "cuda":
        return f"{torch.cuda.max_memory_allocated(device) / 2**30:.2f} GiB of GPU memory"
    if sys.platform == "win32":
        peak = psutil.Process().memory_info().peak_wset
    else:
        import resource  # does not exist on Windows

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return f"{peak / 2**30:.2f} GiB"


def headline(trainer: "ReportingTrainer") -> str:
    """Return a line that describes the run, and one on its reconstruction if that needs attention."""
    args, known, data = trainer.args, trainer.known, trainer.train_dataset
    name = (known.get("base_model") or {}).get("name") or trainer.model.config.model_type
    of = counted(len(data), "sentence") if hasattr(data, "__len__") else "a stream of sentences"
    processes = f"{args.world_size} x " if args.world_size > 1 else ""
    step = trainer.state.global_step
    parts = [
        f"{OBJECTIVES[args.objective].title} on {name}: {of}",
        f"batch size {processes}{args.per_device_train_batch_size}",
        f"max length {args.max_seq_length}",
        f"learning rate {args.learning_rate:g}",
        f"{precision(args)} on {args.device}",
        f"output in {args.output_dir}",
    ]
    parts += [f"resuming from step {step}"] if step else []
    line = ", ".join(parts) + ("; other options as in the paper (verbose lists them)" if args.paper_row else "")
    return line + reconstruction_note(args.objective_options, trainer.state.max_steps)


def reconstruction_note(options: Mapping[str, Any], steps: int) -> str:
    """Return a line on reconstruction in long runs, after a line break, or an empty text.

    With three encoders, a weight of 0.4 in 200 steps ended below SimCSE: docs/results.md, three encoders, two lengths.
    """
    weight, form = options.get("reconstruction_weight", 0), options.get("reconstruction_form")
    if form != "squared_l2" or weight * steps < 0.4 * 200:
        return ""
    return (
        f"\n`reconstruction_weight` {weight:g} over {counted(steps, 'step')}: in our tests, 0.4 over 200 steps ended 3 "
        "to 4 points below SimCSE on STS-B dev, and the effect accumulates. Compare with the objective simcse, or with "
        "`reconstruction_form` reference, the weaker form of the authors' code."
    )


def summary(
    state: TrainerState,
    args: InforMinTrainingArguments,
    development: Development | None,
    rate: float | None,
    folder: str,
    drift: dict | None = None,
    embedding: EmbeddingConfig | None = None,
) -> str:
    """Return a short table of what a run did.

    Args:
        state: State of the trainer.
        args: Arguments of the run.
        development: Evaluation data; None without evaluation.
        rate: Training speed in sentences per second over all processes; None if no step was taken.
        folder: Folder of the exported model.
        drift: Entry `drift` of the record; None if it was not measured.
        embedding: How the model computes embeddings, for the line about its prompt; None omits the line.
    """
    scored = evaluations(state)
    chosen = args.load_best_model_at_end and state.best_model_checkpoint
    rows = _score_rows(scored, state.best_global_step if chosen else None, development)
    logged = [entry for entry in state.log_history if "loss" in entry]
    rows += drift_lines(drift) if drift else []
    if logged:
        terms = ", ".join(f"{name} {loss_text(value)}" for name, value in logged_terms(logged[-1]).items())
        rows.append(("last terms, unweighted", f"{terms}; loss {loss_text(logged[-1]['loss'])}"))
    if rate:
        processes = "1 process" if args.world_size == 1 else f"{args.world_size} processes"
        rows.append(("training speed", f"{rate:.1f} sentences/s ({processes}, {precision(args)})"))
    rows.append(("peak memory", peak_memory(args.device)))
    if embedding and (prompt := prompt_line(embedding, args.export_prompt)):
        rows.append(("prompt", prompt))
    rows.append(("model", folder))
    rows.append(("losses and scores", f"{Path(folder, REPORT)}, by step (`informin report {folder}` draws them)"))
    logs = os.getenv("TENSORBOARD_LOGGING_DIR") or args.output_dir
    rows += [("", f"tensorboard, in {logs}" if name == "tensorboard" else name) for name in args.report_to or ()]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    if development and scored and _best(scored, args)["step"] == 0 and len(scored) > 1:
        lines.append(
            f"\nNote: the best score on {development.name} is the one before the first step. Training made this "
            "encoder worse, and the saved model is the best checkpoint after the start. Try a stronger encoder or a "
            "lower learning_rate."
        )
    lines += [f"\nNote: training {warning}" for warning in (drift["warnings"] if drift else [])]
    return "\n".join(lines)


def save_training_report(folder: str, log_history: Sequence[Mapping], changes: Mapping | None) -> None:
    """Write report.json of a run. A problem is only logged, because the run is finished.

    Args:
        log_history: Log of the trainer.
        changes: What `report_drift` returned.
    """
    measured = changes or {"general": None, "snapshot": None, "scores": []}
    values = {name: measured[name] for name in ("general", "snapshot", "scores")}
    try:
        save_report(folder, "train", {"log": logged(log_history), **values})
    except OSError as error:
        logger.warning(f"{REPORT} could not be written: {error_line(error)}")


def load_lines(folder: str) -> str:
    """Return the lines that load an exported folder.

    AutoModel gives the embedding only if it is the [CLS] vector of the sentence alone. For other pooling, prompts and
    normalization, sentence-transformers applies what the folder specifies.
    """
    has_class, embedding = Path(folder, "modeling_informin.py").is_file(), None
    if has_class:
        embedding = EmbeddingConfig.from_settings(read_json(Path(folder, "config.json")).get("informin"))
    if embedding and embedding.pooling == "cls" and not embedding.normalize and not embedding.prompt:
        library, line = (
            "transformers import AutoModel",
            f'AutoModel.from_pretrained("{folder}", trust_remote_code=True)',
        )
    else:
        trust = ", trust_remote_code=True" if (load_record(folder) or {}).get("remote_code") else ""
        library, line = "sentence_transformers import SentenceTransformer", f'SentenceTransformer("{folder}"{trust})'
    return f"\nLoad the model:\n    from {library}\n    model = {line}"


def prompt_line(embedding: EmbeddingConfig, exported: bool) -> str | None:
    """Return how to use the training prompt with the exported model; None without any prompt."""
    trained = embedding.in_training.prompt
    if embedding.training_prompt is None:
        default = "the default prompt of the folder" if exported else "the encoder's own default prompt"
        return f"{trained!r}, {default}; sentence-transformers adds it automatically" if trained else None
    kept = (
        f"the folder keeps its default prompt {embedding.prompt!r}"
        if embedding.prompt
        else "the folder does not add it"
    )
    used = f"{trained!r} in training only" if trained else "none in training"
    advice = "prepend it yourself, or train with `export_prompt`" if trained else "`export_prompt` removes it"
    return f"{used}; {kept} ({advice})"


def drift_lines(drift: dict) -> list[tuple[str, str]]:
    """Return the main lines about drift; training.json and the model card have all of them."""
    rows = []
    for name in ("neighbors_kept", "neighbor_distance", "hubness", "stsb_dev"):
        measure, values = MEASURES[name], [drift[encoder][name] for encoder in ("old", "new")]
        before, after = (NOT_SCORED if value is None else measure.shown(value) for value in values)
        one = name == "neighbors_kept" or before == after == NOT_SCORED
        rows.append((f"drift, {measure.title}", after if one else f"{before} before, {after} after"))
    return rows


def _best(scored: list[dict], args: InforMinTrainingArguments) -> dict:
    """Return the evaluation with the best score, the last of several equal ones."""
    metric = (args.metric_for_best_model or "eval_spearman").removeprefix("eval_")
    sign = 1 if args.greater_is_better or (metric in ALL and not ALL[metric].lower_is_better) else -1
    values = [(sign * entry.get(f"eval_{metric}", math.nan), entry) for entry in reversed(scored)]
    return max(values, key=lambda pair: pair[0] if math.isfinite(pair[0]) else -math.inf)[1]


def _score_rows(scored: list[dict], kept_step: int | None, development: Development | None) -> list[tuple[str, str]]:
    """Return each score before the first step, if it was evaluated, and at the step whose weights were kept."""
    if not scored or development is None:
        return []
    kept = next((entry for entry in scored if entry["step"] == kept_step), scored[-1])
    rows = []
    first, last = logged_scores(scored[0]), logged_scores(kept)
    for one in development.sets:
        for name, measure in one.measures.items():
            before = f"{measure.shown(first[name])} before, " if scored[0]["step"] == 0 else ""
            after = f"{measure.shown(last[name])} after (step {kept['step']})"
            rows.append((f"{one.name}, {measure.title}", before + after))
    first, last = own_scores(scored[0]), own_scores(kept)
    for name, value in last.items():
        before = f"{first[name]:.4g} before, " if scored[0]["step"] == 0 and name in first else ""
        rows.append((name, f"{before}{value:.4g} after (step {kept['step']})"))
    return rows


def precision(args: InforMinTrainingArguments) -> str:
    """Return the precision of the run: fp32, bf16 or fp16. The launcher can set it, too."""
    return args.mixed_precision if args.mixed_precision != "no" else "fp32"
