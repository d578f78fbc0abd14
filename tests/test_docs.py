"""The documentation: links, paths and options exist."""

import functools
import re
from collections import defaultdict
from pathlib import Path

import pytest

from informin.cli import COMMANDS, flags_of, train_names
from informin.training import inputs
from tests.conftest import ROOT

PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
PAGES += [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "experiments/results").glob("*.md"))]
CURRENT = [page for page in PAGES if page.name != "CHANGELOG.md"]  # which also describes the past
TOP = "informin|configs|docs|examples|experiments|model_cards|tests|tools"
# Options of other programs on our pages.
OTHERS = {
    "config_file",
    "num_processes",
    "nproc_per_node",
    "nnodes",
    "max_restarts",
    "no-deps",
    "signal",
    "signals-to-handle",
    "require-hashes",
    "check",
    "lines",
    "numeric-suffixes",
    "suffix-length",
    "additional-suffix",
    "flavor",
    "timeout",
    "secrets",
    "with",
}
OTHERS |= {"array", "gpus", "cpus-per-task", "requeue"}  # of sbatch
OTHERS |= {"help", "config", "recipe", "machine_rank", "main_process_ip", "rdzv_backend", "rdzv_endpoint", "import"}


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> list[str]:
    """Return the anchors of a page's headings, as on GitHub."""
    headings = re.findall(r"^#+ (.*)$", text(page), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_exist(page):
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text(page)):
        path, _, anchor = target.partition("#")
        goal = page.parent / path if path else page
        assert goal.exists(), target
        assert not anchor or anchor in anchors(goal), target


def exists(word: str, folder: Path) -> bool:
    """Return whether a path, which may leave out its suffix, exists below a folder."""
    return bool([*folder.glob(word), *folder.glob(f"{word}.*")])


@pytest.mark.parametrize("page", CURRENT, ids=name)
def test_paths_on_the_pages_exist(page):
    """Words such as experiments/configs/main.yaml, from the root or from the page. A * matches any part."""
    words = set(re.findall(rf"(?<![\w/.$-])((?:{TOP})/[\w./*-]+)(?![\w/$\{{-])", text(page)))
    words = {word.rstrip("./") for word in words if "NAME" not in word}
    assert [word for word in words if not exists(word, ROOT) and not exists(word, page.parent)] == []


@functools.cache
def known_options() -> frozenset[str]:
    """Return the options of all commands, of the scripts, and of other programs that the pages name."""
    sources = [path for folder in ("experiments", "tools") for path in (ROOT / folder).rglob("*.py")]
    known = {option for path in sources for option in re.findall(r'"--(\w+)"', text(path))} | OTHERS
    known |= train_names.option_names() | {"version"}
    return frozenset(known | {option for command in COMMANDS for option in flags_of(command)})


@pytest.mark.parametrize("page", CURRENT, ids=name)
def test_options_on_the_pages_exist(page):
    known = known_options()
    if page.stem == "migrating":  # those of other programs, which an error explains, and of SimCSE's other scripts
        known |= {*inputs.OLD_NAMES, *inputs.LEFT_OUT, "path", "task_set", "mode"}
    named = re.findall(r"(?<![\w-])--([a-z][\w-]*)", text(page))
    assert [option for option in named if option not in known] == []


def test_each_command_on_the_pages_writes_to_its_own_folder():
    """Whoever tries one page after another does not meet a folder in use."""
    commands = defaultdict(set)
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for command, folder in re.findall(r"^(informin .*--output_dir ([a-z]\S*).*)$", text(page), re.MULTILINE):
            commands[folder].add(command)
    assert len(commands) > 10
    assert {folder: found for folder, found in commands.items() if len(found) > 1} == {}
