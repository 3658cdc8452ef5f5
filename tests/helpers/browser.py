"""A headless Chromium, spoken to over its debugging pipe: no package, no port. Only what the tests of pages need."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-quic", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip


def find_browser() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """A page that is loaded. `messages`: errors and warnings of the console and of the network so far."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    @property
    def messages(self) -> list[str]:
        return self._browser.messages

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, as JSON carries it."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page, however long."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)


class Browser:
    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._buffer = b""
        self._number = 0
        self._events: list[str] = []
        self.messages: list[str] = []

    def open(self, path: Path, width: int, height: int) -> Page:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        page.call("Page.navigate", url=path.resolve().as_uri())
        while "Page.loadEventFired" not in self._events:
            self._note(self._receive())
        return page

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        os.write(self._to, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._from, 1 << 20)
            assert chunk, "the browser ended"
            self._buffer += chunk
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method", ""), event.get("params", {})
        self._events.append(method)
        if method == "Log.entryAdded":
            self.messages.append(parameters["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.messages.append(str(parameters["args"]))
        elif method == "Runtime.exceptionThrown":
            self.messages.append(str(parameters["exceptionDetails"]))
        elif method == "Network.requestWillBeSent" and not parameters["request"]["url"].startswith(("file:", "data:")):
            self.messages.append(f"asks the network for {parameters['request']['url']}")


@contextmanager
def open_page(path: Path, width: int, height: int, profile: Path) -> Iterator[Page]:
    """`profile`: an empty folder for the browser's own files. It ends with the block."""
    browser_reads, to_browser = os.pipe()
    from_browser, browser_writes = os.pipe()
    command = f'exec "$0" "$@" 3<&{browser_reads} 4>&{browser_writes}'
    process = subprocess.Popen(
        ["bash", "-c", command, find_browser(), *FLAGS, f"--user-data-dir={profile}"],
        pass_fds=(browser_reads, browser_writes),
        stderr=subprocess.DEVNULL,
    )
    os.close(browser_reads)
    os.close(browser_writes)
    try:
        browser = Browser(to_browser, from_browser)
        yield browser.open(path, width, height)
        browser.call("Browser.close")
        process.wait(timeout=20)
    finally:
        process.kill()
        process.wait()
        os.close(to_browser)
        os.close(from_browser)
