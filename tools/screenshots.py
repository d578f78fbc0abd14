r"""Take the README's screenshots of the search page, and of a report, with headless Chromium.

    pip install playwright
    python -m tools.screenshots --search MODEL OTHER --sentences FILE --query QUERY --report report.html

Writes docs/images/search-page.png and docs/images/report.png. The commands of the images there:

    informin fit --model_name all-MiniLM-L6-v2 --train_file ../shared/data/domain/banking77_train.tsv \
        --output_dir all-MiniLM-L6-v2-banking77
    python -m tools.screenshots --search all-MiniLM-L6-v2 all-MiniLM-L6-v2-banking77 \
        --sentences ../shared/data/domain/banking77_test.tsv \
        --query "I lost my phone, can I still use the app?" --report all-MiniLM-L6-v2-banking77/report.html
"""

import argparse
from pathlib import Path

from playwright.sync_api import Browser, expect, sync_playwright

from tools.browser_checks import BOX, served

IMAGES = Path("docs/images")
WIDTH, HEIGHT = 1000, 640
LARGEST = 150_000  # bytes of an image


def main() -> None:
    """Take the screenshots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--search", nargs=2, metavar="MODEL")
    parser.add_argument("--sentences", metavar="FILE")
    parser.add_argument("--query")
    parser.add_argument("--report", metavar="FILE")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    args = parser.parse_args()
    IMAGES.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=args.chromium, args=["--no-sandbox"])
        if args.search:
            with served([*args.search, "--train_file", args.sentences]) as url:
                search_page(browser, url, args.query)
        if args.report:
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            page.goto(Path(args.report).resolve().as_uri())
            save(page, "report")
        browser.close()


def search_page(browser: Browser, url: str, query: str) -> None:
    """Search, and save the results."""
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
    page.goto(url)
    for text in ("the first search takes longer", query):
        page.get_by_label(BOX).fill(text, timeout=60_000)
        page.get_by_label(BOX).press("Enter")
        expect(page.locator(".hits")).to_have_count(2, timeout=30_000)
        page.wait_for_timeout(3_000)
    save(page, "search-page")


def save(page, name: str) -> None:
    """Save a screenshot of what the window shows."""
    path = IMAGES / f"{name}.png"
    page.screenshot(path=path)
    size = path.stat().st_size
    print(f"{path}: {size:,} bytes")
    if size > LARGEST:
        raise SystemExit(f"{path} is larger than {LARGEST:,} bytes: use a smaller window")


if __name__ == "__main__":
    main()
