"""Run `informin check`, and print what it found as one table."""

import importlib.util
import logging
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import Any

import torch

from informin.check.equality import ENCODERS, Comparison, compare_paths, excess
from informin.evaluation.results import environment

logger = logging.getLogger(__name__)

ROOT = Path(__file__).parents[2]
MOST = 10  # differences that are printed; the file has all
BUDGET = 240  # seconds after which no round of measurements starts


@dataclass
class Check:
    """What `informin check` found.

    Attributes:
        machine: Versions, processor, GPU and commit.
        comparisons: How far each fast path is from the plain one.
        gpu_tests: The last line of the tests for a GPU, or why they did not run.
        gpu_failed: Whether one of them failed.
        speed: Measurements; see `informin.check.speed.Measured`.
    """

    machine: dict[str, Any]
    comparisons: list[Comparison]
    gpu_tests: str
    gpu_failed: bool
    speed: list[dict[str, Any]]

    @property
    def passed(self) -> bool:
        """Whether every fast path equals the plain one, and no test failed."""
        return not self.gpu_failed and all(one.equal for one in self.comparisons)

    def record(self) -> dict[str, Any]:
        """Return everything as JSON."""
        comparisons = [
            asdict(one) | {"equal": one.equal, "difference": one.difference if isfinite(one.difference) else None}
            for one in self.comparisons
        ]
        return vars(self) | {"passed": self.passed, "comparisons": comparisons}

    def table(self) -> str:
        """Return everything as text of 80 columns."""
        lines = [f"{name}: {value}" for name, value in self.machine.items() if value is not None]
        lines = ["informin check", "", *wrapped(lines), "", *equality_lines(self.comparisons)]
        lines += ["", f"Tests for a GPU: {self.gpu_tests}"]
        if self.speed:
            lines += ["", *speed_lines(self.speed)]
        return "\n".join(lines)


def check(
    device: str,
    bf16: bool,
    objectives: Sequence[str],
    skip_speed: bool,
    model_name: str | None = None,
    texts: list[str] | None = None,
) -> Check:
    """Compare, test and measure.

    Args:
        device: cpu or cuda.
        bf16: Whether to compare and measure bfloat16, too.
        objectives: Names of the presets to compare.
        skip_speed: Measure nothing.
        model_name: Model to measure; see `informin.check.speed.compare_speed`.
        texts: Texts to measure with; None for random words.

    Raises:
        UsageError: There are too few texts.
    """
    start = time.monotonic()
    measured = None
    if not skip_speed:
        from informin.check.speed import as_record, compare_speed, texts_to_measure

        measured = texts_to_measure(texts, device)  # an error comes before minutes of comparisons
    precisions = ["fp32", "bf16"] if bf16 else ["fp32"]
    logger.info(f"Comparing the fast paths with the plain one in {' and '.join(precisions)}")
    comparisons = list(compare_paths(torch.device(device), precisions, objectives))
    result, failed = run_gpu_tests(device)
    speed: list[dict[str, Any]] = []
    if measured is not None:
        logger.info("Measuring speed and memory beside sentence-transformers")
        speed = as_record(compare_speed(model_name, measured, device, bf16, start + BUDGET))
    return Check(machine(torch.device(device)), comparisons, result, failed, speed)


def run_gpu_tests(device: str) -> tuple[str, bool]:
    """Run the tests of the repository that are marked for a GPU, and return their last line and whether one failed."""
    if device != "cuda":
        return "not run, because there is no GPU", False
    if not (ROOT / "tests" / "conftest.py").is_file() or importlib.util.find_spec("pytest") is None:
        return "not installed; they run from a clone with the extra `test`", False
    logger.info("Running the tests for a GPU")
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = done.stdout.strip().splitlines() or [f"pytest ended with {done.returncode}"]
    failures = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return "\n  ".join([lines[-1], *failures]), done.returncode != 0


def machine(device: torch.device) -> dict[str, Any]:
    """Return versions of packages, the processor, the GPU and the commit of a clone."""
    found = environment(device) | {"sentence-transformers": version("sentence-transformers")}
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    is_clone = (ROOT / ".git").exists()
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() if is_clone else None
    return found | {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "CUDA": torch.version.cuda if device.type == "cuda" else None,
        "commit": commit or None,
    }


# The table


def wrapped(words: Sequence[str]) -> list[str]:
    """Return words as lines of at most 80 columns, with commas."""
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) + 2 > 79:
            lines.append("")
        lines[-1] += f"{', ' if lines[-1] else ''}{word}"
    return lines


def equality_lines(comparisons: Sequence[Comparison]) -> list[str]:
    """Return the largest difference of each objective, and what differs."""
    cells: dict[str, dict[tuple[str, str], list[Comparison]]] = defaultdict(lambda: defaultdict(list))
    for one in comparisons:
        cells[one.objective][one.precision, one.encoder].append(one)
    columns = [(precision, name) for precision in ("fp32", "bf16") for name in ENCODERS]
    columns = [column for column in columns if any(column in row for row in cells.values())]
    lines = ["Fast paths against the plain path: largest relative difference of values and"]
    lines += ["gradients, paths compared", f"{'':16}" + "".join(f"{f'{name} {how}':>16}" for how, name in columns)]
    for objective, row in cells.items():
        shown = [f"{cell(row[column]):>16}" for column in columns]
        lines.append(f"{objective:16}" + "".join(shown))
    wrong = [one for one in comparisons if not one.equal]
    for one in wrong[:MOST]:
        found = one.error or f"{one.term} by {one.difference:.1e}, {one.tolerance:.1e} at most expected"
        lines.append(f"DIFFERS: {one.encoder}, {one.objective}, {one.path}, {one.precision}: {found}")
    return lines + [f"and {len(wrong) - MOST} more"] * (len(wrong) > MOST)


def cell(comparisons: Sequence[Comparison]) -> str:
    """Return the largest difference and the number of comparisons."""
    if not comparisons:
        return ""
    worst = max(comparisons, key=lambda one: excess(one.difference, one.tolerance))
    return f"{worst.difference:.0e}, {len(comparisons)}" if worst.equal else "DIFFERS"


def speed_lines(speed: Sequence[dict[str, Any]]) -> list[str]:
    """Return the median speed of each side, its ratios and its memory."""
    lines = [f"{'':50}{'texts/s':>9}{'ratio':>7}{'cpu':>7}{'GiB':>6}"]
    for one in speed:
        numbers = f"{statistics.median(one['per_second']):9.1f}{one['ratio']:7.2f}{one['cpu_ratio']:7.2f}"
        lines.append(f"{one['work']:7}{one['library']:22}{one['how']:21}{numbers}{one['peak_gib']:6.2f}")
    return lines
