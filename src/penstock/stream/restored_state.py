# SPDX-License-Identifier: Apache-2.0
"""The chunks of a checkpoint that a task begins with: read when they are asked for, and not kept.

So a task that restores holds one chunk at a time beside the state that it makes of them, however large all are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager

from penstock.checkpoint.channel_state import ChannelKey
from penstock.checkpoint.metadata import PartHandle
from penstock.checkpoint.storage import PartStorage

Guard = Callable[[], AbstractContextManager[None]]
"""Makes the block in which chunks are read: it says whose fault an error is."""


class StoredState(Mapping[str, bytes]):
    """The chunks of one part, by name, without its rows in flight."""

    def __init__(self, storage: PartStorage, handle: PartHandle, guard: Guard) -> None:
        self._storage = storage
        self._handle = handle
        self._guard = guard
        self._names = dict.fromkeys(each.name for each in handle.chunks if ChannelKey.of(each.name) is None)

    def __getitem__(self, name: str) -> bytes:
        """Read a chunk; raises CorruptCheckpointError where it is damaged."""
        if name not in self._names:
            raise KeyError(name)
        with self._guard():
            return b"".join(data for _, data in self._storage.read(self._handle, [name]))

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class PartOfState(Mapping[str, bytes]):
    """The chunks of a state whose names begin with a prefix, by their names without it."""

    def __init__(self, state: Mapping[str, bytes], prefix: str, without: str | None = None) -> None:
        """Those that begin with `without`, behind the prefix, are left out."""
        self._state = state
        self._prefix = prefix
        found = (name.removeprefix(prefix) for name in state if name.startswith(prefix))
        self._names = dict.fromkeys(name for name in found if without is None or not name.startswith(without))

    def __getitem__(self, name: str) -> bytes:
        """The bytes of a chunk."""
        if name not in self._names:
            raise KeyError(name)
        return self._state[self._prefix + name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
