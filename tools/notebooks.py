"""Run the notebooks in examples/ as a user would, and save them with their outputs.

    python -m tools.notebooks FOLDER [NOTEBOOK ...]

FOLDER is the working folder, in which the notebook makes its sample of texts, unless it contains texts.txt. The model
comes from the cache of the Hub, or from a folder sentence-transformers/all-MiniLM-L6-v2.
"""

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path
from unittest import mock

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
STYLES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # of terminals
PATHS = re.compile(r"(?<![\w.:/])/(?:home|root|work|tmp|usr|opt|var|Users)/\S*")


def execute(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """Run a notebook in a folder, with this Python and a command `informin`, and without network access to the Hub."""
    with tempfile.TemporaryDirectory() as commands:
        command = Path(commands, "informin")
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m informin "$@"\n')
        command.chmod(0o755)
        environment = {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "COLUMNS": "100"}
        with mock.patch.dict(os.environ, environment):
            resources = {"metadata": {"path": str(folder)}}
            NotebookClient(notebook, timeout=3600, record_timing=False, resources=resources).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = tidy(cell.outputs)
    return notebook


def tidy(outputs: list) -> list:
    """Join the pieces of each stream and keep the last state of each progress bar."""
    streams, kept = {}, []
    for output in outputs:
        if output.output_type != "stream":
            kept.append(output)
        elif output.name in streams:
            streams[output.name].text += output.text
        else:
            streams[output.name] = output
            kept.append(output)
    for output in streams.values():
        lines = [last_state(line) for line in STYLES.sub("", output.text.replace("\r\n", "\n")).split("\n")]
        output.text = "\n".join(lines)
    return [output for output in kept if output.output_type != "stream" or output.text.strip()]


def last_state(line: str) -> str:
    """Return what a line shows at the end, or the last state of a progress bar that was removed."""
    states = [state.rstrip() for state in line.split("\r") if state.strip()]
    return states[-1] if states else ""


def path_in(notebook: nbformat.NotebookNode) -> str | None:
    """Return a path of a machine in a notebook, which should not be published, or None."""
    found = PATHS.search(nbformat.writes(notebook).replace("\\n", " "))
    return found and found[0]


def main() -> int:
    """Run and save the notebooks. Returns 1 if an output contains a path of this machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("notebooks", type=Path, nargs="*", default=NOTEBOOKS)
    args = parser.parse_args()
    for path in args.notebooks:
        notebook = execute(nbformat.read(path, as_version=4), args.folder.resolve())
        if found := path_in(notebook):
            print(f"{path} is not saved. An output contains the path {found}.")
            return 1
        path.write_text(f"{nbformat.writes(notebook).rstrip()}\n", encoding="utf-8")
        print(f"{path}: saved")
    return 0


if __name__ == "__main__":
    sys.exit(main())
