"""The layers of the package according to its imports."""

import ast
import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support import forked

LAYERS = [  # a layer may import itself and those above it
    (
        "informin",  # lazily imported names only
        "informin.errors",
        "informin.options",
        "informin.files",
        "informin.texts",
        "informin.hub",
        "informin.distributed",
    ),
    ("modeling_informin",),
    ("informin.objectives", "informin.views"),
    ("informin.fast",),
    ("informin.model",),
    ("informin.evaluation",),
    ("informin.training",),
    ("informin.publishing",),
    ("trainer_informin",),
    ("informin.frozen",),
    ("informin.check",),
    ("informin.cli", "informin.__main__"),
]
OUTSIDE = ("experiments", "tools", "tests", "examples")
SOURCES = [*(ROOT / "informin").rglob("*.py"), ROOT / "modeling_informin.py", ROOT / "trainer_informin.py"]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> set[str]:
    """Return the modules that a source imports anywhere, except for type checkers."""
    tree = tree_of(path)
    checked = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if node in checked:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def layer(name: str) -> int | None:
    """Return the layer of a module; None for one that no layer lists, and for other packages."""
    for number, modules in enumerate(LAYERS):
        if name in modules or any(name.startswith(f"{module}.") for module in modules if module != "informin"):
            return number
    return None


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_imports_flow_one_way(path):
    names = imports(path)
    own = layer(module_name(path))
    assert own is not None, "no layer lists this module"
    assert [name for name in names if name.partition(".")[0] in OUTSIDE] == []
    if module_name(path) == "informin":  # it imports a name when somebody asks for it
        return
    assert [name for name in names if (other := layer(name)) is not None and other > own] == []


def test_a_module_without_a_layer_is_found():
    """Such a module could import anything."""
    assert layer("informin.helpers") is None
    assert layer("informin.training.helpers") == layer("informin.training")


def test_modeling_file_imports_nothing_of_this_project():
    """It is copied beside every checkpoint, and imported from there."""
    names = {name.partition(".")[0] for name in imports(ROOT / "modeling_informin.py")}
    assert names <= {*sys.stdlib_module_names, "torch", "transformers", "safetensors"}


def test_bm25s_is_imported_by_functions_only():
    """It starts jax where it is installed, and jax takes most of a GPU's memory."""
    for path in SOURCES:
        tops = [ast.unparse(node) for node in tree_of(path).body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert not [line for line in tops if line.startswith(("import bm25s", "from bm25s"))], path


def test_what_needs_no_training_does_not_import_it():
    """In a process that has other packages already, and imports this one again."""
    script = """
import sys
from tests.support.forked import forget_this_package
forget_this_package()
from informin import Index, LinearAdapter, distill, embed, evaluate, fit, load_model, speed_up
print("imported", *(name for name in sys.modules if name.startswith("informin.training")))
"""
    done = forked.run(forked.python(script, []))
    assert done.stdout.split() == ["imported"], done.stderr


def test_missing_inputs_are_reported_before_the_slow_imports(tmp_path):
    """A run without the Hub ends within seconds: its data and models are named before torch is imported."""
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("model_name: no-such-owner/no-such-model\neval_strategy: no\n", encoding="utf-8")
    script = """
import sys
from informin.cli.train import main
code = main(["--recipe", sys.argv[1], "--objective", "simcse"])
print(code, "torch" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(recipe)],
        cwd=ROOT,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["2", "False"]
    assert [option for option in ("--model_name", "--train_file", "--eval_pairs") if option in done.stderr] == [
        "--model_name",
        "--train_file",
    ]
