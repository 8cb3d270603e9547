# SPDX-License-Identifier: Apache-2.0
"""A remote shuffle service of real processes on loopback: a manager, and workers with folders of their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from penstock.connection.principals import key_line
from penstock.testing import DEADLINE
from penstock.testing.waiting import wait_until
from underway import listed

SECRET = "the secret of manager and workers"
USER = "alice"
_AT_ONCE = ["--rejoin", "0s"]
"""Workers that tests kill are lost at once."""
_LISTENS = re.compile(r"penstock remote \w+ listens at (\S+)")


@dataclass
class RemoteProcess:
    """One process: its arguments, its log, and where it listens."""

    arguments: list[str]
    log: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        """Start it, and wait until it listens; again at the same port."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        begin = self.log.stat().st_size if self.log.exists() else 0
        command = [
            sys.executable,
            "-m",
            "penstock.cli",
            "service",
            "remote",
            *self.arguments,
            "--port",
            str(self.port),
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PENSTOCK_REMOTE_SECRET": SECRET},
            )

        def listens() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, f"{command} ended: {self.log.read_text()[-3000:]}"
            found = _LISTENS.findall(self.log.read_bytes()[begin:].decode())
            if found:
                self.port = int(found[-1].rpartition(":")[2])
            return bool(found)

        wait_until(listens, f"{self.arguments[0]} to listen")

    @property
    def address(self) -> str:
        """The address at which it listens."""
        return f"127.0.0.1:{self.port}"

    @property
    def folder(self) -> str:
        """Its folder."""
        return self.arguments[self.arguments.index("--dir") + 1]

    @property
    def pid(self) -> int:
        """Its process."""
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """Kill it, as a machine would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(DEADLINE)
            self.process = None

    def tell(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait until it ends by itself; its exit code."""
        assert self.process is not None
        return self.process.wait(DEADLINE)


class RemoteCluster:
    """A manager and so many workers."""

    def __init__(
        self,
        folder: Path,
        workers: int = 2,
        options: list[str] | None = None,
        manager_options: list[str] | None = None,
        manager: Path | None = None,
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.keys = folder / "keys"
        self.keys.touch(0o600)
        self.keys.write_text(key_line(USER) + "\n")
        self._options = ["--keys", str(self.keys), *(options or [])]
        self.manager = RemoteProcess(
            [
                "manager",
                "--dir",
                str(manager or folder / "manager"),
                "--keys",
                str(self.keys),
                *_AT_ONCE,
                *(manager_options or []),
            ],
            folder / "manager.log",
        )
        self.manager.start()
        self.workers: list[RemoteProcess] = []
        for _ in range(workers):
            self.add_worker()

    def add_worker(self, folder: Path | None = None, options: list[str] | None = None) -> RemoteProcess:
        """Start another worker."""
        number = len(self.workers)
        place = folder or self.folder / f"worker-{number}"
        arguments = ["worker", "--manager", self.manager.address, "--dir", str(place), "--reserve", "1m"]
        worker = RemoteProcess([*arguments, *self._options, *(options or [])], self.folder / f"worker-{number}.log")
        begin = self.manager.log.stat().st_size
        worker.start()
        known = re.compile(rb"worker \w+ is there")
        wait_until(lambda: known.search(self.manager.log.read_bytes()[begin:]), "the manager to know the worker")
        self.workers.append(worker)
        return worker

    def conf(self) -> dict[str, str]:
        """The settings that find it."""
        return {
            "spark.penstock.remote.manager": self.manager.address,
            "spark.penstock.access.keyFile": str(self.keys),
            "spark.penstock.access.user": USER,
        }

    def times_known(self) -> int:
        """The number of times that the manager has heard of a worker's start."""
        return self.manager.log.read_text().count(" is there, at ")

    def files(self) -> list[Path]:
        """The merged files of the workers that live."""
        lives = [Path(worker.folder) for worker in self.workers if worker.process is not None]
        return sorted(path for folder in lives for path in listed(folder, "*.merg*"))

    def close(self) -> None:
        """Kill all; idempotent."""
        for process in [self.manager, *self.workers]:
            process.kill()
