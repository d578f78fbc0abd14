"""The lines at the start and at the end of a run."""

import math
import sys
from pathlib import Path

import psutil
import torch
from transformers import Trainer, TrainerState

from informin.encoders.usage import Usage, usage_of_settings
from informin.errors import counted
from informin.evaluation.development import Development
from informin.evaluation.drift import MEASURES, NOT_SCORED
from informin.evaluation.measures import ALL
from informin.files import read_json
from informin.objectives import OBJECTIVES
from informin.training.history import logged_scores, logged_terms
from informin.training.options import InforMinTrainingArguments


def evaluations(state: TrainerState, defined: bool = True) -> list[dict]:
    """The evaluations of a run, in order, `defined` alone where they gave a score; the first is of before training."""
    scored = [entry for entry in state.log_history if logged_scores(entry) and "aside" not in entry]
    return [entry for entry in scored if any(map(math.isfinite, logged_scores(entry).values())) or not defined]


def peak_memory(device: torch.device) -> str:
    """The most memory this process has held: on the GPU that it trained on, else of the machine."""
    if device.type == "cuda":
        return f"{torch.cuda.max_memory_allocated(device) / 2**30:.2f} GiB of GPU memory"
    if sys.platform == "win32":
        peak = psutil.Process().memory_info().peak_wset
    else:
        import resource  # not on Windows

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return f"{peak / 2**30:.2f} GiB"


def headline(trainer: Trainer) -> str:
    """One line for what runs."""
    args, known, data = trainer.args, trainer.known, trainer.train_dataset
    name = (known.get("base_model") or {}).get("name") or trainer.model.config.model_type
    of = counted(len(data), "sentence") if hasattr(data, "__len__") else "a stream of sentences"
    processes = f"{args.world_size} x " if args.world_size > 1 else ""
    step = trainer.state.global_step
    return (
        f"{OBJECTIVES[args.objective].title} on {name}: {of}, {processes}{args.per_device_train_batch_size} a step, "
        f"{args.max_seq_length} tokens at most, "
        f"learning rate {args.learning_rate:g}, {precision(args)} on {args.device}, to {args.output_dir}"
        f"{f', going on from step {step}' if step else ''}"
        f"{'; what was not given is as in the paper (verbose lists it)' if args.paper_row else ''}"
    )


def summary(
    state: TrainerState,
    args: InforMinTrainingArguments,
    development: Development | None,
    rate: float | None,
    folder: str,
    drift: dict | None = None,
    usage: Usage | None = None,
) -> str:
    """What a run did, as a short table.

    Args:
        development: what the run was scored on; None where it was not.
        rate: sentences a second of training, over all processes; None where no step was left.
        drift: of the record; None where it was not measured.
        usage: how the model is used, for the line about its prompt; None for no such line.
    """
    scored = evaluations(state)
    chosen = args.load_best_model_at_end and state.best_model_checkpoint  # none where a run is resumed without it
    rows = _score_rows(scored, state.best_global_step if chosen else None, development)
    logged = [entry for entry in state.log_history if "loss" in entry]
    rows += drift_lines(drift) if drift else []
    if logged:
        terms = ", ".join(f"{name} {value:.4f}" for name, value in logged_terms(logged[-1]).items())
        rows.append(("terms at the end, unweighted", f"{terms}; loss {logged[-1]['loss']:.4f}"))
    if rate:  # none where a finished run was resumed
        rows.append(("training speed", f"{rate:.1f} sentences/s ({args.world_size} process(es), {precision(args)})"))
    rows.append(("peak memory", peak_memory(args.device)))
    if usage and (prompt := prompt_line(usage, args.export_prompt)):
        rows.append(("prompt", prompt))
    rows.append(("model", folder))
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    if scored and _best(scored, args)["step"] == 0 and len(scored) > 1:
        lines.append(
            f"\nNote: the best score on {development.name} is the one before the first step. Training made this "
            "encoder worse; the model saved is the best of the checkpoints after training began. Weak encoders do "
            "this: start from a stronger one, or lower learning_rate."
        )
    lines += [f"\nNote: training {warning}" for warning in (drift["warnings"] if drift else [])]
    return "\n".join(lines)


def load_lines(folder: str) -> str:
    """How an exported folder is loaded: by transformers where it is [CLS] alone, else by sentence-transformers."""
    usage = usage_of_settings(read_json(Path(folder, "config.json"))["informin"])
    plain = usage.pooling == "cls" and not usage.normalize and not usage.prompt
    model = f'AutoModel.from_pretrained("{folder}", trust_remote_code=True)'
    if plain and Path(folder, "modeling_informin.py").is_file():
        library, line = "transformers import AutoModel", model
    else:
        library, line = "sentence_transformers import SentenceTransformer", f'SentenceTransformer("{folder}")'
    return f"\nLoad it:\n    from {library}\n    model = {line}"


def prompt_line(usage: Usage, exported: bool) -> str | None:
    """Where the training prompt is used from now on; None where there was none, and is none."""
    trained = usage.in_training.prompt
    if usage.training_prompt is None:
        default = "the default prompt of the folder" if exported else "the encoder's own default prompt"
        return f"{trained!r}, {default}: sentence-transformers adds it, do not write it yourself" if trained else None
    kept = f"the folder keeps its own default prompt {usage.prompt!r}" if usage.prompt else "the folder does not add it"
    used = f"{trained!r} in training only" if trained else "none in training"
    advice = (
        "write it before your sentences, or train with `export_prompt`" if trained else "`export_prompt` removes it"
    )
    return f"{used}; {kept}: {advice}"


def drift_lines(drift: dict) -> list[tuple[str, str]]:
    """What a record's `drift` says in short; training.json and the card have all of it."""
    rows = []
    for name in ("neighbors_kept", "neighbor_distance", "hubness", "stsb_dev"):
        measure, values = MEASURES[name], [drift[encoder][name] for encoder in ("old", "new")]
        before, after = (NOT_SCORED if value is None else measure.shown(value) for value in values)
        one = name == "neighbors_kept" or before == after == NOT_SCORED
        rows.append((f"drift, {measure.title}", after if one else f"{before} before, {after} after"))
    return rows


def _best(scored: list[dict], args: InforMinTrainingArguments) -> dict:
    """The evaluation that checkpoints are chosen by, the last of equals."""
    metric = args.metric_for_best_model.removeprefix("eval_")
    sign = -1 if ALL[metric].lower_is_better else 1
    values = [(sign * logged_scores(entry)[metric], entry) for entry in reversed(scored)]
    return max(values, key=lambda pair: pair[0] if math.isfinite(pair[0]) else -math.inf)[1]


def _score_rows(scored: list[dict], kept_step: int | None, development: Development | None) -> list[tuple[str, str]]:
    """Each score before the first step, where it was taken, and at the step whose weights were kept."""
    if not scored:
        return []
    kept = next((entry for entry in scored if entry["step"] == kept_step), scored[-1])
    rows = []
    first, last = logged_scores(scored[0]), logged_scores(kept)
    for one in development.sets:
        for name, measure in one.measures.items():
            before = f"{measure.shown(first[name])} before, " if scored[0]["step"] == 0 else ""
            after = f"{measure.shown(last[name])} after (step {kept['step']})"
            rows.append((f"{one.name}, {measure.title}", before + after))
    return rows


def precision(args: InforMinTrainingArguments) -> str:
    """fp32, bf16 or fp16, as the run computes; the launcher can set it too."""
    return args.mixed_precision if args.mixed_precision != "no" else "fp32"
