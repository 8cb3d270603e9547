# SPDX-License-Identifier: Apache-2.0
"""Hands the JobMaster's address and the application's secret to the planning process.

Spark plans a Python data source in a process beside the driver, of the same user. What a data source gets as
options ends in plans and logs, so an option only holds the path of a file that this user alone can read.

The folder of these files lies beside those of environment processes and is swept like them: it holds a lock while
the driver lives, so what a killed driver left (the secret is in it) goes with the next sweep.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

import msgpack
import pyarrow as pa

from penstock.services.local.launch import EnvironmentLaunch
from penstock.services.local.private_folder import PrivateFolder
from penstock.shuffle.errors import ControlError


@dataclass(frozen=True, slots=True)
class ResultTicket:
    """What the planning process needs to open a result, and its readers to read it."""

    result: str
    launch: EnvironmentLaunch
    schema: pa.Schema


class ResultFolder:
    """A private folder with one ticket per result; made on first use, removed by `close`."""

    def __init__(self) -> None:
        self._folder: PrivateFolder | None = None
        self._lock = threading.Lock()

    def write(self, ticket: ResultTicket) -> str:
        """Write a ticket; the path of its file."""
        path = self._open().path / ticket.result
        launch = ticket.launch
        data = msgpack.packb(
            {
                "result": ticket.result,
                "application": launch.application,
                "secret": launch.secret,
                "master": launch.master,
                "settings": launch.settings,
                "schema": ticket.schema.serialize().to_pybytes(),
            }
        )
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        return str(path)

    def close(self) -> None:
        """Remove the folder; idempotent."""
        with self._lock:
            folder, self._folder = self._folder, None
            if folder is not None:
                folder.close()

    def _open(self) -> PrivateFolder:
        with self._lock:
            if self._folder is None:
                self._folder = PrivateFolder("driver")
            return self._folder


def read_ticket(path: str) -> ResultTicket:
    """The ticket in this file; raises ControlError where it is gone or somebody else's."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise ControlError(
            f"the result's ticket {path} can't be opened ({error.strerror}): the Spark session that made this"
            " DataFrame was stopped, or Spark plans on another host than the driver's"
        ) from error
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise ControlError(f"the result's ticket {path} is not private to this user")
        raw = msgpack.unpackb(file.read(), raw=False)
    launch = EnvironmentLaunch(raw["application"], raw["secret"], raw["master"], raw["settings"])
    return ResultTicket(raw["result"], launch, pa.ipc.read_schema(pa.py_buffer(raw["schema"])))
