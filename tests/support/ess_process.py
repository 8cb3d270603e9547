# SPDX-License-Identifier: Apache-2.0
"""Spark's own external shuffle service, unmodified, from the jars of the pyspark wheel, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path

import pyspark

from penstock.testing import DEADLINE
from penstock.testing.waiting import wait_until

_MAIN = "org.apache.spark.deploy.ExternalShuffleService"
_MEMORY = ("-Xmx256m", "-Xms32m", "-XX:MaxDirectMemorySize=256m")
_UNSAFE = (
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)


class EssProcess:
    """One service on loopback. It keeps its port, and the folder that its files must lie in, over restarts."""

    def __init__(self, folder: Path, conf: dict[str, str] | None = None, port: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = port or free_port()
        self._conf = conf or {}
        self._process: subprocess.Popen[bytes] | None = None
        self.log = folder / "service.log"
        self.start()

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it listens."""
        conf = {"spark.shuffle.service.port": str(self.port), "spark.local.dir": str(self.folder), **self._conf}
        options = [f"-D{key}={value}" for key, value in conf.items()]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("SPARK_")}
        environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "localhost"}
        environment["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*java_command(), *options, _MAIN],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )
        wait_until(self._listens, f"the shuffle service to listen on {self.port}")

    def kill(self) -> None:
        """Kill it, as a machine would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(DEADLINE)
            self._process = None

    def pause(self) -> None:
        """Stop it without ending it."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it; idempotent."""
        self.kill()

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the shuffle service ended: {self.log.read_text()[-3000:]}"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False


def java_command() -> list[str]:
    """Java with Spark's classes and little memory; options of its own and a main class are to follow."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    return [java, *_MEMORY, *_UNSAFE, "-cp", f"{Path(pyspark.__file__).parent / 'jars'}/*"]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
