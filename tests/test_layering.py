"""The layers of the modules, according to their imports, and limits on their sizes."""

import ast
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT

SOURCES = sorted(
    {
        *ROOT.glob("*.py"),
        *(path for name in ("informin", "benchmarks", "examples") for path in (ROOT / name).rglob("*.py")),
    }
)


WITH_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in SOURCES}


def imports_in(source: str, package: str, known) -> set[str]:
    """Return the modules that a source imports anywhere, except for type checkers.

    `from a import b` counts as a.b if that is a known module, else as a.

    Args:
        package: the package the source belongs to, for relative imports.
        known: the names of this project's modules.
    """
    found = set()
    for node in walk_running(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = {f"{base}.{alias.name}" for alias in node.names}
            found |= {name if name in known else base for name in names}
    return found


def walk_running(node: ast.AST):
    """Walk a tree like ast.walk, without the bodies of `if TYPE_CHECKING:`."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from walk_running(child)


@cache
def imports(name: str) -> frozenset[str]:
    """Return what `imports_in` finds in a module."""
    path = MODULES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return frozenset(imports_in(path.read_text(encoding="utf-8"), package, MODULES))


@cache
def reachable(name: str) -> frozenset[str]:
    """Return everything that importing a module imports through this project's modules, including packages."""
    found, todo = set(), [name]
    while todo:
        module = todo.pop()
        if module not in found:
            found.add(module)
            packages = {module.rsplit(".", depth)[0] for depth in range(1, module.count(".") + 1)}
            todo += (imports(module) | packages) if module in MODULES else []
    return frozenset(found)


def inside(name: str, *packages: str) -> bool:
    """Return whether a module is one of the packages or in one of them."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def modules_in(*packages: str) -> list[str]:
    return [name for name in MODULES if inside(name, *packages)]


def ours(names: Iterable[str]) -> set[str]:
    """Return this project's modules among them, existing or not."""
    roots = {name.partition(".")[0] for name in MODULES} - {""}
    return {name for name in names if name.partition(".")[0] in roots}


def test_imports_are_found_anywhere():
    source = """
import a.b, c as d
from informin import errors as e
from informin.training import sentences as data
from . import sibling
from .sibling import thing
from ..up import other
def f():
    from late import x
if TYPE_CHECKING:
    from informin.training import options
"""
    known = {"informin", "informin.training.sentences", "informin.errors", "informin.evaluation.sibling"}
    assert imports_in(source, "informin.evaluation", known) == {
        *(
            "a.b",
            "c",
            "late",
            "informin.training.sentences",
            "informin.errors",
            "informin.evaluation.sibling",
            "informin.up",
        )
    }
    assert {"modeling_informin", "trainer_informin", "run_unsup", "informin.evaluation.pairs"} <= MODULES.keys()
    assert {"modeling_informin", "torch", "informin.training.options", "informin"} <= reachable("run_unsup")


def test_the_modeling_file_is_self_contained():
    """It is copied into every checkpoint and imported from there."""
    allowed = (*sys.stdlib_module_names, "torch", "transformers")
    assert [name for name in imports("modeling_informin") if not inside(name, *allowed)] == []


# What each package may import in addition to itself and the shared modules: packages in lower layers.
SHARED = (
    "arrowfiles",
    "bars",
    "columns",
    "errors",
    "files",
    "inputfiles",
    "interrupts",
    "jsonfiles",
    "labeled_sentences",
    "lock",
    "otherformats",
    "outputs",
    "padding",
    "program",
    "quoting",
    "schema",
    "summaries",
    "temporary",
    "textfiles",
    "textlines",
    "transformers_private",
    "yamlfiles",
    "distributed",
)
PACKAGES = {
    "guide": (),
    "objectives": ("guide",),
    "views": ("modeling_informin", "guide", "objectives"),
    "models": ("modeling_informin", "objectives", "views"),
    "evaluation": ("guide",),
    "adapters": (),
    "publishing": ("modeling_informin", "adapters", "models", "evaluation"),
    "training": ("guide", "objectives", "views", "models", "evaluation", "publishing"),
    "demo": ("modeling_informin", "adapters", "models", "evaluation", "publishing"),
    "figures": ("models", "evaluation", "publishing", "training"),
    "studies": ("evaluation", "publishing", "training"),
    "report": ("adapters", "evaluation", "publishing", "figures", "studies"),
    "jobs": ("adapters", "models", "evaluation", "publishing", "training", "figures", "report"),
    "cli": (
        "trainer_informin",
        "modeling_informin",
        "guide",
        "adapters",
        "models",
        "evaluation",
        "publishing",
        "demo",
        "training",
        "figures",
        "studies",
        "report",
        "jobs",
    ),
}
# They define flags or start subcommands.
ABOUT_FLAGS = (
    *modules_in("informin.cli"),
    "informin.program",
    "informin.training.command_line",
    "informin.studies.runner",
)
# Libraries that its modules must not import, directly or indirectly.
WITHOUT = {"objectives": ("transformers",), "evaluation": ("transformers",)}


def test_every_module_is_shared_or_in_a_package():
    inner = {name.split(".")[1] for name in MODULES if name.startswith("informin.")}
    assert inner == {*SHARED, *PACKAGES, "__main__"}


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_lower_layers(package):
    below = list(PACKAGES)[: list(PACKAGES).index(package)]
    assert set(PACKAGES[package]) <= {"modeling_informin", "trainer_informin", *below}  # so that there is no cycle
    own = [name if name in MODULES else f"informin.{name}" for name in (package, *PACKAGES[package])]
    allowed = (*own, *(f"informin.{name}" for name in SHARED))
    for module in modules_in(f"informin.{package}"):
        found = ours(imports(module)) - {"informin"}  # which is __version__ alone
        assert [name for name in found if not inside(name, *allowed)] == [], module
        assert [name for name in reachable(module) if inside(name, *WITHOUT.get(package, ()))] == [], module


def test_tests_have_the_folders_of_the_code():
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and not path.name.startswith("_")}
    assert folders <= {*PACKAGES}, "README says that tests/ mirrors informin/"


def package_of(module: str) -> str | None:
    """Return the package of a module, or the file at the top level; None for shared modules."""
    top, _, inner = module.partition(".")
    name = inner.partition(".")[0]
    if top == "informin":
        return name if name in PACKAGES else None
    return top if top in ("run_unsup", "trainer_informin", "modeling_informin") else None


def test_the_graph_of_the_packages_is_that_of_the_imports():
    """In docs/architecture.md, without arrows that follow from others."""
    pairs = {(package_of(one), package_of(other)) for one in MODULES for other in imports(one) if other in MODULES}
    arrows = {(one, other) for one, other in pairs if one and other and one != other}

    def leads(start: str, end: str, without: tuple[str, str]) -> bool:
        following = [other for one, other in arrows if one == start and (one, other) != without]
        return end in following or any(leads(other, end, without) for other in following)

    expected = {arrow for arrow in arrows if not leads(*arrow, arrow)}
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert {*re.findall(r"^    (\w+) --> (\w+)$", text, re.MULTILINE)} == expected


@pytest.mark.parametrize("name", SHARED)
def test_shared_modules_import_no_package(name):
    allowed = [f"informin.{other}" for other in SHARED]
    assert [found for found in ours(imports(f"informin.{name}")) if not inside(found, *allowed)] == []


def test_heads_and_terms_are_named_only_in_their_modules():
    """Model and trainer do not name heads. The language-model head belongs to the encoder."""
    names = "queue|projector|momentum|mlm|attention_mi_|reconstruction"
    for file in ("trainer_informin.py", "modeling_informin.py"):
        assert re.findall(names, (ROOT / file).read_text(encoding="utf-8")) == [], file
    library = {name: path.read_text(encoding="utf-8") for name, path in MODULES.items() if inside(name, "informin")}
    # The option, and a paper's value.
    assert [name for name in library if "queue_size" in library[name]] == [
        *("informin.objectives.attention_mi", "informin.objectives.queue")
    ]


@pytest.mark.parametrize(
    "name", [name for name in (*modules_in("informin"), "trainer_informin") if name not in ABOUT_FLAGS]
)
def test_the_library_does_not_mention_flags(name):
    """Errors of the library name options. The command line prints them as flags."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    described = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, WITH_DOCSTRINGS)}
    assert [text for text in texts if text not in described and re.search("(?<![-\\w])--[a-z]", text)] == []
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert "Namespace" not in names


@pytest.mark.parametrize("name", MODULES)
def test_only_benchmarks_import_benchmarks_and_nothing_imports_scripts_or_examples(name):
    own = ("examples",) if inside(name, "benchmarks") else ("benchmarks", "examples")
    assert [other for other in ours(imports(name)) if other.startswith("run_") or inside(other, *own)] == []


def functions(path: Path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = node.body[0] if ast.get_docstring(node) is not None else None
            described = docstring.end_lineno - docstring.lineno + 1 if docstring else 0
            yield node.name, node.end_lineno - node.lineno + 1 - described


@pytest.mark.parametrize("name", MODULES)
def test_functions_are_under_50_lines(name):
    assert {function: lines for function, lines in functions(MODULES[name]) if lines >= 50} == {}


def test_few_functions_take_parsed_options():
    """Only commands do. Everything else has arguments with names and types."""
    found = []
    for name in modules_in("informin"):
        for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and "argparse.Namespace" in ast.unparse(node.args):
                found.append(f"{name}.{node.name}")
    assert [name for name in found if not inside(name, "informin.cli")] == [] and len(found) <= 11, found


def test_no_file_has_more_than_450_lines():
    """Of the library and at the top level. Checkpoints contain modeling_informin.py, so it cannot be divided."""
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in MODULES.items()}
    own = {name for name in lines if not inside(name, "benchmarks", "examples")}
    assert {"informin.studies.runner", "trainer_informin", "modeling_informin"} <= own
    assert {name: lines[name] for name in own if lines[name] > (550 if name == "modeling_informin" else 450)} == {}
