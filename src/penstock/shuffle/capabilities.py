# SPDX-License-Identifier: Apache-2.0
"""The kinds that a shuffle service carries, and the one of them that the engine takes for each purpose.

A mode that a user writes means one kind, and a service that lacks it refuses it. Everything else the engine chooses
itself: by the flags of the kinds, and where several will do the one that the service names first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.errors import SettingError
from penstock.shuffle.kinds import AUTO, MODES, PartitionKind, mode_to_kind


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The abilities of a service: the kinds that it carries, of those alike the better one first.

    `streams`: its partitions may be streams (`ResultPartitionDescriptor.is_stream`). `outlives_executors`: its
    complete partitions stay readable when the executor that wrote them is removed. `uses_data_plane`: it needs the
    memory of the hosts, or the address at which their environments serve each other. `keeps_by_name`: its master is a
    `NamedResults`, so results may outlive their application.
    """

    kinds: tuple[PartitionKind, ...]
    streams: bool = False
    outlives_executors: bool = False
    uses_data_plane: bool = True
    keeps_by_name: bool = False

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that users may ask of it."""
        return tuple(mode for mode, kind in MODES.items() if mode == AUTO or kind in self.kinds)

    @property
    def automatic(self) -> PartitionKind | None:
        """The kind of an exchange without a mode: pipelined, or else one that stores."""
        return self._first(lambda kind: kind.runs_together and not kind.reconnectable) or self.stored

    @property
    def stored(self) -> PartitionKind | None:
        """The kind whose producer waits for no reader: against deadlocks, for few slots, for jobs that run again."""
        return self._first(lambda kind: not kind.runs_together and not kind.persistent)

    @property
    def unbuffered(self) -> PartitionKind | None:
        """The kind that needs no network buffers of its own."""
        return self._first(lambda kind: not kind.pipelined and not kind.persistent)

    @property
    def result(self) -> PartitionKind | None:
        """The kind of results: read in any order, any number of times, after the job is over."""
        return self._first(lambda kind: kind.is_kept and not kind.persistent)

    @property
    def persisted(self) -> PartitionKind | None:
        """The kind of results that stay until they are released by name."""
        return self._first(lambda kind: kind.persistent) or self.result

    @property
    def streamed(self) -> PartitionKind | None:
        """The kind of a streaming query's exchanges."""
        return self._first(lambda kind: kind.carries_streams) if self.streams else None

    @property
    def approximate(self) -> PartitionKind | None:
        """The kind of the exchanges of a streaming query whose tasks begin anew one by one."""
        return self._first(lambda kind: kind.reattaches and kind.bounded) if self.streams else None

    def kind_of(self, mode: str, service: str) -> PartitionKind:
        """The kind of an exchange in this mode; raises SettingError where the service has none."""
        wanted = mode_to_kind(mode)
        kind = self.automatic if mode == AUTO else wanted if wanted in self.kinds else None
        if kind is None:
            raise SettingError(
                f"the shuffle service {service!r} has no mode {mode!r}: it has {', '.join(self.modes)}; use one of "
                "these, or another service"
            )
        return kind

    def _first(self, fits: Callable[[PartitionKind], bool]) -> PartitionKind | None:
        return next(filter(fits, self.kinds), None)
