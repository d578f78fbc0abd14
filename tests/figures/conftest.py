"""Fixtures shared by the tests in this folder."""

from functools import cache
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from informin.figures import plots, run_plots
from tests.figures.plots_helpers import FIGURES


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return the files of a figure, drawn on first use, and those of a second call."""
    folder = tmp_path_factory.mktemp("pictures")

    @cache
    def draw(name: str, again: bool = False) -> tuple[Path, Path, Path]:
        # The part of the stem after the dot is no suffix.
        return FIGURES[name](folder / f"{name}-{again}" / "new" / "figure.v1")

    return draw


@pytest.fixture
def figure_of(monkeypatch):
    """Return the figure that a drawing function would save."""

    def draw(function, *args, **options) -> Figure:
        with monkeypatch.context() as patch:
            for module in (plots, run_plots):
                patch.setattr(module, "save", lambda figure, *_: figure)
            return function(*args, "unused", **options)

    return draw
