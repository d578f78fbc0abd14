"""Print random sentences of this project's documentation, to read them as a stranger would.

    python -m tools.sentences --seed 1
    python -m tools.sentences --awkward    # every sentence of a kind that docs/style.md names

A sentence comes from a page or a template of one, the help of an option, a docstring or an error message, in turn. In
help and error messages, `{...}` stands for a value.
"""

import argparse
import ast
import functools
import random
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = """
    README.md CONTRIBUTING.md SECURITY.md docs/*.md docs/reference/*.md experiments/results/*.md
    informin/templates/*.md informin/templates/*.html
""".split()
CODE = """
    informin/**/*.py trainer_informin.py modeling_informin.py run_unsup.py tools/*.py experiments/**/*.py
    examples/**/*.py
""".split()
ERRORS = re.compile(r"(Error|Warning)$")  # names of classes
FIELDS = {"needed": "; expected {}", "fix": ". {}"}  # of a UsageError, as in its message
OPTION = "option"  # the function whose second argument is a help text
FEWEST = 4  # words; fewer are a heading or a value
END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`\[(\"])")
NO_PROSE = re.compile(r"^(```.*?^```|---\n.*?^---$|\|.*?$|#.*?$|<.*?$|!\[.*?$|\s*>>> .*?$)", re.MULTILINE | re.DOTALL)
# The table "Kinds of sentences that stop a reader" in docs/style.md has each of them.
AWKWARD = re.compile(
    r"(?<![Tt]here )\b(is|are|was|were) no (?!longer|more|need|such)\w+"
    r"|\b(?:an)?other \w+ than\b"
    r"|\bof your own\b"
    r"|\bhas another\b"
    r"|\b[Tt]ext before (each|every|the)\b"
    r"|\bamong all\b"
    r"|\bon no \w+"
    r"|^Several processes"
    r"|\b[Ff]its? (a|the|one) matrix\b"
)
Sentences = Iterator[tuple[str, str]]


def split(text: str) -> list[str]:
    """Return the sentences of a text, each on one line, without those of fewer than four words."""
    paragraphs = re.split(r"\n\s*\n|\n\s*(?:[*-]|\d+\.) ", text)
    sentences = [" ".join(one.split()) for paragraph in paragraphs for one in END.split(paragraph)]
    plain = [one.replace("**", "").lstrip("*- ") for one in sentences]
    return [one for one in plain if len(re.findall(r"[A-Za-z]{2,}", one)) >= FEWEST]


def of_pages() -> Sentences:
    """Yield (place, sentence) of the prose of Markdown and HTML files, without code, tables and headings."""
    for path in files(PAGES):
        prose = NO_PROSE.sub("\n\n", path.read_text(encoding="utf-8"))
        for sentence in split(re.sub(r"\{%.*?%\}|<[^>]*>", " ", prose)):
            yield name(path), sentence


def of_help() -> Sentences:
    """Yield (place, sentence) of the help of options: `help=` of parsers, and `option` of dataclasses."""
    for path, node in nodes(ast.Call):
        texts = [keyword.value for keyword in node.keywords if keyword.arg == "help"]
        if called(node) == OPTION:
            texts += node.args[1:2]
        for text in texts:
            for sentence in split(text_of(text)):
                yield f"{name(path)}:{node.lineno}", sentence


def of_docstrings() -> Sentences:
    """Yield (place, sentence) of the docstrings of modules, classes and functions."""
    for path, node in nodes(ast.Module, ast.ClassDef, ast.FunctionDef):
        text = re.sub(r"^    .*$", "", ast.get_docstring(node) or "", flags=re.MULTILINE)
        for sentence in split(text):
            yield f"{name(path)}:{getattr(node, 'lineno', 1)}", sentence


def of_errors() -> Sentences:
    """Yield (place, sentence) of the messages of errors and warnings."""
    for path, node in nodes(ast.Call):
        if ERRORS.search(called(node)):
            parts = {one.arg: text_of(one.value) for one in node.keywords if one.arg in FIELDS}
            fields = [shape.format(parts[field]) for field, shape in FIELDS.items() if parts.get(field)]
            message = (text_of(node.args[0]) if node.args else "") + "".join(fields)
            for sentence in split(message):
                yield f"{name(path)}:{node.lineno}", sentence


KINDS = (of_pages, of_help, of_docstrings, of_errors)


def nodes(*kinds: type) -> Iterator[tuple[Path, ast.AST]]:
    """Yield (file, node) of the syntax trees of all code, for nodes of these kinds."""
    for path in files(CODE):
        for node in nodes_of(path):
            if isinstance(node, kinds):
                yield path, node


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Return all nodes of the syntax tree of a file, which each kind of sentence reads again."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def called(node: ast.Call) -> str:
    return getattr(node.func, "attr", None) or getattr(node.func, "id", "")


def text_of(node: ast.expr) -> str:
    """Return the text of a string or an f-string, and nothing for other expressions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) if isinstance(part, ast.Constant) else "{...}" for part in node.values)
    return ""


def files(patterns: list[str]) -> list[Path]:
    """Return the files that match any of the patterns."""
    return sorted({path for pattern in patterns for path in ROOT.glob(pattern)})


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def sample(seed: int, count: int) -> list[tuple[str, str]]:
    """Return (place, sentence) of random sentences, of each kind in turn."""
    found = [list(kind()) for kind in KINDS]
    source = random.Random(seed)
    return [source.choice(found[i % len(found)]) for i in range(count)]


def awkward() -> list[tuple[str, str]]:
    """Return (place, sentence) of every sentence of a kind that docs/style.md names."""
    return [one for kind in KINDS for one in kind() if AWKWARD.search(one[1])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20, help="Number of sentences. Default: %(default)s.")
    parser.add_argument("--awkward", action="store_true", help="Print the sentences of kinds to avoid instead.")
    args = parser.parse_args()
    for place, sentence in awkward() if args.awkward else sample(args.seed, args.count):
        print(f"{place}\n    {sentence}")


if __name__ == "__main__":
    main()
