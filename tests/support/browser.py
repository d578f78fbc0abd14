"""A headless Chromium, driven by chromedriver through the W3C WebDriver protocol. It needs no package."""

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
BROWSERS = ("chrome", "chromium", "chromium-browser", "google-chrome")
SECONDS = 120  # that a busy machine may need
# The elements that end right of the screen. What an element clips or scrolls by itself is not wider than the screen.
WIDER = """
    const edge = document.documentElement.clientWidth + 1;
    return [...document.body.querySelectorAll('*')]
        .filter(one => one.getClientRects().length && one.getBoundingClientRect().right > edge)
        .map(one => one.outerHTML.slice(0, 100));
"""


def chosen_port(lines: Iterable[str]) -> int:
    """Return the port that chromedriver prints that it listens on."""
    for line in lines:
        if found := re.search(r"started successfully on port (\d+)", line):
            return int(found[1])
    raise RuntimeError("chromedriver did not start")


class Browser:
    """One page in a browser.

    Args:
        folder: An empty folder, for the profile.
    """

    def __init__(self, folder: Path):
        browser = next(filter(None, map(shutil.which, BROWSERS)), None)
        driver = shutil.which("chromedriver")
        if browser is None or driver is None:
            pytest.skip("needs Chromium and chromedriver: apt-get install chromium chromium-driver")
        self._process = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, text=True)
        self._url = f"http://127.0.0.1:{chosen_port(self._process.stdout)}"
        self.wait_for(lambda: self._request("GET", "/status")["ready"])
        options = {"binary": browser, "args": [*FLAGS, f"--user-data-dir={folder}"]}
        session = self._request("POST", "/session", capabilities={"alwaysMatch": {"goog:chromeOptions": options}})
        self._url += f"/session/{session['sessionId']}"

    def close(self) -> None:
        """End the browser and its driver."""
        self._request("DELETE", "")
        self._process.terminate()
        self._process.wait()

    def show(self, url: str, width: int = 1280, dark: bool = False) -> None:
        """Open a page on a screen of a width in CSS pixels."""
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._devtools("Emulation.setDeviceMetricsOverride", **screen)
        self._devtools("Emulation.setEmulatedMedia", features=[scheme])
        self._request("POST", "/url", url=url)

    def run(self, script: str, *values: Any) -> Any:
        """Return what a script returns; it reads the values as `arguments`."""
        return self._request("POST", "/execute/sync", script=script, args=list(values))

    def texts(self, selector: str) -> list[str]:
        """Return the text of each element that a CSS selector matches, as it is shown."""
        return self.run("return [...document.querySelectorAll(arguments[0])].map(one => one.innerText)", selector)

    def type(self, selector: str, text: str) -> None:
        """Type into an element. A line break presses Enter."""
        found = self._request("POST", "/element", using="css selector", value=selector)
        (element,) = found.values()
        self._request("POST", f"/element/{element}/value", text=text.replace("\n", "\ue007"))

    def click(self, selector: str) -> None:
        """Click the first element that a CSS selector matches."""
        self.run("document.querySelector(arguments[0]).click()", selector)

    def address(self) -> str:
        """Return the address of the page."""
        return self._request("GET", "/url")

    def wider_than_screen(self) -> list[str]:
        """Return the beginnings of the elements that are wider than the screen."""
        return self.run(WIDER)

    def screenshot(self, path: Path) -> None:
        """Write the whole page to a PNG file."""
        image = self._devtools("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(image))

    def wait_for(self, condition: Callable[[], Any]) -> Any:
        """Call a function until its value is true, and return the value."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            try:
                if value := condition():
                    return value
            except urllib.error.URLError:  # the page has just replaced an element
                pass
            time.sleep(0.1)
        raise TimeoutError(f"the condition was false for {SECONDS} seconds")

    def _devtools(self, command: str, **values: Any) -> dict:
        return self._request("POST", "/goog/cdp/execute", cmd=command, params=values)

    def _request(self, method: str, path: str, **content: Any) -> Any:
        data = json.dumps(content).encode() if method == "POST" else None
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=SECONDS) as response:
            return json.load(response)["value"]
