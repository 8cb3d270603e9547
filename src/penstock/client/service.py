# SPDX-License-Identifier: Apache-2.0
"""A service as a client has it, with calls that wait. `asynchronous` has the same ones for an event loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

import pyarrow as pa

from penstock.client.access import ClientAccess, access_to
from penstock.client.membership import Membership
from penstock.client.names import Names
from penstock.client.parts import Kept, Part
from penstock.client.reading import PartRows
from penstock.client.writing import ClientPartWriter, PartShape, ResultWriter
from penstock.errors import PartitionNotProducedError, SettingError


class ShuffleClient:
    """A client of `external` or `remote`. Any thread; a writer or reader that it gives is one thread's at a time."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._names = Names(membership)

    @property
    def access(self) -> ClientAccess:
        """The value by which other processes `join` this application. It has the application's secret in it."""
        return self._membership.access

    def write(self, name: str, schema: pa.Schema, partitions: int = 1) -> ResultWriter:
        """Begin a result of so many partitions; it is under its name when its `with` block ends well.

        A result that the user has under this name goes then. The partitions share one sort buffer
        (`spark.penstock.blocking.sortBuffer`), of which each has 1 MiB at least. Raises SettingError, NoStorageError,
        QuotaError.
        """
        return ResultWriter(self._membership, name, schema, partitions)

    def read(self, name: str, partition: int | None = None) -> PartRows:
        """The rows of a result, or of one of its partitions: those in order, all of them as they come.

        PartitionNotProducedError where nothing is under this name.
        """
        found = self._names.find(name)
        if found is None:
            raise PartitionNotProducedError(
                f"nothing is kept under the name {name!r}: it was not kept here for this user, or its lease has ended"
            )
        if partition is None:
            return PartRows(self._membership, found.parts)
        if not 0 <= partition < found.partitions:
            raise SettingError(f"there is no partition {partition}: the result {name} has {found.partitions}")
        return PartRows(self._membership, (found.parts[partition],))

    def find(self, name: str) -> Kept | None:
        """The result under a name, or None."""
        return self._names.find(name)

    def write_part(self, schema: pa.Schema, subpartitions: int = 1, keys: Sequence[str] = ()) -> ClientPartWriter:
        """Begin a part: a partition without a name, which other clients of the application read.

        With `keys` each row goes to the subpartition that the hash of these columns says, the same in all processes.
        Raises SettingError, SchemaError for keys that can't be hashed, NoStorageError, QuotaError.
        """
        return ClientPartWriter(self._membership, PartShape(schema, subpartitions, tuple(keys)))

    def read_parts(self, parts: Iterable[Part], subpartition: int = 0) -> PartRows:
        """The rows of one subpartition of all these parts, as they come."""
        return PartRows(self._membership, tuple(parts), subpartition)

    def keep(self, name: str, parts: Iterable[Part]) -> Kept:
        """Put complete parts of one subpartition each under a name, as its partitions in this order.

        A result that the user has under this name goes. Raises PartitionError where one of them is gone.
        """
        return self._names.keep(name, tuple(parts))

    def release(self, parts: Iterable[Part]) -> None:
        """Have parts removed that are under no name, whichever client has written them; idempotent."""
        for part in parts:
            self._membership.release(part.descriptor, part.subpartitions)

    def close(self) -> None:
        """Give up what is being written, and hang up; idempotent.

        The client that connected ends its application, with all parts that are under no name, but one that it named.
        """
        self._membership.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(
    address: str | Path,
    *,
    user: str = "",
    key: str | Path = "",
    application: str = "",
    conf: Mapping[str, str] | None = None,
) -> ShuffleClient:
    """Begin an application at a service.

    `address` is the path of this host's socket of `external`, or `host:port` of the manager of `remote`. `key` is the
    line that `penstock key USER` printed, or the Path of a file with it: `remote` alone wants one. `application` is a
    name by which other clients of the user at `remote` share it, and its parts. `conf` has settings of the same keys
    as a Spark session's. Raises SettingError, AuthenticationError, NoStorageError or ControlError where no service
    is there, VersionError where another protocol is spoken there.
    """
    return ShuffleClient(Membership(access_to(address, user, key, application, conf), owns=True))


def join(access: ClientAccess) -> ShuffleClient:
    """Take part in the application of another client, in another process: `access` is that one's. Errors as above."""
    return ShuffleClient(Membership(access, owns=False))
