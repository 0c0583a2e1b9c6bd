"""A real browser for tests: Chromium, spoken to through its DevTools protocol over two pipes; no library, no port.

In: HTML files. Out: what scripts say, pictures, and everything that the page logged, threw or asked for.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 20.0
"""Seconds until an answer must have come; nothing is measured by it."""


def find_browser() -> str | None:
    """The path of a Chromium, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of one browser; `complaints` holds errors and warnings of its console, `requests` its addresses."""

    def __init__(self, program: str) -> None:
        self.folder = tempfile.mkdtemp(prefix="browser-")
        to_browser, self.writer = os.pipe()
        self.reader, from_browser = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"]
        command = [program, *flags, "--force-device-scale-factor=1", f"--user-data-dir={self.folder}", "about:blank"]
        # The protocol is spoken on descriptors 3 and 4. Low numbers may be among our own, so they are moved up first.
        script = f'exec 8<&{to_browser} 9>&{from_browser}; exec "$@" 3<&8 4>&9'
        self.process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command], pass_fds=(to_browser, from_browser), stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self.received = b""
        self.number = 0
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.session: str | None = None
        target = next(one for one in self.send("Target.getTargets")["targetInfos"] if one["type"] == "page")
        self.session = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.writer)
        os.close(self.reader)
        shutil.rmtree(self.folder, ignore_errors=True)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.writer, json.dumps(message).encode() + b"\0")
        number, end = self.number, time.monotonic() + PATIENCE
        while True:
            answer = self.receive(end - time.monotonic())
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.note(answer)

    def receive(self, patience: float) -> dict[str, Any]:
        """The next message of the browser."""
        while b"\0" not in self.received:
            assert select.select([self.reader], [], [], max(0.0, patience))[0], "the browser does not answer"
            part = os.read(self.reader, 1 << 20)
            assert part, "the browser has gone"
            self.received += part
        first, _, self.received = self.received.partition(b"\0")
        return json.loads(first)

    def note(self, event: dict[str, Any]) -> None:
        """Keep what a test may want to complain about."""
        values = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                details = values["exceptionDetails"]
                self.complaints.append(details.get("exception", {}).get("description", details["text"]))
            case "Runtime.consoleAPICalled" if values["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(values["args"]))
            case "Log.entryAdded" if values["entry"]["level"] in ("error", "warning"):
                self.complaints.append(values["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(values["request"]["url"])
            case _:
                pass

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def frame_says(self, script: str) -> Any:
        """The value of an expression in the page's one frame, which may live apart; `None` while there is no frame."""
        page, self.session = self.session, None
        try:
            targets = self.send("Target.getTargets")["targetInfos"]
            maybe_frame = next((one["targetId"] for one in targets if one["type"] == "iframe"), None)
            if maybe_frame is None:
                return None
            self.session = self.send("Target.attachToTarget", targetId=maybe_frame, flatten=True)["sessionId"]
            self.send("Log.enable")
            return self.run(script)
        finally:
            self.session = page

    def wait(self, script: str) -> None:
        """Until an expression is true."""
        self.until(lambda: bool(self.run(script)), script)

    def until(self, is_true: Callable[[], bool], name: str) -> None:
        end = time.monotonic() + PATIENCE
        while not is_true():
            assert time.monotonic() < end, f"never: {name}; {self.complaints}"
            time.sleep(0.02)

    def open(self, path: Path, width: int = 1280, height: int = 900, *, is_dark: bool = False) -> None:
        """Show a file until it says that it is ready."""
        self.visit(path.resolve().as_uri(), width, height, is_dark=is_dark)

    def visit(self, address: str, width: int = 1280, height: int = 900, *, is_dark: bool = False) -> None:
        """Show what lies at an address until it says that it is ready."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url=address)
        self.wait("document.documentElement?.dataset.ready === 'yes'")

    def place(self, selector: str) -> tuple[float, float]:
        """The middle of an element, scrolled into view."""
        quoted = json.dumps(selector)
        self.run(f"document.querySelector({quoted}).scrollIntoView({{block: 'center'}})")
        found = self.run(
            f"(() => {{const p = document.querySelector({quoted}).getBoundingClientRect();"
            "return [p.left + p.width / 2, p.top + p.height / 2];})()"
        )
        return float(found[0]), float(found[1])

    def hover(self, selector: str) -> None:
        """Put the pointer on the middle of an element."""
        x, y = self.place(selector)
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        x, y = self.place(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        """One key, by the name that pages know it under."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "Space": 32, "End": 35, "Home": 36}
        codes |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        name = " " if key == "Space" else key
        texts = {"Enter": "\r", "Space": " "}
        for kind in ("keyDown", "keyUp"):
            text = {"text": texts[key]} if kind == "keyDown" and key in texts else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=name, code=key, windowsVirtualKeyCode=codes[key], **text)

    def type(self, text: str) -> None:
        """A text, as if pasted where the cursor stands."""
        self.send("Input.insertText", text=text)

    def choose(self, selector: str, value: str) -> None:
        """Another entry of a list, as a user's choice reaches the page."""
        self.run(
            f"(() => {{const s = document.querySelector({json.dumps(selector)}); s.value = {json.dumps(value)};"
            "s.dispatchEvent(new Event('change', {bubbles: true}));})()"
        )

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """The page as a PNG file."""
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))
