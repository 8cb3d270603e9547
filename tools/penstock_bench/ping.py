# SPDX-License-Identifier: Apache-2.0
"""Numbers over two hops of sockets between three processes: the least that a row's way can take on this machine.

A sender gives so many moments in a second, each when it is due, a relay passes on what it gets, and a receiver takes
the time since each was due. Nothing else is done for them: no format, no credit, no barrier. Processes without a
table of others' addresses need one thing of each other, a pair of sockets.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

_MOMENT = np.dtype(np.int64)
PAUSE_SECONDS = 0.001
"""The sender sleeps at least so long, as a source does that has nothing to give."""
_RECEIVED_BYTES = 1 << 16
_PATIENCE = 30.0


class Ping:
    """One that runs until the block ends; `ways` are its figures then."""

    def __init__(self, rate: int, folder: Path) -> None:
        """So many moments in a second; the receiver keeps what it has measured in the folder."""
        self._rate = rate
        self._found = folder / "ping"
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Ping:
        first, second = socket.socketpair(), socket.socketpair()
        with first[0], first[1], second[0], second[1]:
            self._start("receive", second[1], of=str(self._found))
            self._start("relay", first[1], second[0])
            self._start("send", first[0], of=str(self._rate))
        return self

    def __exit__(self, *_: object) -> None:
        self._processes[-1].terminate()  # the sender; the others end with their streams
        for process in self._processes:
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def ways(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """The moments at which numbers were due, in nanoseconds since 1970, and the milliseconds of their ways."""
        rows = np.fromfile(self._found, _MOMENT).reshape(-1, 2)
        return rows[:, 0], (rows[:, 1] - rows[:, 0]) / 1e6

    def _start(self, role: str, *ends: socket.socket, of: str = "") -> None:
        numbers = [end.fileno() for end in ends]
        command = [sys.executable, "-m", "penstock_bench.ping", role, *map(str, numbers), of]
        self._processes.append(subprocess.Popen(command, pass_fds=numbers))


def send(end: socket.socket, rate: int) -> None:
    """Give each moment when it is due, all that are due at once where this process could not run."""
    began, given = time.time_ns(), 0
    while True:
        due = (time.time_ns() - began) * rate // 1_000_000_000
        if due > given:
            moments = began + np.arange(given + 1, due + 1, dtype=np.int64) * 1_000_000_000 // rate
            end.sendall(moments.tobytes())
            given = due
        time.sleep(PAUSE_SECONDS)


def relay(before: socket.socket, after: socket.socket) -> None:
    """Pass on what comes."""
    while data := before.recv(_RECEIVED_BYTES):
        after.sendall(data)


def receive(end: socket.socket, path: str) -> None:
    """Note each moment with the one at which it came."""
    rest = b""
    with Path(path).open("wb") as file:
        while data := end.recv(_RECEIVED_BYTES):
            now = time.time_ns()
            data = rest + data
            whole = len(data) - len(data) % _MOMENT.itemsize
            moments, rest = np.frombuffer(data[:whole], _MOMENT), data[whole:]
            file.write(np.stack([moments, np.full(len(moments), now)], axis=1).tobytes())


def main(arguments: list[str]) -> None:
    """One of the three processes."""
    role = arguments[0]
    if role == "relay":
        relay(_end(arguments[1]), _end(arguments[2]))
    elif role == "send":
        send(_end(arguments[1]), int(arguments[2]))
    else:
        receive(_end(arguments[1]), arguments[2])


def _end(number: str) -> socket.socket:
    return socket.socket(fileno=os.dup(int(number)))


if __name__ == "__main__":
    main(sys.argv[1:])
