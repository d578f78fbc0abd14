"""Print random sentences of this project's documentation, to read them as a stranger would.

    python -m tools.sentences --seed 1

A sentence comes from a page or a template of one, the help of a command, a docstring or an error message, in turn. In
error messages, `{...}` stands for a value.
"""

import argparse
import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    *("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md", "docs/reference/*.md", "experiments/results/*.md"),
    *("informin/publishing/templates/*.md", "informin/report/templates/*.html", "informin/demo/templates/*.html"),
)
CODE = (
    *("informin/**/*.py", "trainer_informin.py", "modeling_informin.py", "run_unsup.py"),
    *("tools/*.py", "benchmarks/*.py", "examples/**/*.py"),
)
HELP = ("informin/help/*.txt",)
ERRORS = re.compile(r"(Error|Warning)$")  # names of classes
FIELDS = {"needed": "; expected {}", "fix": ". {}"}  # of a UsageError, as in its message
FEWEST = 4  # words; fewer are a heading or a value
END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`\[(\"])")
NO_PROSE = re.compile(r"^(```.*?^```|---\n.*?^---$|\|.*?$|#.*?$|<.*?$|!\[.*?$|\s*>>> .*?$)", re.MULTILINE | re.DOTALL)


def split(text: str) -> list[str]:
    """Return the sentences of a text, each on one line, without those of fewer than four words."""
    paragraphs = re.split(r"\n\s*\n|\n\s*(?:[*-]|\d+\.) ", text)
    sentences = [" ".join(one.split()) for paragraph in paragraphs for one in END.split(paragraph)]
    return [one.replace("**", "").lstrip("*- ") for one in sentences if len(re.findall(r"[A-Za-z]{2,}", one)) >= FEWEST]


def of_pages() -> Iterator[tuple[str, str]]:
    """Yield (place, sentence) of the prose of Markdown and HTML files, without code, tables and headings."""
    for path in files(PAGES):
        text = re.sub(r"\{%.*?%\}|<[^>]*>", " ", NO_PROSE.sub("\n\n", path.read_text(encoding="utf-8")))
        yield from ((name(path), sentence) for sentence in split(text))


def of_help() -> Iterator[tuple[str, str]]:
    """Yield (place, sentence) of the descriptions of commands and options."""
    for path in files(HELP):
        for option in re.split(r"\n  (?=-|\{)|\n\n", path.read_text(encoding="utf-8").partition("\n\n")[2]):
            words = re.sub(r"^-\S+( [A-Z{\[][^ ]*( \.\.\.\])?)*\s\s+|^-.*\n", "", option.strip())
            yield from ((f"{name(path)}", sentence) for sentence in split(words))


def of_docstrings() -> Iterator[tuple[str, str]]:
    """Yield (place, sentence) of the docstrings of modules, classes and functions."""
    for path in files(CODE):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = re.sub(r"^    .*$", "", ast.get_docstring(node) or "", flags=re.MULTILINE)
                where = name(path) + ("" if isinstance(node, ast.Module) else f":{node.lineno}")
                yield from ((where, sentence) for sentence in split(text))


def of_errors() -> Iterator[tuple[str, str]]:
    """Yield (place, sentence) of the messages of errors and warnings."""
    for path in files(CODE):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ERRORS.search(called(node)):
                parts = {one.arg: text_of(one.value) for one in node.keywords if one.arg in FIELDS}
                fields = [shape.format(parts[field]) for field, shape in FIELDS.items() if parts.get(field)]
                message = (text_of(node.args[0]) if node.args else "") + "".join(fields)
                yield from ((f"{name(path)}:{node.lineno}", sentence) for sentence in split(message))


def called(node: ast.Call) -> str:
    return getattr(node.func, "attr", None) or getattr(node.func, "id", "")


def text_of(node: ast.expr) -> str:
    """Return the text of a string or an f-string, and nothing for other expressions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) if isinstance(part, ast.Constant) else "{...}" for part in node.values)
    return ""


def files(patterns: tuple[str, ...]) -> list[Path]:
    return sorted({path for pattern in patterns for path in ROOT.glob(pattern)})


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def sample(seed: int, count: int) -> list[tuple[str, str]]:
    """Return (place, sentence) of random sentences, of each kind in turn."""
    kinds = [[*of_pages()], [*of_help()], [*of_docstrings()], [*of_errors()]]
    source = random.Random(seed)
    return [source.choice(kinds[i % len(kinds)]) for i in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20, help="Number of sentences. Default: %(default)s.")
    args = parser.parse_args()
    for place, sentence in sample(args.seed, args.count):
        print(f"{place}\n    {sentence}")


if __name__ == "__main__":
    main()
