"""Save the measurements of a benchmark: a JSON file with all numbers, and a Markdown table."""

import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "transformers", "sentence-transformers", "onnxruntime", "openvino", "optimum-intel")


def machine() -> dict[str, str | int]:
    """Return the name of the CPU or GPU, the number of threads, and versions of packages."""
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    else:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        device = names[0] if names else platform.processor() or platform.machine()
    found = {"device": device, "threads": torch.get_num_threads(), "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def in_process(module: str, *words: str, **environment: str) -> dict:
    """Run a module in a process of its own, and return the JSON that it prints last, after RESULT.

    `peak_gib` and `cpu_seconds` of the process are added.
    """
    command = [sys.executable, "-m", module, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | environment) as child:
        assert child.stdout is not None
        out = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    used = {"peak_gib": usage.ru_maxrss / 2**20, "cpu_seconds": usage.ru_utime + usage.ru_stime}
    return used | (json.loads(out.rpartition("RESULT")[2]) if "RESULT" in out else {})


def spread(ratios: Sequence[float]) -> str:
    """Format the median, minimum and maximum."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def report(name: str, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], measured: object) -> str:
    """Write NAME.json and NAME.md in experiments/benchmarks/results, and return the table.

    Args:
        columns: titles; the first column is text, the others are numbers.
        rows: cells.
        measured: everything that was measured, as JSON takes it.
    """
    words = [Path(word).name if Path(word).exists() else word for word in sys.argv[1:]]  # without folders
    command = f"python -m experiments.benchmarks.{Path(sys.argv[0]).stem} {shlex.join(words)}"
    where = machine()
    lines = [f"# {title}", "", f"    {command}", "", ", ".join(f"{key} {value}" for key, value in where.items()), ""]
    lines += ["| " + " | ".join(columns) + " |", "|---|" + "---:|" * (len(columns) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    text = "\n".join(lines) + "\n"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
    kept = {"command": command, "machine": where, "measured": measured}
    (RESULTS / f"{name}.json").write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    return text
