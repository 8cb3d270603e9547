# SPDX-License-Identifier: Apache-2.0
"""The least that it costs to fetch rows from a process of the same host, in CPU seconds: bytes moved, nothing else.

One process sends a file by `sendfile`, in the pieces that a host service is asked for, another one receives them by
`recv_into`, two asked for at a time. Nothing is checked, decoded or joined. Fresh memory is what a gate needs that
gives rows out over what it has received; memory that is used again shows what of it the machine takes for pages.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from penstock.external.requests import CHUNK_BYTES
from penstock_bench.measure import Outcome, Say, WrongAnswerError
from penstock_bench.service_rows import LOOPBACK_ROWS

_TURNS = 10
_ASKED = b"\0" * 24
"""As long as a FETCH."""
_AT_ONCE = 2
_LEFT = 1
"""Pieces that somebody looks at while the next one comes."""

Room = Callable[[int], memoryview]


def loopback_outcomes(folder: Path, size: int, repeat: int, say: Say) -> list[Outcome]:
    """The CPU seconds of both processes, each way in turns."""
    path = folder / "bytes"
    with path.open("wb") as file:
        for begin in range(0, size, CHUNK_BYTES):
            file.write(os.urandom(min(CHUNK_BYTES, size - begin)))
    seconds: dict[tuple[str, str], list[float]] = {way: [] for way in LOOPBACK_ROWS}
    for turn in range(max(_TURNS, repeat) + 1):
        for (family, memory), found in seconds.items():
            room = _fresh() if memory == "fresh" else _again()
            taken = _moved(path, size, getattr(socket, family), room)
            if turn:  # the first one is not counted
                found.append(taken)
    path.unlink()
    for (family, memory), figures in seconds.items():
        say(f"  bare {family}, {memory} memory: {min(figures):.2f} to {max(figures):.2f} CPU s")
    return [Outcome(row, 0, size, tuple(seconds[way])) for way, row in LOOPBACK_ROWS.items()]


def _fresh() -> Room:
    kept: list[pa.Buffer] = []

    def room(size: int) -> memoryview:
        kept.append(pa.allocate_buffer(size))
        del kept[: -1 - _LEFT]
        return memoryview(kept[-1]).cast("B")

    return room


def _again() -> Room:
    memory = memoryview(bytearray(CHUNK_BYTES))
    return lambda size: memory[:size]


def _moved(path: Path, size: int, family: socket.AddressFamily, room: Room) -> float:
    """The CPU seconds of a child that sends the file and of this process, which receives it."""
    receiving, sending = _pair(family)
    child = os.fork()
    if not child:
        try:
            receiving.close()
            _send(path, size, sending)
        finally:
            os._exit(0)
    sending.close()
    began = time.process_time()
    with receiving:
        found = _receive(receiving, size, room)
    taken = time.process_time() - began
    _, _, used = os.wait4(child, 0)
    if found != size:
        raise WrongAnswerError(f"{found:,} bytes arrived of {size:,}")
    return taken + used.ru_utime + used.ru_stime


def _pair(family: socket.AddressFamily) -> tuple[socket.socket, socket.socket]:
    if family == socket.AF_UNIX:
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        receiving = socket.create_connection(listening.getsockname())
        sending, _ = listening.accept()
    for each in (receiving, sending):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return receiving, sending


def _lengths(size: int) -> list[int]:
    return [min(CHUNK_BYTES, size - begin) for begin in range(0, size, CHUNK_BYTES)]


def _send(path: Path, size: int, sending: socket.socket) -> None:
    begin = 0
    with path.open("rb") as file, sending:
        for length in _lengths(size):
            sending.recv(len(_ASKED), socket.MSG_WAITALL)
            end = begin + length
            while begin < end:
                begin += os.sendfile(sending.fileno(), file.fileno(), begin, end - begin)


def _receive(receiving: socket.socket, size: int, room: Room) -> int:
    found, lengths = 0, _lengths(size)
    receiving.sendall(_ASKED * min(_AT_ONCE, len(lengths)))
    for number, length in enumerate(lengths, _AT_ONCE):
        target = room(length)
        while target:
            count = receiving.recv_into(target)
            if not count:
                return found
            found += count
            target = target[count:]
        if number < len(lengths):
            receiving.sendall(_ASKED)
    return found
