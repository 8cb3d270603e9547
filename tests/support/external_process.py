# SPDX-License-Identifier: Apache-2.0
"""The host service `external` in a process of its own, as an operator starts it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.testing import DEADLINE
from penstock.testing.waiting import wait_until
from underway import listed


class ExternalProcess:
    """One service on loopback. It keeps its port, its socket and its folder over restarts."""

    def __init__(
        self, folder: Path, *options: str, python: str = sys.executable, more: Sequence[Path] = (), log: str = ""
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.folders_given = [folder, *more]
        self.socket = folder / "service.sock"
        self.port = 0
        self._options = options
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None
        self.log = Path(log) if log else folder / "service.log"
        self.start()

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    def command(self, *options: str) -> list[str]:
        """The command that starts it."""
        place = [word for each in self.folders_given for word in ("--dir", str(each))]
        place += ["--host", "127.0.0.1", "--port", str(self.port)]
        return [self._python, "-m", "penstock.cli", "service", "external", *place, *self._options, *options]

    def start(self) -> None:
        """Start it, and wait until it listens."""
        begun = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

        def listens() -> bool:
            assert self._process is not None
            text = self.log.read_bytes()[begun:].decode()
            assert self._process.poll() is None, f"the service ended: {text[-3000:]}"
            line = next((each for each in text.splitlines() if each.startswith("serving ")), "")
            if line:
                self.port = int(line.split(" at tls://")[1].split()[0].rpartition(":")[2])
            return bool(line)

        wait_until(listens, "the host service to listen")

    def kill(self) -> None:
        """Kill it, as a machine would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(DEADLINE)
            self._process = None

    def stop(self) -> int:
        """Tell it to end; its exit code."""
        assert self._process is not None
        self._process.terminate()
        code = self._process.wait(DEADLINE)
        self._process = None
        return code

    def pause(self) -> None:
        """Stop it without ending it."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it; idempotent."""
        if self._process is not None:
            self.resume()
        self.kill()

    def listens(self) -> bool:
        """Tell whether anybody takes connections at its port."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def folders(self) -> list[Path]:
        """The folders of partitions."""
        return [path.parent for path in listed(self.folder, "data/??/*/data.0")]
