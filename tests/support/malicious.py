# SPDX-License-Identifier: Apache-2.0
"""Those who may ask a service and mean no good: each request at its largest, most often, half sent, out of order.

Requests are made from the types of the messages themselves, so a new message is asked like the others. An attacker is
a process of its own (`python malicious.py JSON`), and where the tests are root's a process of another user.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import socket
import sys
import time
import types
import typing
from typing import Any

from penstock.connection.frames import frame
from penstock.connection.handshake import Handshake, Role, Service, greeting
from penstock.connection.principals import application_secret, key_of
from penstock.errors import PenstockError
from penstock.external import requests as external
from penstock.external.keys import ApplicationKey
from penstock.link.frames import call_frame
from penstock.link.wire import to_wire
from penstock.remote import messages as remote
from penstock.remote.peers import application_credentials
from penstock.remote.wire import BulkFrame
from penstock.shuffle import DatasetId, PartitionId
from penstock.shuffle.requests import Request
from penstock.testing import DEADLINE

WAYS = ("largest", "often", "half", "stranger")
"""At its largest, at its most often, all but its last byte, and by one who has not said who he is."""
_ONCE = 5.0
"""Seconds for each to be asked once."""


def requests_of(where: str) -> dict[str, type[Request[Any]] | int]:
    """All requests that there are to `external` or `remote`, and frames that are none, by name."""
    if where == "external":
        return {each.METHOD: each for each in external.REQUESTS} | {"FETCH": external.FETCH}
    kinds = (each for each in vars(remote).values() if isinstance(each, type) and issubclass(each, Request))
    frames = {each.name: int(each) for each in BulkFrame}
    return {each.METHOD: each for each in kinds if each is not Request} | frames


def filled(kind: type[Any], size: int, partition: PartitionId) -> Any:
    """A message of this type with about so many bytes, about this partition where it is about one."""
    hints = typing.get_type_hints(kind)
    hints = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    long = [name for name, hint in hints.items() if hint in (str, bytes) or typing.get_origin(hint) in (tuple, dict)]
    each = size // max(1, len(long))
    return kind(**{name: _value(hint, each, partition, name) for name, hint in hints.items()})


def _value(hint: Any, size: int, partition: PartitionId, name: str = "") -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and arguments[1:] == (Ellipsis,):
        one = _value(arguments[0], 16, partition)
        return (one,) * (size // len(repr(one)) + 1)
    if origin is tuple:
        return tuple(_value(each, size, partition) for each in arguments)
    if origin is dict:
        return {f"{number:08}": _value(arguments[1], 16, partition) for number in range(size // 32)}
    if origin in (types.UnionType, typing.Union):
        return _value(arguments[0], size, partition)
    if hint is str:
        return "x" * size
    if hint is bytes:
        return bytes(32) if name == "key" else os.urandom(size // 56 * 56)
    if hint is bool:
        return True
    if hint in (int, float):
        return hint(size % 1000)
    if hint is PartitionId:
        return partition
    return hint(*(_value(each, 16, partition) for each in typing.get_type_hints(hint).values()))


class Attacker:
    """One who connects to a service; `where` says to which, as whom, and of whose partitions he speaks."""

    def __init__(self, where: dict[str, Any]) -> None:
        self._where = where
        self._is_external = where["kind"] == "external"
        self._partition = PartitionId(DatasetId("job", 0), 0, 0)
        if where.get("partition"):
            self._partition = PartitionId.from_wire(tuple(where["partition"]))
        self._call = 0

    def connect(self, *, proves: bool = True) -> socket.socket:
        """A connection that has proved who it is, and said so, unless it is to be a stranger's."""
        if self._is_external:
            line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            line.settimeout(DEADLINE)
            line.connect(self._where["address"])
            line.sendall(greeting())
            if proves:
                key = ApplicationKey.of("an enemy", self._where["secret"].encode())
                line.sendall(self._frame(external.Introduce("an enemy", key.key)))
            return line
        line = socket.create_connection(("127.0.0.1", self._where["address"]), DEADLINE)
        if proves:
            user, key = key_of(self._where["secret"])
            own = application_credentials(user, "enemy", "x", application_secret(key, user, "enemy"))
            hands = Handshake(Role.CLIENT, Service.REMOTE, own, "a service")
            while True:
                line.sendall(hands.outgoing())
                if hands.is_done:
                    break
                hands.feed(line.recv(hands.missing))
        return line

    def request(self, kind: type[Request[Any]] | int, size: int) -> bytes:
        """Such a request of so many bytes, as a frame."""
        return (
            frame(kind, os.urandom(size))
            if isinstance(kind, int)
            else self._frame(filled(kind, size, self._partition))
        )

    def attack(self, way: str, kind: type[Request[Any]] | int, size: int, lines: int, seconds: float) -> int:
        """Ask in one way for so long, but once at the least, over so many connections; the bytes that were taken."""
        taken = 0
        data = self.request(kind, size)
        ready = []
        with contextlib.ExitStack() as stack:
            for _ in range(lines):
                with contextlib.suppress(OSError, PenstockError):
                    line = self.connect(proves=way != "stranger")
                    stack.callback(line.close)
                    line.setblocking(False)
                    ready.append(line)
            left = {line: memoryview(data)[:-1] if way == "half" else memoryview(data) for line in ready}
            asking, until = set(ready), time.monotonic() + seconds
            while left and ((now := time.monotonic()) < until or (asking & left.keys() and now < until + _ONCE)):
                readable, writable, _ = select.select(list(left), [x for x in left if left[x]], [], 0.02)
                for line in {*readable, *writable}:
                    try:
                        if line in readable and not line.recv(1 << 20):
                            raise ConnectionResetError
                        if line in writable:
                            count = line.send(left[line][: 1 << 20])
                            taken += count
                            left[line] = left[line][count:]
                            if not left[line]:
                                asking.discard(line)
                                left[line] = memoryview(b"" if way == "half" else data)
                    except BlockingIOError:
                        continue
                    except OSError:
                        del left[line]
        return taken

    def _frame(self, request: Request[Any]) -> bytes:
        self._call += 1
        return call_frame(self._call, type(request).METHOD, to_wire(request))


def main() -> None:
    """Attack as the argument says, and say what was done."""
    where = json.loads(sys.argv[1])
    if where.get("user"):
        os.setuid(where["user"])
    attacker = Attacker(where)
    kinds = requests_of(where["kind"])
    print("begun", flush=True)
    for way, name, size in where["attacks"]:
        taken = attacker.attack(way, kinds[name], size, where["lines"], where["seconds"])
        print(f"{way} {name} of {size:,} bytes: {taken:,} bytes were taken", flush=True)


if __name__ == "__main__":
    main()
