"""Recipes: YAML files of options."""

from pathlib import Path
from typing import Any

import yaml

from informin.errors import UsageError, error_line
from informin.option_types import with_home
from informin.texts.formats import lines

RECIPES = Path(__file__).parents[1] / "recipes"


def recipe_options(name: str) -> dict[str, Any]:
    """Return the options of a recipe: a YAML file, or the name of one in informin/recipes.

    Raises:
        UsageError: There is no such recipe, the file cannot be read, is not YAML in UTF-8, or has no options.
    """
    paths = {path.stem: path for path in sorted(RECIPES.glob("*.yaml"))}
    path = paths.get(name, Path(with_home(name)))
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"is {name}", option="recipe", needed=f"a .yaml file, or one of: {', '.join(paths)}")
    values = _read_yaml(path)
    if not isinstance(values, dict):
        raise UsageError(f"is {path}", option="recipe", needed="a file with lines of `option: value`")
    for option_name, value in values.items():
        if value is False and str(option_name).endswith("_strategy"):  # YAML reads a bare `no` as false
            values[option_name] = "no"
    return values


class _Loader(yaml.SafeLoader):
    """Refuses a key that a mapping has twice, of which YAML would use the last value."""

    def construct_mapping(self, node, deep=False):
        seen = []
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(problem=f"found {key.value} twice", problem_mark=key.start_mark)
            seen.append(key.value)
        return super().construct_mapping(node, deep)


def _read_yaml(path: Path) -> Any:
    """Return the content of a YAML file in UTF-8. Raises UsageError with the line of what cannot be read."""
    try:
        text = "".join(lines(path))
    except OSError as error:
        raise UsageError(f"is {path}, which cannot be read ({error.strerror})", option="recipe") from None
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:  # a ValueError of a date such as 2024-13-01
        place, found = str(path), error_line(error)
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
            line = min(error.problem_mark.line + 1, len(text.splitlines()))  # the end of the file is not in a line
            place, found = f"{path}, line {line}", " ".join(filter(None, [error.context, error.problem]))
        raise UsageError(f"{place}: {found}", needed="YAML with lines of `option: value`") from None
