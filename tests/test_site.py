"""The docs site builds without broken links, and its pages have the docstrings they refer to."""

import re
import subprocess
import sys

import pytest
import yaml

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


def test_lists_are_rendered_as_lists(site):
    """No paragraph or item contains the marker of another item, as it does if a line break is missing."""
    marker = re.compile(r"(?:^|\n)[*-] |[a-z]{3}[.:]\s[2-9]\. [A-Z]")
    for page in site.rglob("*.html"):
        blocks = re.findall(r"<(?:p|li)>(.*?)</(?:p|li)>", page.read_text(encoding="utf-8"), re.DOTALL)
        assert [block for block in blocks if marker.search(block)] == [], page


def test_the_log_is_not_on_the_site(site):
    assert not [page for page in site.rglob("*.html") if page.name in ("LOG.html", "2026-11.html")]
    assert 'href="log/' not in (site / "results.html").read_text(encoding="utf-8")


def test_diagrams_are_rendered_by_mermaid(site):
    assert (site / "architecture.html").read_text(encoding="utf-8").count('<pre class="mermaid">') == 2


def test_links_to_the_rest_of_the_repository(site):
    studies = (site / "studies.html").read_text(encoding="utf-8")
    assert "informin/studies/plan.py" in studies and 'plan.py"' not in studies  # code is named without a link
    assert 'src="repository/results/figures/adaptation-tsne.png"' in (site / "adapt.html").read_text(encoding="utf-8")
    assert (site / "repository/results/figures/adaptation-tsne.png").exists()


@pytest.mark.parametrize(
    "link, problem",
    [
        ("docs/training.md", None),
        ("docs/nowhere.md", "README.md: the link docs/nowhere.md leads nowhere"),
        ("docs/training.md#nothing", "does not contain an anchor '#nothing'"),
    ],
)
def test_a_broken_link_fails_the_build(link, problem, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/hooks.py").write_text((ROOT / "docs/hooks.py").read_text(encoding="utf-8"))
    (tmp_path / "docs/training.md").write_text("# Train\n")
    for name in ("CONTRIBUTING", "CHANGELOG"):
        (tmp_path / f"{name}.md").write_text(f"# {name}\n")
    (tmp_path / "README.md").write_text(f"# Home\n\n[a link]({link})\n")
    settings = {"site_name": "t", "strict": True, "hooks": ["docs/hooks.py"], "exclude_docs": "hooks.py\n"}
    settings["validation"] = {"links": {"anchors": "warn"}}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(settings))
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode == 0) == (problem is None) and (problem or "") in done.stderr
