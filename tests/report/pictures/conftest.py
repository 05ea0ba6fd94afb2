"""Headless Chromium over its own debugging pipe, where there is one: no driver, no port."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

OPTIONS = """--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run
--disable-background-networking --remote-debugging-pipe"""
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# A page of ours is drawn in a tenth of a second; a machine under load needs more.
PATIENCE_SECONDS = 60.0


def chromium() -> str | None:
    """The browser's program, None where there is none."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class BrowserError(Exception):
    """What the browser answered in place of a result."""


class Browser:
    """One window. Messages are JSON, each ended by a NUL byte (--remote-debugging-pipe)."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._buffer = b""
        self._number = 0
        self._session = ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the DevTools protocol, and its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE_SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._receive], [], [], max(0, end - time.monotonic()))
            if not ready:
                raise BrowserError(f"no answer in {PATIENCE_SECONDS:g} s")
            read = os.read(self._receive, 1 << 20)
            if not read:
                raise BrowserError("the browser has ended")
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def show(self, path: Path, width: int, *, scheme: str = "light", height: int = 900) -> None:
        """Load a page as a window of that width and colour scheme shows it."""
        self.events.clear()
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media="", features=features)
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def value(self, expression: str) -> Any:
        """What JavaScript's ``expression`` is in the page, or comes to, where it is a promise."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise BrowserError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def key(self, key: str, code: int) -> None:
        """Press and let go."""
        pressed = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **pressed, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **pressed)

    def complaints(self) -> list[str]:
        """Errors, warnings and refused loads since the page was asked for."""
        self.value("0")  # what is under way arrives before the answer
        told = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self.events if event.get("method") in told]

    def requested(self) -> list[str]:
        """Every address that was asked for."""
        sent = [each for each in self.events if each.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def pdf(self, path: Path) -> None:
        """The page as it is printed."""
        answer = self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=False)
        path.write_bytes(base64.b64decode(answer["data"]))


def _pipe(theirs: int) -> tuple[int, int]:
    """A pipe whose end at ``theirs`` has a number that the browser's own 3 and 4 do not take."""
    ends = list(os.pipe())
    moved = fcntl.fcntl(ends[theirs], fcntl.F_DUPFD, 10)
    os.close(ends[theirs])
    ends[theirs] = moved
    return ends[0], ends[1]


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser of its own, which is gone afterwards with all that it kept."""
    program = chromium()
    if program is None:
        raise BrowserError("no Chromium here")
    ours_in, theirs_out = _pipe(1)
    theirs_in, ours_out = _pipe(0)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        words = [program, *OPTIONS.split(), f"--user-data-dir={folder}", "about:blank"]
        # The browser reads descriptor 3 and writes 4.
        shell = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out} {theirs_in}<&- {theirs_out}>&-'
        given: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        given |= {"pass_fds": (theirs_in, theirs_out), "env": {**os.environ, "HOME": folder}}
        process = subprocess.Popen(["bash", "-c", shell, "browser", *words], **given)
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Browser(ours_out, ours_in)
        finally:
            os.close(ours_out)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(ours_in)


def why_not() -> str | None:
    """Why no page can be looked at here, or None."""
    if not (os.environ.get("CI") or os.environ.get("MOONCAKE_PREFLIGHT_REAL")):
        return "starts a browser: set MOONCAKE_PREFLIGHT_REAL=1 to allow"
    if chromium() is None:
        return "needs a browser (apt-get install chromium)"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    for item in items:
        if reason and item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def window() -> Iterator[Browser]:
    with browser() as opened:
        yield opened
