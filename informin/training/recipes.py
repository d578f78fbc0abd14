"""The recipes in informin/recipes, by name."""

import difflib
from pathlib import Path

from informin.errors import UsageError
from informin.yamlfiles import read_mapping

RECIPES = Path(__file__).parents[1] / "recipes"


def recipe_file(name: str) -> Path:
    """The file of a recipe. Raises UsageError where there is none."""
    known = {path.stem: path for path in sorted(RECIPES.glob("*.yaml"))}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UsageError(f"`recipe` {name} is unknown.{hint} Needed of: {', '.join(known)}.")
    return known[name]


def recipe_options(name: str, known: set[str]) -> dict:
    """The options of a recipe that are among these; the others are of files and cards, which only scripts read."""
    path = recipe_file(name)
    values = read_mapping(path, f"`recipe` {name}", "lines of `option: value`")
    return {option: value for option, value in values.items() if option in known}
