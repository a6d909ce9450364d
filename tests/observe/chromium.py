"""A headless Chromium, driven over the pipe of its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
PATIENCE = 60
"""Seconds that an answer may take."""
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Page:
    """One open page."""

    def __init__(self, writing: int, reading: int) -> None:
        self._writing, self._reading, self._number, self._session, self._left = writing, reading, 0, "", b""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Returns what the browser answers; keeps the events that come meanwhile."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self.events.append(answer)

    def wait_for(self, event: str, address: str = "") -> None:
        """Returns when an event has come since the last opening; address: how that of its frame begins."""

        def came(one: dict[str, Any]) -> bool:
            if one.get("method") != event:
                return False
            return not address or one["params"]["frame"]["url"].startswith(address)

        while not any(map(came, self.events)):
            self.events.append(self._next())

    def _next(self) -> Any:
        while b"\0" not in self._left:
            assert select.select([self._reading], [], [], PATIENCE)[0], "the browser says nothing any more"
            piece = os.read(self._reading, 1 << 20)
            assert piece, "the browser has gone"
            self._left += piece
        message, _, self._left = self._left.partition(b"\0")
        return json.loads(message)

    def open(
        self,
        path: Path | str,
        width: int,
        height: int = 900,
        *,
        dark: bool = False,
        touch: bool = False,
        still: bool = False,
    ) -> None:
        """Shows a file, or an address, in a window of this size; still: nothing is drawn by scripts."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2, mobile=touch)
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch, maxTouchPoints=2)
        self.prefer(dark)
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri() if isinstance(path, Path) else path)
        self.wait_for("Page.loadEventFired")
        if not still:
            self.settle()

    def prefer(self, dark: bool) -> None:
        """Tells pages which colours the system asks for."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def settle(self) -> None:
        """Returns when what was asked for has been drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def run(self, script: str) -> Any:
        """Returns the value of an expression of JavaScript."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def troubles(self) -> list[str]:
        """Returns the errors that the page recorded, that the browser saw, and the addresses that were asked for."""
        recorded = self.run("document.documentElement.dataset.errors || ''")
        seen = [
            json.dumps(one["params"])
            for one in self.events
            if one.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")
            or (one.get("method") == "Runtime.consoleAPICalled" and one["params"]["type"] == "error")
        ]
        asked = [
            one["params"]["request"]["url"] for one in self.events if one.get("method") == "Network.requestWillBeSent"
        ]
        outside = [address for address in asked if not address.startswith(("file:", "data:"))]
        return [*([recorded] if recorded else []), *seen, *outside]

    def picture(self, path: Path) -> None:
        """Writes a picture of the whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(answer["data"]))

    def printed(self, path: Path) -> None:
        """Writes the page as it would be printed."""
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"]))

    def wheel(self, x: float, y: float, by: float) -> None:
        """Turns the mouse wheel over a place."""
        self.call("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=by)
        self.settle()

    def mouse(self, *steps: tuple[str, float, float]) -> None:
        """Moves and presses the mouse: steps of "Moved", "Pressed" or "Released", and where."""
        down = 0
        for what, x, y in steps:
            down = {"Pressed": 1, "Released": 0}.get(what, down)
            self.call(
                "Input.dispatchMouseEvent", type=f"mouse{what}", x=x, y=y, button="left", buttons=down, clickCount=1
            )
        self.settle()

    def pinch(self, *moments: tuple[tuple[float, float], tuple[float, float]]) -> None:
        """Puts two fingers on the screen, moves them from moment to moment, and takes them off."""
        for place, fingers in enumerate(moments):
            points = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(fingers)]
            self.call("Input.dispatchTouchEvent", type="touchMove" if place else "touchStart", touchPoints=points)
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        self.settle()

    def key(self, key: str) -> None:
        """Presses a key."""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key if len(key) == 1 else "")
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.settle()


@contextmanager
def chromium(folder: Path) -> Iterator[Page]:
    """Runs a browser whose files are in a folder; yields a page of it."""
    assert CHROMIUM
    to_read, writing = os.pipe()
    reading, to_write = os.pipe()
    command = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
    flags = (*FLAGS, f"--user-data-dir={folder}", "about:blank")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", command, CHROMIUM, *flags],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    os.close(to_read)
    os.close(to_write)
    try:
        yield Page(writing, reading)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(writing)
        os.close(reading)
