"""Open reports in headless Chromium: on a desktop and a phone, in light and dark mode, and on paper.

    pip install playwright && npm pack axe-core && tar xf axe-core-*.tgz
    python -m tools.report_checks --axe package/axe.min.js --screenshots FOLDER [RUN/report.html ...]

Without files, it makes the report of a fit on hostile texts: scripts, right-to-left text, 10,000 characters. It needs
Chromium (Debian's package chromium), but no browser of Playwright.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, Page, sync_playwright

from tools.browser_checks import ARABIC, DESKTOP, HOSTILE, PHONE, SCRIPT, Checks, violations

MOST = 3 * 2**20  # bytes


def main() -> int:
    """Check all pages. Returns 1 if a check failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, metavar="FILE.html")
    parser.add_argument("--axe", required=True, type=Path, metavar="FILE", help="axe.min.js")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--screenshots", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    checks = Checks()
    if args.screenshots:
        args.screenshots.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=args.chromium, args=["--no-sandbox"])
        for path in args.pages or [hostile_report(Path(made))]:
            size = path.stat().st_size
            checks(f"{path}: {size:,} bytes, under 3 MB", size < MOST)
            for scheme in ("light", "dark"):
                for viewport in (DESKTOP, PHONE):
                    check_report(checks, browser, path, viewport, scheme, args.axe, args.screenshots)
        browser.close()
    print(f"{checks.failed} failed")
    return int(checks.failed > 0)


def hostile_report(folder: Path) -> Path:
    """Fit random embeddings of general sentences and hostile ones, and return the report."""
    general = Path("informin/general_sentences.txt").read_text(encoding="utf-8").splitlines()[:100]
    texts = [*HOSTILE, "x" * 10_000, *(line for line in general if line)]
    (folder / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    np.save(folder / "vectors.npy", np.random.default_rng(0).normal(size=(len(texts), 32)).astype(np.float32))
    inputs = ["--embeddings", folder / "vectors.npy", "--train_file", folder / "texts.txt"]
    command = [sys.executable, "-m", "informin", "fit", *inputs, "--output_dir", folder / "hostile"]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
    return folder / "hostile" / "report.html"


def check_report(
    checks: Checks, browser: Browser, path: Path, viewport: dict, scheme: str, axe: Path, folder: Path | None
) -> None:
    """Open a report with a viewport and a color scheme, then as it is printed."""
    name = f"{path.parent.name}-{'phone' if viewport is PHONE else 'desktop'}-{scheme}"
    context = browser.new_context(viewport=viewport, color_scheme=scheme)
    page, problems, requests = context.new_page(), [], []
    page.on("console", lambda message: message.type in ("error", "warning") and problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.absolute().as_uri())
    checks(f"{name}: no requests to anything else", requests == [path.absolute().as_uri()], requests)
    width = page.evaluate("[document.scrollingElement.scrollWidth, innerWidth]")
    checks(f"{name}: no horizontal scrolling", width[0] <= width[1], width)
    if folder:
        page.screenshot(path=folder / f"{name}.png", full_page=True)
    check_texts(checks, page, name)
    checks(f"{name}: no console errors or warnings", not problems, problems)
    bad = violations(page, axe)
    checks(f"{name}: axe-core finds no serious problem", not bad, bad)
    page.emulate_media(media="print")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    checks(f"{name}: printed on white", background == "rgb(255, 255, 255)", background)
    if folder and viewport is DESKTOP and scheme == "dark":
        page.pdf(path=folder / f"{name}.pdf", format="A4")
    context.close()


def check_texts(checks: Checks, page: Page, name: str) -> None:
    """Check the verdict, the markup and the direction of texts, and the tooltips on the map."""
    verdict = page.get_by_role("region", name="Verdict").text_content() or ""
    checks(f"{name}: a verdict", len(verdict) > 50, verdict)
    checks(f"{name}: no script runs", page.evaluate("window.ran") is None)
    for text in page.locator("bdi", has_text=SCRIPT).all()[:1]:
        checks(f"{name}: markup is shown as text", text.text_content() == SCRIPT, text.text_content())
    for text in page.locator("bdi", has_text=ARABIC).all()[:1]:
        direction = text.evaluate("element => getComputedStyle(element).direction")
        checks(f"{name}: right-to-left text", direction == "rtl", direction)
    charts, titles = page.locator("svg").count(), page.locator("svg title").count()
    checks(f"{name}: charts", charts > 0, charts)
    if page.get_by_role("heading", name="Map").count():
        checks(f"{name}: each mark on the map has its text", titles > 50, titles)


if __name__ == "__main__":
    sys.exit(main())
