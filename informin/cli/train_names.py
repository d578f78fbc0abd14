"""The names of the options of `informin train`, found in source code: importing what declares them takes seconds.

They are the fields of dataclasses: transformers' TrainingArguments and ours, and those of terms and views.
"""

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from informin.errors import UsageError
from informin.options import SHARED_FIELDS, snake_case
from informin.training.inputs import name_here

PACKAGE = Path(__file__).parents[1]


@lru_cache(maxsize=1)
def option_names() -> frozenset[str]:
    """Return the names of all options, without dashes."""
    transformers = find_spec("transformers")
    assert transformers is not None and transformers.origin is not None  # it is a requirement
    sources = [Path(transformers.origin).with_name("training_args.py")]
    sources += [PACKAGE / "training" / name for name in ("inputs.py", "arguments.py")]
    kinds = [kind for source in sources for kind in dataclasses_of(source) if kind.name.endswith("Arguments")]
    names = {name for kind in kinds for name in fields_of(kind)}
    for kind in subclasses("objectives", "Term"):
        fields = ["weight", *fields_of(kind)]
        names |= {f"{kind_name(kind)}_{field}" if field in SHARED_FIELDS else field for field in fields}
    for kind in subclasses("views", "View"):
        names |= {f"{kind_name(kind)}_{field}" for field in fields_of(kind)}
    return frozenset(names)


def subclasses(folder: str, base: str) -> Iterator[ast.ClassDef]:
    """Yield the dataclasses in a folder of the package that derive from a class."""
    for source in (PACKAGE / folder).glob("*.py"):
        yield from (kind for kind in dataclasses_of(source) if base in map(ast.unparse, kind.bases))


def kind_name(kind: ast.ClassDef) -> str:
    """Return the name of a term or a view: its attribute `name`, or the name of the class in snake case."""
    for node in kind.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "name":
            return ast.literal_eval(node.value)
    return snake_case(kind.name)


def dataclasses_of(source: Path) -> Iterator[ast.ClassDef]:
    """Yield the dataclasses of a file."""
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(one) for one in node.decorator_list):
            yield node


def fields_of(kind: ast.ClassDef) -> Iterator[str]:
    """Yield the names of the fields that a dataclass adds to those of its bases."""
    for node in kind.body:
        if isinstance(node, ast.AnnAssign) and not ast.unparse(node.annotation).startswith("ClassVar"):
            yield ast.unparse(node.target)


def given_options(words: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of each option in a command line, by its name with underscores. The last one counts."""
    given: dict[str, list[str]] = {}
    values: list[str] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            values = given[name.replace("-", "_")] = [value] if equals else []
        else:
            values.append(word)
    return given


def check_names(names: Iterable[str], option: str | None = None, place: str = "") -> None:
    """Raise UsageError for names that are not options, with the name to use instead where it is known.

    Args:
        names: The names, without dashes.
        option: The option that names the file in which they stand; None for the command line.
        place: The name of this file.
    """
    known = option_names() - {option} if option else option_names() | {"help"}  # no recipe names another one
    unknown = [name for name in names if name not in known and name.removeprefix("no_") not in known]
    if not unknown:
        return
    dashes = "" if place else "--"
    fixes = filter(None, [name_here(name, known, dashes) for name in unknown])
    listed = ", ".join(dashes + name for name in unknown)
    found = f"{place}no such option: {listed}"
    raise UsageError(found, option=option, fix=" ".join(fixes) or "See `informin train --help`.")
