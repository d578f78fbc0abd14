"""The short table at the end of a run."""

import sys

import psutil
import torch
from transformers import TrainerState

from informin.arguments import InforMinTrainingArguments


def evaluations(state: TrainerState) -> list[dict]:
    """The evaluations of a run, in order; the first is from before the first step."""
    return [entry for entry in state.log_history if "eval_spearman" in entry]


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


def summary(
    state: TrainerState, args: InforMinTrainingArguments, pairs_name: str | None, rate: float, folder: str
) -> str:
    """What a run did, as a short table and the two lines that load its model.

    Args:
        pairs_name: what the run was evaluated on; None where it was not.
        rate: sentences a second of training, over all processes.
    """
    rows = []
    scored = evaluations(state)
    if scored:
        before, best = scored[0], max(scored, key=lambda entry: entry["eval_spearman"])
        kept = next((e for e in scored if e["step"] == state.best_global_step), scored[-1])
        if not args.load_best_model_at_end:
            kept = scored[-1]
        for name, label in (("spearman", "Spearman x 100"), ("alignment", "alignment"), ("uniformity", "uniformity")):
            digits = 2 if name == "spearman" else 3
            values = [f"{entry[f'eval_{name}']:.{digits}f}" for entry in (before, kept)]
            rows.append((f"{pairs_name}, {label}", f"{values[0]} before, {values[1]} after (step {kept['step']})"))
    logged = [entry for entry in state.log_history if "loss" in entry]
    if logged:
        names = [name for name in ("contrast", "reconstruction", "mlm", "projection_norm") if name in logged[-1]]
        terms = ", ".join(f"{name} {logged[-1][name]:.4f}" for name in names)
        rows.append(("terms at the end, unweighted", f"{terms}; loss {logged[-1]['loss']:.4f}"))
    rows.append(("training speed", f"{rate:.1f} sentences/s ({args.world_size} process(es), {precision(args)})"))
    rows.append(("peak memory", peak_memory(args.device)))
    rows.append(("model", folder))
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    if scored and best is before and len(scored) > 1:
        lines.append(
            f"\nNote: the best score on {pairs_name} is the one before the first step. Training made this encoder "
            "worse; the model saved is the best of the checkpoints after training began. Weak encoders do this: start "
            "from a stronger one, or lower --learning_rate."
        )
    lines += [
        "\nLoad it:",
        "    from transformers import AutoModel",
        f'    model = AutoModel.from_pretrained("{folder}", trust_remote_code=True)',
    ]
    return "\n".join(lines)


def precision(args: InforMinTrainingArguments) -> str:
    """fp32, bf16 or fp16, as the run computes; the launcher can set it too."""
    return args.mixed_precision if args.mixed_precision != "no" else "fp32"
