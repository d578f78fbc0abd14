"""What a run prints at its start and at its end, and the measurement of drift."""

import logging
import resource
import sys
from functools import partial
from typing import Any

import torch
from datasets import IterableDataset

from informin.errors import InforMinError, capitalized, counted, error_line
from informin.evaluation.drift import (
    FEWEST,
    MEASURES,
    distinct,
    measure_drift,
    neighbor_examples,
    rows_to_read,
    stsb_dev,
)
from informin.evaluation.encode import embed_once
from informin.models.embedding import encode_in_shares
from informin.training.log_entries import evaluations, logged_scores, logged_terms, loss_text
from informin.training.record import options_of, precision

logger = logging.getLogger(__name__)


def headline(trainer: Any) -> str:
    """Return a line that describes the run."""
    args = trainer.args
    data = trainer.train_dataset
    step = trainer.state.global_step
    preset = trainer.objective.preset
    of = counted(len(data), "sentence") if hasattr(data, "__len__") else "a stream of sentences"
    processes = f"{args.world_size} x " if args.world_size > 1 else ""
    parts = [
        f"{capitalized(preset.title)} on {trainer.trained.name}: {of}",
        f"batch size {processes}{args.per_device_train_batch_size}",
        f"max length {trainer.max_seq_length}",
        f"learning rate {options_of(trainer).get('learning_rate', 'of the optimizer')}",
        f"{precision(args)} on {args.device}",
        f"output in {args.output_dir}",
    ]
    parts += ["without evaluation"] if args.eval_strategy == "no" else []
    parts += [f"resuming from step {step}"] if step else []
    return ", ".join(parts) + ("; other options as in the paper" if preset.papers else "")


def summary(trainer: Any, folder: str) -> str:
    """Return a short table of what a run did, for its exported folder, and the lines that load the model."""
    args = trainer.args
    state = trainer.state
    rows = _score_rows(trainer) + _drift_rows(trainer.facts.get("drift"))
    logged = [entry for entry in state.log_history if "loss" in entry]
    if logged:
        terms = [f"{name} {loss_text(value)}" for name, value in logged_terms(logged[-1]).items()]
        rows.append(("last terms, unweighted", f"{', '.join(terms)}; loss {loss_text(logged[-1]['loss'])}"))
    rate = trainer.throughput.sentences_per_second
    if rate:
        processes = "1 process" if args.world_size == 1 else f"{args.world_size} processes"
        rows.append(("training speed", f"{rate:.1f} sentences/s ({processes}, {precision(args)})"))
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
    drift = trainer.facts.get("drift") or {"warnings": []}
    lines += [f"\nNote: training {warning}" for warning in drift["warnings"]]
    lines += ["\nLoad the model:", "    from sentence_transformers import SentenceTransformer"]
    lines += [f'    model = SentenceTransformer("{folder}")']
    return "\n".join(lines)


def _score_rows(trainer: Any) -> list[tuple[str, str]]:
    """Return each score before the first step, if it was evaluated, and at the step whose weights were kept."""
    development = trainer.eval_dataset
    state = trainer.state
    scored = evaluations(state.log_history)
    if not scored or development is None:
        return []
    kept_step = state.best_global_step if state.best_model_checkpoint else None
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
    rows = []
    if drift is None:
        return []
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


def drift_of_run(trainer: Any, senteval_dir: str | None) -> tuple[dict[str, Any], list[dict]] | None:
    """Measure how much training changed the embeddings. Call it in every process.

    Both encoders compute in the precision of training. The sample of sentences does not depend on the run's seed, so
    that runs can be compared.

    Args:
        trainer: Trainer after training.
        senteval_dir: Folder with STS-B dev; see `stsb_dev`.

    Returns:
        In the first process the entry `drift` of the record, and examples for the report; None in the others, and if it
        was not measured.
    """
    sentences = trainer.sentences
    if sentences is None or isinstance(sentences, IterableDataset):
        logger.info("Drift was not measured: it requires sentences that are not a stream.")
        return None
    texts = distinct(sentences["text"][rows_to_read(len(sentences))])  # together: alone, a row takes 0.2 milliseconds
    if len(texts) < FEWEST:
        logger.info(f"Drift was not measured: it requires {FEWEST} distinct sentences, and there are {len(texts)}.")
        return None
    try:
        pairs = stsb_dev(senteval_dir)
        wanted = texts + (pairs.texts() if pairs else [])
        new = embed_once(trainer.encode, wanted)
        how = {"prompt": trainer.trained.prompt, "batch_size": trainer.args.per_device_eval_batch_size, "title": None}
        with trainer.trained.original(trainer.args) as before, trainer.accelerator.autocast():
            old = embed_once(partial(encode_in_shares, before, **how), wanted)
        if not trainer.is_world_process_zero():
            return None
        return measure_drift(old, new, texts, pairs).record(), neighbor_examples(texts, old, new)
    except (InforMinError, OSError, torch.OutOfMemoryError) as error:  # must not make a finished run fail
        logger.warning(f"Drift could not be measured: {error_line(error)}")
        return None
