"""Lets the pages of the docs site link to other files of the repository, as they do on GitHub.

README.md becomes the home page. Pages and images outside docs/ that a page links to are added under repository/. A link
to anything else, such as source code, becomes plain text. A link to a missing file ends the build.
"""

import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")
REFERENCE = re.compile(r"^(\[[^\]]+\]: )(?!https?:)([^\s#]+)(#\S*)?$", re.MULTILINE)
SHOWN = (".md", ".png", ".svg")


def uri_of(path: Path) -> str:
    """Where a file of the repository is on the site, relative to its root."""
    if path == ROOT / "README.md":
        return "index.md"
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    return (PurePosixPath("repository") / path.relative_to(ROOT).as_posix()).as_posix()


def target_of(page: Path, link: str) -> Path:
    """The file or folder that a link in a page leads to."""
    target = Path(os.path.normpath(page.parent / link))
    if not target.exists() or not target.is_relative_to(ROOT):
        raise PluginError(f"{page.relative_to(ROOT)}: the link {link} leads nowhere.")
    return target


def is_shown(path: Path) -> bool:
    """Whether a file is on the site."""
    return path.suffix in SHOWN


def links_in(page: Path) -> set[Path]:
    """The pages and images that a page links to."""
    text = page.read_text(encoding="utf-8")
    links = [match[3] for match in LINK.finditer(text)] + [match[2] for match in REFERENCE.finditer(text)]
    return {target for target in (target_of(page, link) for link in links) if is_shown(target)}


def on_files(files, config):
    """Adds README.md, and what is linked to outside docs/, directly or through other pages."""
    todo = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    todo += [Path(file.abs_src_path) for file in files if file.src_uri.endswith(".md")]
    seen = set()
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        if not path.is_relative_to(DOCS):
            files.append(File.generated(config, uri_of(path), abs_src_path=str(path)))
        if path.suffix == ".md":
            todo += links_in(path)
    return files


def on_page_markdown(markdown, page, config, files):
    """Links by their places on the site."""
    source = Path(page.file.abs_src_path)
    here = PurePosixPath(page.file.src_uri).parent

    def moved(link: str) -> str | None:
        target = target_of(source, link)
        return os.path.relpath(uri_of(target), here) if is_shown(target) else None

    def inline(match: re.Match) -> str:
        place = moved(match[3])
        return match[2] if place is None else f"{match[1]}[{match[2]}]({place}{match[4] or ''})"

    def reference(match: re.Match) -> str:
        place = moved(match[2])
        return match[0] if place is None else f"{match[1]}{place}{match[3] or ''}"

    return REFERENCE.sub(reference, LINK.sub(inline, markdown))
