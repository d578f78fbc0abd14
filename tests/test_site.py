"""The docs site builds without broken links, and its pages have the docstrings they refer to."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install -r docs/requirements.txt")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_in_the_navigation(site):
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        assert f": {page.relative_to(ROOT / 'docs')}\n" in listed
        assert (site / page.relative_to(ROOT / "docs").with_suffix(".html")).exists()


def test_reference_pages_have_the_docstrings(site):
    for page, words in {
        "trainer": "InforMinTrainer.encode",
        "arguments": "InforMinTrainingArguments",
        "objectives": "informin.objectives.contrast.contrast",
        "modeling": "InforMinMixin",
    }.items():
        assert words in (site / "reference" / f"{page}.html").read_text(encoding="utf-8"), page
