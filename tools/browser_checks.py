"""Drive the search page in headless Chromium, as a visitor would, and report what is wrong with it.

    pip install playwright && npm pack axe-core && tar xf axe-core-*.tgz
    python -m tools.browser_checks MODEL OTHER --axe package/axe.min.js --screenshots FOLDER

It needs Chromium (Debian's package chromium), but no browser of Playwright.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

SCRIPT = '<script>window.ran = 1</script><img src="x" onerror="window.ran = 2"> ${window.ran = 3} {{ran}}'
ARABIC = "القطة نائمة على السجادة في الغرفة الكبيرة"
LONG = "a very long sentence about ships " * 300
NO_SPACES = "Donaudampfschifffahrtsgesellschaft" * 30
HOSTILE = (SCRIPT, ARABIC, LONG, NO_SPACES)
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
SERIOUS = ("serious", "critical")
BOX = "Sentence to search for"


class Checks:
    """Counts checks and prints each of them."""

    def __init__(self) -> None:
        self.failed = 0

    def __call__(self, what: str, passed: bool, found: object = "") -> None:
        self.failed += not passed
        print(f"{'ok    ' if passed else 'FAILED'}  {what}{'' if passed else f': {found}'}", flush=True)


def main() -> int:
    """Run all checks. Returns 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs=2, metavar="MODEL")
    parser.add_argument("--axe", required=True, metavar="FILE", help="axe.min.js")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--screenshots", metavar="FOLDER")
    args = parser.parse_args()
    checks = Checks()
    folder = Path(args.screenshots) if args.screenshots else None
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=args.chromium, args=["--no-sandbox"])
        with served([*args.models, "--train_file", str(hostile_sentences(Path(data)))]) as url:
            for scheme in ("light", "dark"):
                for viewport in (DESKTOP, PHONE):
                    check_page(checks, browser, url, viewport, scheme, Path(args.axe), folder)
        browser.close()
    print(f"{checks.failed} failed")
    return int(checks.failed > 0)


def hostile_sentences(folder: Path) -> Path:
    """Write the package's general sentences and hostile ones, with labels."""
    lines = Path("informin/general_sentences.txt").read_text(encoding="utf-8").splitlines()
    rows = [{"text": text, "label": f"part {8 * i // len(lines) + 1}"} for i, text in enumerate(lines)]
    rows += [{"text": text, "label": "<b>hostile</b>"} for text in HOSTILE]
    path = folder / "sentences.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


@contextmanager
def served(arguments: list[str]) -> Iterator[str]:
    """Yield the URL of `informin search` while it runs."""
    command = [sys.executable, "-m", "informin", "search", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            found = (re.search(r"http://\S+", line) for line in process.stdout)
            url = next((match[0] for match in found if match), None)
            if url is None:
                raise SystemExit(f"{' '.join(command)} ended without a page")
            yield url
        finally:
            process.terminate()


def check_page(
    checks: Checks, browser: Browser, url: str, viewport: dict, scheme: str, axe: Path, folder: Path | None
) -> None:
    """Open the page with a viewport and a color scheme, and go through its tabs."""
    name = f"{'phone' if viewport is PHONE else 'desktop'}-{scheme}"
    context = browser.new_context(viewport=viewport, color_scheme=scheme, has_touch=viewport is PHONE)
    page, problems, hosts = context.new_page(), [], set()
    page.on("console", lambda message: message.type in ("error", "warning") and problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: hosts.add(request.url.split("/")[2] if "//" in request.url[:9] else ""))
    page.goto(url)
    expect(page.get_by_label(BOX)).to_be_visible(timeout=60_000)

    def finish(tab: str) -> None:
        width = page.evaluate("[document.scrollingElement.scrollWidth, innerWidth]")
        checks(f"{name}, {tab}: no horizontal scrolling", width[0] <= width[1], width)
        bad = violations(page, axe)
        checks(f"{name}, {tab}: axe-core finds no serious problem", not bad, bad)
        if folder:
            page.screenshot(path=folder / f"{name}-{tab}.png")

    check_search(checks, page, name, finish)
    check_tabs(checks, page, name, finish)
    local = {url.split("/")[2], ""}
    checks(f"{name}: requests only to the page's own address", hosts <= local, hosts)
    checks(f"{name}: no console errors or warnings", not problems, problems)
    context.close()


def check_search(checks: Checks, page: Page, name: str, finish) -> None:
    """Search by keyboard: an ordinary query, an empty one, and hostile ones."""
    box = page.get_by_label(BOX)
    focused = box.evaluate("element => element === document.activeElement")
    checks(f"{name}: the search box has the focus", focused)

    def search(query: str) -> str:
        page.evaluate("document.querySelector('[role=status], [role=alert]').dataset.old = 1")
        box.fill(query)
        box.press("Enter")
        expect(page.locator("[data-old]")).to_have_count(0, timeout=30_000)
        return page.locator("[role=status]").first.text_content() or ""

    status = search("a boat on the river")
    checks(f"{name}: ten sentences per model", page.locator(".hits > li").count() == 20, status)
    checks(f"{name}: rank changes are marked", page.locator(".hits .up, .hits .down, .hits .same").count() == 20)
    times = [int(re.search(r"(\d+) ms", search(query))[1]) for query in ("a dog", "a sea", "a boat on the river")]
    print(f"        {name}: searches took {', '.join(map(str, times))} ms")
    finish("results")
    checks(f"{name}: an empty query explains what to do", search("  ").startswith("Type a few words"))
    finish("empty")
    status = search("x " * 5_000)
    checks(f"{name}: 10,000 characters", "longer than the maximum length" in status, status)
    search(SCRIPT)
    first = page.locator(".hits .sentence").first
    checks(f"{name}: markup is shown as text", first.text_content() == SCRIPT, first.text_content())
    checks(f"{name}: no script in a sentence runs", page.evaluate("window.ran") is None)
    search(ARABIC)
    direction = page.locator(".hits .sentence", has_text=ARABIC).first.evaluate("e => getComputedStyle(e).direction")
    checks(f"{name}: right-to-left sentences", direction == "rtl", direction)
    finish("rtl")
    search(LONG)
    folded = page.locator(".hits details").first
    checks(f"{name}: long sentences are folded", folded.count() == 1 and not folded.evaluate("e => e.open"))
    folded.locator("summary").press("Enter")
    checks(f"{name}: and opened by keyboard", folded.evaluate("e => e.open"))
    finish("long")
    search(NO_SPACES)
    finish("no-spaces")


def check_tabs(checks: Checks, page: Page, name: str, finish) -> None:
    """Open the map and the report by keyboard, and read a sentence on the map."""
    for tab in ("Map", "Report"):
        button = page.get_by_role("tab", name=tab)
        button.focus()
        button.press("Enter")
        page.wait_for_timeout(1_500)
        checks(f"{name}: the tab {tab} opens by keyboard", button.get_attribute("aria-selected") == "true")
        if tab == "Map":
            check_map(checks, page, name)
        finish(tab.lower())


def check_map(checks: Checks, page: Page, name: str) -> None:
    """Point at a dot, and go to the next one by keyboard."""
    drawing, caption = page.locator(".map svg").first, page.locator(".map-caption").first
    hint = caption.text_content()
    dot = drawing.locator("circle").nth(drawing.locator("circle").count() // 2)
    dot.scroll_into_view_if_needed()
    dot.hover(force=True)
    pointed = caption.text_content() or ""
    checks(f"{name}: a dot on the map shows its sentence", pointed != hint and len(pointed) > 10, pointed)
    page.locator(".map").first.press("ArrowRight")
    checks(f"{name}: an arrow key shows the next one", caption.text_content() not in (hint, pointed))


def violations(page: Page, axe: Path) -> list[str]:
    """Return the serious and critical problems that axe-core finds, with the elements concerned."""
    page.evaluate(axe.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [
        f"{one['id']} ({one['impact']}): {'; '.join(node['html'][:160] for node in one['nodes'][:3])}"
        for one in found
        if one["impact"] in SERIOUS
    ]


if __name__ == "__main__":
    sys.exit(main())
