# SPDX-License-Identifier: Apache-2.0
"""A real ZooKeeper of Debian's package, for one test: a process on the loopback, its files in the test's folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing import wait_until

JAR = Path("/usr/share/java/zookeeper.jar")
_CONFIG = "tickTime=200\ndataDir={folder}\nclientPort={port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n"


def need_zookeeper() -> None:
    """Skip where it, Java or its client is missing; where they have to be there, that is an error."""
    missing = [] if JAR.is_file() else ["Debian's package zookeeper"]
    missing += [] if shutil.which("java") else ["java"]
    try:
        import kazoo  # noqa: F401 - only asked for
    except ImportError:
        missing.append("kazoo (the extra lab)")
    if missing:
        assert "PENSTOCK_NEEDS_ZOOKEEPER" not in os.environ, f"install {', '.join(missing)}"
        pytest.skip(f"no ZooKeeper: {', '.join(missing)} is missing")


@contextlib.contextmanager
def zookeeper(folder: Path, port: int = 0) -> Iterator[str]:
    """A server, at any free port where that is 0; its `host:port`."""
    need_zookeeper()
    if not port:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = int(free.getsockname()[1])
    config = folder / "zoo.cfg"
    (folder / "data").mkdir()
    config.write_text(_CONFIG.format(folder=folder / "data", port=port))
    main = "org.apache.zookeeper.server.ZooKeeperServerMain"
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(["java", "-Xmx64m", "-cp", str(JAR), main, str(config)], stdout=log, stderr=log)
    try:
        wait_until(lambda: _answers(port) or server.poll() is not None, "ZooKeeper answers")
        assert server.poll() is None, (folder / "log").read_text()
        yield f"127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def _answers(port: int) -> bool:
    """True when it serves: it listens earlier."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as asking:
            asking.sendall(b"srvr")
            return asking.recv(9) == b"Zookeeper"
    except OSError:
        return False
