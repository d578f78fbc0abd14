"""Find the recipes in informin/recipes by name."""

import difflib
from pathlib import Path

from informin.errors import UsageError
from informin.yamlfiles import read_mapping

RECIPES = Path(__file__).parents[1] / "recipes"


def recipe_file(name: str) -> Path:
    """Return the file of a recipe. Raise UsageError for an unknown name."""
    known = {path.stem: path for path in sorted(RECIPES.glob("*.yaml"))}
    if name not in known:
        similar = difflib.get_close_matches(name, known, n=1)
        fix = f"Did you mean {similar[0]}?" if similar else None
        raise UsageError(f"is {name}", option="recipe", needed=f"one of: {', '.join(known)}", fix=fix)
    return known[name]


def recipe_options(name: str, known: set[str]) -> dict:
    """Return the options of a recipe whose names are known; the rest apply only on the command line."""
    path = recipe_file(name)
    values = read_mapping(path, f"`recipe` {name}", "lines of `option: value`")
    return {option: value for option, value in values.items() if option in known}
