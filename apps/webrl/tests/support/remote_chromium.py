"""A real Chromium that somebody else runs, reached by its DevTools address."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import tempfile
from types import TracebackType

from webrl.browser import find_chromium
from webrl.browser.live_browser import NO_UDP


class RemoteChromium:
    """A browser process with its own profile. Used as `async with RemoteChromium() as remote:`.

    Args:
        switches: More than it needs to be reached.
    """

    def __init__(self, switches: tuple[str, ...] = (NO_UDP,)) -> None:
        self._switches = switches
        self._folder = tempfile.TemporaryDirectory(prefix="remote-chromium-")
        self._process: asyncio.subprocess.Process | None = None
        self._port = 0

    @property
    def address(self) -> str:
        """Return where it says what its web socket is; the same after a restart."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """Return its process id."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> str:
        """Start it, on the same port as before; return its web socket."""
        self._process = await asyncio.create_subprocess_exec(
            str(find_chromium()),
            "--headless",
            "--no-sandbox",
            f"--remote-debugging-port={self._port}",
            f"--user-data-dir={self._folder.name}",
            *self._switches,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stderr is not None
        said = b""
        while (found := re.search(rb"listening on (ws://[^:]+:(\d+)/\S+)", said)) is None:
            line = await self._process.stderr.readline()
            assert line, f"Chromium ended: {said.decode()}"
            said += line
        self._port = int(found[2])
        return found[1].decode()

    async def kill(self) -> None:
        """End it and all its processes at once."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
            self._process = None

    async def __aenter__(self) -> RemoteChromium:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.kill()
        with contextlib.suppress(OSError):
            self._folder.cleanup()
