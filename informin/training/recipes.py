"""Recipes: YAML files of options."""

from pathlib import Path
from typing import Any

import yaml

from informin.errors import UsageError

RECIPES = Path(__file__).parents[1] / "recipes"


def recipe_options(name: str) -> dict[str, Any]:
    """Return the options of a recipe: a YAML file, or the name of one in informin/recipes.

    Raises:
        UsageError: There is no such recipe, or the file has no options.
    """
    paths = {path.stem: path for path in sorted(RECIPES.glob("*.yaml"))}
    path = paths.get(name, Path(name))
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"is {name}", option="recipe", needed=f"a .yaml file, or one of: {', '.join(paths)}")
    with path.open(encoding="utf-8") as file:
        values = yaml.safe_load(file)
    if not isinstance(values, dict):
        raise UsageError(f"is {path}", option="recipe", needed="a file with lines of `option: value`")
    for option_name, value in values.items():
        if value is False and str(option_name).endswith("_strategy"):  # YAML reads a bare `no` as false
            values[option_name] = "no"
    return values
