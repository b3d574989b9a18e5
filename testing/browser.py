"""A headless Chromium, driven over its DevTools protocol: how a page looks, what it reports."""

import asyncio
import base64
import contextlib
import os
import pathlib
import re
import shutil
import signal
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
MISSING = f"no Chromium is installed: install one of {', '.join(PROGRAMS)}"

_LISTENS = re.compile(rb"DevTools listening on (ws://\S+)")


def find() -> str | None:
    """Return the program; None where there is none."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Page:
    """A page of a browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, session: str) -> None:
        self._socket = socket
        self._session = session
        self._number = 0
        self.complaints: list[str] = []
        """Errors and warnings of the console, and what could not be loaded."""
        self.requests: list[str] = []
        """The addresses that were loaded."""
        self._loaded = False

    async def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol."""
        self._number += 1
        number = self._number
        await self._socket.send_json(
            {"id": number, "method": method, "params": parameters, "sessionId": self._session}
        )
        while True:
            message = await self._receive()
            if message.get("id") == number and message.get("sessionId") == self._session:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]

    async def open(self, file: pathlib.Path) -> None:
        """Show a file, and wait until it is loaded."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        self._loaded = False
        await self.call("Page.navigate", url=file.as_uri())
        while not self._loaded:
            await self._receive()

    async def resize(self, width: int) -> None:
        """Give the window a width in CSS pixels."""
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.call("Emulation.setDeviceMetricsOverride", **metrics)

    async def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    async def set_medium(self, medium: str) -> None:
        """Show the page as on a medium of CSS: screen or print."""
        await self.call("Emulation.setEmulatedMedia", media=medium)

    async def print_pdf(self, file: pathlib.Path, paper: tuple[float, float]) -> None:
        """Write the page as it is printed.

        Args:
            file: the PDF.
            paper: width and height in inches.
        """
        width, height = paper
        answer = await self.call("Page.printToPDF", paperWidth=width, paperHeight=height)
        file.write_bytes(base64.b64decode(answer["data"]))

    async def _receive(self) -> Any:
        message = await self._socket.receive_json()
        parameters = message.get("params", {})
        match message.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Runtime.exceptionThrown":
                self.complaints.append(parameters["exceptionDetails"]["text"])
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning"):
                self.complaints.append(str(parameters["args"]))
            case "Log.entryAdded":
                self.complaints.append(parameters["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
        return message


@contextlib.asynccontextmanager
async def opened(folder: pathlib.Path) -> AsyncIterator[Page]:
    """Start a browser with an empty page, and end it.

    Args:
        folder: an empty folder for its profile.
    """
    program = find()
    if program is None:
        raise RuntimeError(MISSING)
    process = await asyncio.create_subprocess_exec(
        program,
        *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
        *("--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # the program of a distribution starts others
    )
    try:
        address = await _address(process)
        async with (
            aiohttp.ClientSession() as client,
            client.ws_connect(address, max_msg_size=0) as socket,
        ):
            yield Page(socket, await _attach(socket))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _address(process: asyncio.subprocess.Process) -> str:
    if process.stderr is None:
        raise RuntimeError("the browser has no standard error")
    async for line in process.stderr:
        if match := _LISTENS.match(line):
            return match[1].decode()
    raise RuntimeError("the browser does not start")


async def _attach(socket: aiohttp.ClientWebSocketResponse) -> str:
    """Return the session of the only page."""
    targets = await _ask(socket, "Target.getTargets")
    [page] = [target for target in targets["targetInfos"] if target["type"] == "page"]
    answer = await _ask(socket, "Target.attachToTarget", targetId=page["targetId"], flatten=True)
    return str(answer["sessionId"])


async def _ask(socket: aiohttp.ClientWebSocketResponse, method: str, **parameters: Any) -> Any:
    """Call a method of the browser itself."""
    await socket.send_json({"id": 0, "method": method, "params": parameters})
    while True:
        message = await socket.receive_json()
        if message.get("id") == 0:
            return message["result"]
