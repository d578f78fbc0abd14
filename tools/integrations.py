"""Run the snippets of docs/integrations.md, each in an environment of its own, and compare outputs with the page.

    python -m tools.integrations --model_name MODEL --folder FOLDER [--only faiss ...] [--collection FOLDER]

An environment has the versions that the snippet names. FOLDER keeps the environments, about 1 GB each, and the adapted
model. To run tests/test_integrations.py in these environments, set SNIPPET_ENVIRONMENTS=FOLDER/environments.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "integrations.md"
SENTENCES = ROOT / "informin" / "general_sentences.txt"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
ROUNDING = 0.005  # by how much a printed number may differ: machines round differently


@dataclass
class Snippet:
    """A snippet: its code, the output shown below the code, and the versions of the packages that it was run with."""

    name: str
    code: str
    output: str
    versions: dict[str, str]


def read_section(name: str, text: str) -> Snippet:
    """Read a section: a python block, perhaps a text block after it, and a line that begins with `Tested with`."""
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    output = re.search(r"^```text\n(.*?)^```", text.partition(code)[2], re.MULTILINE | re.DOTALL)
    line = re.search(r"^Tested with (.*?)$\n(?:\n|\Z)", text, re.MULTILINE | re.DOTALL)[1]
    versions = dict(re.findall(r"([\w-]+)\s+(\d[\w.]*\d)", line.partition(" on Python")[0]))
    return Snippet(name, code, output[1] if output else "", versions)


def read_snippets() -> dict[str, Snippet]:
    """Return all snippets by name. Code, output and versions above the first section apply to all."""
    first, *sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    shared, snippets = read_section("", first), {}
    for section in sections:
        title, _, text = section.partition("\n")
        own = read_section(title.lower().replace(" ", "-"), text)
        output, versions = own.output or shared.output, shared.versions | own.versions
        snippets[own.name] = Snippet(own.name, f"{shared.code}\n{own.code}", output, versions)
    return snippets


def make_environment(snippet: Snippet, folder: Path) -> Path:
    """Create a virtual environment with a snippet's packages, unless it exists, and return its interpreter."""
    python = folder / "bin" / "python"
    needed = sorted(f"{name}=={version}" for name, version in snippet.versions.items())
    installed = folder / "installed.txt"
    if not installed.exists() or installed.read_text().split() != needed:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *needed], check=True)
        installed.write_text("\n".join(needed))
    return python


def adapt(model_name: str, folder: Path) -> None:
    """Adapt the model to the sentences of this package, as docs/integrations.md says."""
    shutil.copy(SENTENCES, folder / "documents.txt")
    options = ["--model_name", model_name, "--train_file", "documents.txt", "--documents", "smoothed"]
    command = [sys.executable, "-m", "informin", "fit", *options, "--output_dir", "better"]
    subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)


def run_code(
    snippet: Snippet, python: str | Path, data: Path, collection: Path | None = None
) -> subprocess.CompletedProcess:
    """Run a snippet in a copy of a folder, without network access to the Hub.

    Args:
        data: Folder with `documents.txt` and the model `better`.
        collection: The test collection that the code finds as `collection`.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(data, folder, dirs_exist_ok=True)
        if collection:
            shutil.copytree(collection, Path(folder, "collection"))
        environment |= {"XDG_CACHE_HOME": f"{folder}/.cache", "MTEB_CACHE": f"{folder}/.cache/mteb"}
        Path(folder, "snippet.py").write_text(snippet.code, encoding="utf-8")
        command = [python, "snippet.py"]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)


def same_output(shown: str, printed: str) -> bool:
    """Return whether the last lines printed are those shown, except for the last digits of numbers and for spaces."""
    lines = shown.strip().splitlines()
    pair = "\n".join(lines), "\n".join(printed.strip().splitlines()[-len(lines) :])
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in pair]
    words = [" ".join(NUMBER.sub("#", text).split()) for text in pair]
    return words[0] == words[1] and all(abs(a - b) <= ROUNDING for a, b in zip(*numbers))


def main() -> int:
    """Run the snippets. Returns 1 if one of them fails or prints something else."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    snippets = read_snippets()
    parser.add_argument("--model_name", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=list(snippets), choices=list(snippets))
    parser.add_argument("--collection", type=Path, default=ROOT.parent / "shared" / "data" / "retrieval" / "cisi")
    args = parser.parse_args()
    data = args.folder.resolve() / "data"
    if not (data / "better").exists():
        data.mkdir(parents=True, exist_ok=True)
        adapt(args.model_name, data)
    failed = 0
    for name in args.only:
        python = make_environment(snippets[name], args.folder.resolve() / "environments" / name)
        collection = args.collection if "collection/" in snippets[name].code else None
        done = run_code(snippets[name], python, data, collection)
        passed = done.returncode == 0 and same_output(snippets[name].output, done.stdout)
        failed += not passed
        print(f"{name}: {'as on the page' if passed else 'differs from the page'}")
        if not passed:
            print(done.stdout, done.stderr[-3000:], sep="\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
