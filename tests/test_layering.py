"""The layering of the modules, read from their imports with ast, and the sizes they keep to."""

import ast
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

SOURCES = sorted(
    {
        *ROOT.glob("*.py"),
        *(path for name in ("informin", "benchmarks", "examples") for path in (ROOT / name).rglob("*.py")),
    }
)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in SOURCES}


def imports_in(source: str, package: str, known) -> set[str]:
    """The modules a source imports anywhere in it: of `from a import b`, a.b where that is a known module, else a.

    Args:
        package: the package the source belongs to, for relative imports.
        known: the names of this project's modules.
    """
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = {f"{base}.{alias.name}" for alias in node.names}
            found |= {name if name in known else base for name in names}
    return found


def imports(name: str) -> set[str]:
    path = MODULES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return imports_in(path.read_text(encoding="utf-8"), package, MODULES)


def reachable(name: str) -> set[str]:
    """Everything that importing a module imports through this project's modules, their packages included."""
    found, todo = set(), [name]
    while todo:
        module = todo.pop()
        if module not in found:
            found.add(module)
            packages = {module.rsplit(".", depth)[0] for depth in range(1, module.count(".") + 1)}
            todo += (imports(module) | packages) if module in MODULES else []
    return found


def inside(name: str, *packages: str) -> bool:
    """Whether a module is one of the packages or in one of them."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def modules_in(*packages: str) -> list[str]:
    return [name for name in MODULES if inside(name, *packages)]


def ours(names: set[str]) -> set[str]:
    """This project's modules among them, existing or not."""
    roots = {name.partition(".")[0] for name in MODULES} - {""}
    return {name for name in names if name.partition(".")[0] in roots}


def test_imports_are_read_wherever_they_stand():
    source = """
import a.b, c as d
from informin import errors as e
from informin.training import sentences as data
from . import sibling
from .sibling import thing
from ..up import other
def f():
    from late import x
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


def test_the_modeling_file_stands_alone():
    """It is copied beside every checkpoint and imported from there."""
    allowed = (*sys.stdlib_module_names, "torch", "transformers")
    assert [name for name in imports("modeling_informin") if not inside(name, *allowed)] == []


@pytest.mark.parametrize("name", modules_in("informin.objectives"))
def test_objectives_know_no_model_no_trainer_and_no_arguments(name):
    allowed = ("informin.distributed", "informin.errors", "informin.objectives")
    assert [found for found in ours(imports(name)) if not inside(found, *allowed)] == []
    assert [found for found in reachable(name) if inside(found, "transformers")] == []


@pytest.mark.parametrize(
    "name",
    modules_in(
        "informin.evaluation", "informin.evaluation.geometry", "informin.figures.plots", "informin.figures.redundancy"
    ),
)
def test_evaluation_and_analysis_know_no_model(name):
    forbidden = (
        "modeling_informin",
        "trainer_informin",
        "informin.encoders.loading",
        "informin.objectives",
        "transformers",
    )
    assert [found for found in reachable(name) if inside(found, *forbidden)] == []


@pytest.mark.parametrize("name", modules_in("informin"))
def test_the_library_knows_no_trainer(name):
    assert [found for found in reachable(name) if inside(found, "trainer_informin")] == []


@pytest.mark.parametrize("name", MODULES)
def test_nothing_imports_scripts_benchmarks_or_examples(name):
    found = ours(imports(name))
    assert [other for other in found if other.startswith("run_") or inside(other, "benchmarks", "examples")] == []


def functions(path: Path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = node.body[0] if ast.get_docstring(node) is not None else None
            described = docstring.end_lineno - docstring.lineno + 1 if docstring else 0
            yield node.name, node.end_lineno - node.lineno + 1 - described


@pytest.mark.parametrize("name", MODULES)
def test_functions_are_under_50_lines(name):
    assert {function: lines for function, lines in functions(MODULES[name]) if lines >= 50} == {}


@pytest.mark.parametrize(
    "name, most", [("trainer_informin", 250), *((n, 150) for n in MODULES if n.startswith("run_"))]
)
def test_sizes(name, most):
    assert len(MODULES[name].read_text(encoding="utf-8").splitlines()) < most
