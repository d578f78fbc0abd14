"""CPU time and peak memory of a command, for benchmarks that start one."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

# A process of its own, so that the usage of its children is that of one command.
CHILD = """
import json, resource, subprocess, sys
code = subprocess.run(sys.argv[2:]).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
json.dump({"seconds": used.ru_utime + used.ru_stime, "gib": used.ru_maxrss / 2**20}, open(sys.argv[1], "w"))
sys.exit(code)
"""


def usage_of(command: Sequence[str], quiet: bool = False) -> dict[str, float]:
    """Run a command without the Hub and return its CPU seconds and its peak resident set in GiB.

    Args:
        command: Program and arguments.
        quiet: Discard its standard output.

    Raises:
        CalledProcessError: The command failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        usage = Path(folder, "usage.json")
        subprocess.run(
            [sys.executable, "-c", CHILD, str(usage), *command],
            check=True,
            stdout=subprocess.DEVNULL if quiet else None,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
        )
        return json.loads(usage.read_text())
