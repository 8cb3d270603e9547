# SPDX-License-Identifier: Apache-2.0
"""Results under names: those of the service, where it keeps any, and else a part of the application for each name.

Rules: `external` keeps a result for its user: it is the same thing as that of `persist(name=, service="external")`.
At `remote` a name is a partition of the application with one row, which says where the others are: its identity is
made from the name, so every client of the application finds it. It has two places, and a result that takes the name
of another one is written into the place where that one is not: the number in the row says which is newer. Limit:
clients that give the same name there at the same time may take each other's place, so that it stands for nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgpack
import pyarrow as pa

from penstock.client.membership import Membership
from penstock.client.parts import Kept, Part, one_schema
from penstock.errors import (
    PartitionNotProducedError,
    PartitionReleasedError,
    ProducerFailedError,
    ProtocolError,
    SettingError,
    StaleError,
)
from penstock.shuffle import (
    ChannelDescriptor,
    DatasetId,
    InputGateDescriptor,
    PartitionId,
    ResultPartitionDescriptor,
    ShuffleDescriptor,
)
from penstock.shuffle.splits import Split
from penstock.task.blocking import BlockingInput, BlockingWriter

MOST_LETTERS = 200
_SCHEMA = pa.schema([("result", pa.binary())])
_TRIES = 12
_PAUSE_SECONDS = 0.25
_SORT_BUFFER = 1 << 20


@dataclass(frozen=True, slots=True)
class _Entry:
    """The row of a name at one of its two places; number 0 where there is none."""

    place: int
    number: int = 0
    encoded: bytes = b""
    descriptors: tuple[ShuffleDescriptor, ...] = ()


class Names:
    """The names of one client."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    def check(self, name: str) -> None:
        """Raise SettingError for what is no name, or where a name would lead nowhere."""
        if not name or len(name) > MOST_LETTERS:
            raise SettingError(f"a result's name has 1 to {MOST_LETTERS} letters, not {len(name)}")
        if not self._membership.keeps_by_name and not self._membership.access.lasts:
            raise SettingError(
                "at the remote service names belong to an application: connect with application='...', by which other"
                " clients of this user find them"
            )

    def keep(self, name: str, parts: tuple[Part, ...]) -> Kept:
        """Keep complete parts under a name. PartitionError where one of them is gone."""
        self.check(name)
        encoded = one_schema(parts)
        if wide := [part for part in parts if part.subpartitions > 1]:
            raise SettingError(
                f"a result's partitions have one subpartition each, and {len(wide)} of these parts have more: write"
                " each subpartition as a part"
            )
        descriptors = [part.descriptor for part in parts]
        membership = self._membership
        if membership.keeps_by_name:
            descriptors = membership.call(membership.master().keep_result(name, encoded, descriptors))
        else:
            self._put(name, encoded, descriptors)
        return Kept.of(name, encoded, descriptors)

    def find(self, name: str) -> Kept | None:
        """The result under a name, or None."""
        membership = self._membership
        self.check(name)
        if membership.keeps_by_name:
            found = membership.call(membership.master().find_result(name))
            return None if found is None else Kept.of(name, found[0], list(found[1]))
        newest = self._newest(name)
        return Kept.of(name, newest.encoded, list(newest.descriptors)) if newest.number else None

    def _put(self, name: str, encoded: bytes, descriptors: Sequence[ShuffleDescriptor]) -> None:
        membership = self._membership
        for turn in range(_TRIES):
            former = self._newest(name)
            place = self._words(name, 1 - former.place)
            row = msgpack.packb((former.number + 1, encoded, [each.to_wire() for each in descriptors]))
            try:
                self._write(place, pa.record_batch([pa.array([row], pa.binary())], _SCHEMA))
                break
            except (StaleError, PartitionNotProducedError):
                if turn + 1 == _TRIES:
                    raise
                if self._newest(name).number <= former.number:  # else another client was faster
                    membership.release(place, 1)  # workers have not forgotten what was there
                time.sleep(_PAUSE_SECONDS)
        kept = {each.partition for each in descriptors}
        for each in former.descriptors:
            if each.partition not in kept:
                membership.release(each, 1)
        if former.number:
            membership.release(self._words(name, former.place), 1)

    def _write(self, place: ShuffleDescriptor, batch: pa.RecordBatch) -> None:
        membership, host = self._membership, self._membership.host()
        described, words = membership.begin(place.partition.job, 1)
        environment = membership.environment(host, _SORT_BUFFER)
        try:
            owner = membership.owner(words.partition.job)
            wanted = ResultPartitionDescriptor(described, words, _SCHEMA)
            (made,) = environment.create_result_partition_writers(owner, [wanted])
            target = BlockingWriter(made, host, owner.metrics)
            try:
                target.setup()
                target.write(Split.whole(batch, 0))
                target.finish()
            finally:
                target.close()
        finally:
            environment.close()
            host.close()

    def _words(self, name: str, place: int) -> ShuffleDescriptor:
        """The words by which the partition of a name is found."""
        partition = PartitionId(DatasetId(f"name-{place}-{name}", 0, is_result=True), 0, 0)
        return self._membership.master().words(partition, self._membership.access.host)

    def _newest(self, name: str) -> _Entry:
        return max((self._get(name, place) for place in (0, 1)), key=lambda entry: entry.number)

    def _get(self, name: str, place: int) -> _Entry:
        words = self._words(name, place)
        membership, host = self._membership, self._membership.host()
        environment = membership.environment(host, waits=False)
        gate = None
        try:
            descriptor = InputGateDescriptor(0, _SCHEMA, (ChannelDescriptor(words, 0),))
            (gate,) = environment.create_input_gates(membership.owner(words.partition.job), [descriptor])
            gate.setup()
            received = BlockingInput([gate], host).next()
            row = None if received is None or received.batch is None else received.batch.column(0)[0].as_py()
        except (PartitionNotProducedError, PartitionReleasedError, ProducerFailedError):
            return _Entry(place)
        finally:
            if gate is not None:
                gate.close()
            environment.close()
            host.close()
        return _unpacked(name, place, row)


def _unpacked(name: str, place: int, row: bytes | None) -> _Entry:
    try:
        number, encoded, wires = msgpack.unpackb(row or b"", use_list=False)
        return _Entry(place, number, encoded, tuple(ShuffleDescriptor.from_wire(wire) for wire in wires))
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"the words of the result {name} can't be read: {error}") from error
