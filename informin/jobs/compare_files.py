"""What a comparison measures and writes besides the scores: speed, the figure, and the files."""

import json
import platform
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from informin.adapters.prediction import halves
from informin.errors import counted
from informin.evaluation.results import environment
from informin.evaluation.table import render
from informin.figures.model_comparison import model_comparison
from informin.files import write_json
from informin.jobs.compare_table import Entry, Sizes, notes, ranked
from informin.models.model import Model
from informin.outputs import new_folder, refuse_existing, save_text
from informin.report.page import write_page

if TYPE_CHECKING:
    from informin.jobs.compare import Comparison

TIMED, ROUNDS = 256, 3  # texts, and rounds in which each model embeds them once


def texts_per_second(encoders: dict[str, Model], texts: list[str], seed: int = 0) -> dict[str, list[float]]:
    """Measure the speed of each model on the same random sample of texts, alternating between the models."""
    sample = [texts[i] for i in np.random.default_rng(seed).permutation(len(texts))[:TIMED]]
    speeds: dict[str, list[float]] = {label: [] for label in encoders}
    for _ in range(ROUNDS):
        for label, encoder in encoders.items():
            start = time.perf_counter()
            encoder(sample)
            speeds[label].append(len(sample) / (time.perf_counter() - start))
    return speeds


def all_notes(entries: list[Entry], sizes: Sizes) -> list[str]:
    """Return the notes about the table, with the machine last."""
    device = next((entry.device for entry in entries if entry.speed), None)
    if device is None:
        return [*notes(entries, sizes)]
    timed = counted(min(TIMED, sizes.sampled), "text")
    threads = f", {counted(torch.get_num_threads(), 'thread')}" if device.type == "cpu" else ""
    return [*notes(entries, sizes), f"texts/s: median of {ROUNDS} rounds on {timed}; {device_name(device)}{threads}."]


def device_name(device: torch.device) -> str:
    """Return the name of the GPU or the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*: (.*)", info.read_text(encoding="utf-8")) if info.exists() else None
    return named[1] if named else platform.processor() or platform.machine()


def write_comparison(comparison: "Comparison", folder: str | Path, files: Sequence[str] = ()) -> list[str]:
    """Write compare.json, table.md, the figure and report.html to a new folder, which appears once it is complete.

    Args:
        comparison: The comparison.
        folder: Missing or empty folder, which must be locked.
        files: The files of the texts, for the record.

    Returns:
        The names of the files.
    """
    entries, sizes = comparison.entries, comparison.sizes
    with new_folder(folder, "output_dir") as new:
        write_json(new / "compare.json", _record(comparison, files))
        listed = "\n".join(f"* {note}" for note in comparison.notes)
        text = f"{render(comparison.table, 'markdown')}\n\n{listed}\n"
        (new / "table.md").write_text(text, encoding="utf-8")
        if rows := _figure_rows(entries):
            model_comparison(rows, sizes.held_out, new / "figure")
        write_page(new)
        return sorted(path.name for path in new.iterdir())


def write_texts(path: str | Path, drawn: list[str], held_out: np.ndarray) -> int:
    """Write the texts to embed elsewhere: the drawn ones, then both halves of the held-out ones.

    Returns:
        The number of rows.

    Raises:
        UsageError: Another file exists at the path, or it cannot be written.
    """
    pairs = [halves(drawn[i]) for i in held_out]
    rows = [*drawn, *(first for first, _ in pairs), *(second for _, second in pairs)]
    content = "".join(f"{json.dumps({'text': row}, ensure_ascii=False)}\n" for row in rows)
    if not (Path(path).is_file() and Path(path).read_bytes() == content.encode()):
        refuse_existing(path, "write_texts")
        save_text(path, content)
    return len(rows)


def _record(comparison: "Comparison", files: Sequence[str]) -> dict:
    """Return the content of compare.json: the models in the order of the table, and what report.html shows."""
    entries = comparison.entries
    device = next((entry.device for entry in entries if entry.device), torch.device("cpu"))
    models = []
    for entry, score, gap in ranked(entries):
        row: dict = {"model": entry.label, "error": entry.error, "dimensions": entry.dimensions}
        row |= {"pooler": entry.pooler, "prompt": entry.prompt, "max_length": entry.length}
        row |= {"truncated": entry.truncated, "mean_cosine": entry.mean_cosine}
        row["word_agreement"] = entry.words
        row["unrelated"] = entry.unrelated.record() if entry.unrelated else None
        row |= {"texts_per_second": entry.speed, "turns": entry.speeds}
        if score and gap:
            row |= {"rank": score.rank, "log_rank_above_best": gap.mean, "error_of_log_rank": gap.error}
            row |= {"clear": gap.clear, "adapted_rank": score.adapted_rank, "verdict": score.adapter.verdict}
            row |= {"adapter_gain": score.adapter.gain, "error_of_gain": score.adapter.error}
        models.append(row)
    named = [Path(name).name for name in files]
    data = {"files": named, "seed": comparison.seed, **vars(comparison.sizes)}
    record = {"data": data, "environment": environment(device) | {"device": device_name(device)}, "models": models}
    listed = comparison.table
    rows = [{"label": row.label, "values": dict(row.values)} for row in listed.rows]
    shown = {"title": listed.title, "columns": listed.columns, "rows": rows, "notes": comparison.notes}
    return record | {"shown": shown, "figure": _figure_rows(entries)}


def _figure_rows(entries: list[Entry]) -> list[dict]:
    """Return the rows of the figure: the models with a score, best first."""
    rows = []
    for entry, score, _ in ranked(entries):
        if score:
            name = f"{entry.label}\n{entry.dimensions} dimensions"
            low, high = np.exp([-2 * score.error, 2 * score.error])
            sides = dict(rank=score.rank, adapted=score.adapted_rank, low=low, high=high)
            values = {side: float(value) for side, value in sides.items()}
            rows.append({"name": name, **values, "texts_per_second": entry.speed})
    return rows
