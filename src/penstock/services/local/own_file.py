# SPDX-License-Identifier: Apache-2.0
"""A writer's own file of a hybrid partition: the tier `OWN`.

Its readers read it there, which costs no copy more than a blocking partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.errors import PenstockError
from penstock.link.frames import ALL
from penstock.partition.extents import Extent
from penstock.partition.stretched_file import LONG, StretchedFile
from penstock.services.local.gathered import GATHER_BYTES, Gathered

TELL_BYTES = 16 << 20
"""The bytes that a writer stores before it tells of them: every word wakes the readers."""


class OwnFile:
    """A file of the writer's own. Long parts go there at once, the rest is gathered; both are told together."""

    def __init__(self, file: StretchedFile, note: Callable[[list[tuple[int, Extent]]], None]) -> None:
        self._file = file
        self._note = note
        self._gathered = Gathered()
        self._untold = 0
        self._is_for_all = False
        self._error: PenstockError | None = None

    @property
    def is_under_way(self) -> bool:
        """True if there is something that was not told yet."""
        return self._untold > 0

    def append(self, target: int, parts: Iterable[bytes | memoryview]) -> None:
        """Append bytes to a subpartition, or to `ALL`; PenstockError where they can't be stored.

        Gathered parts are referred to, not copied.
        """
        if (target == ALL) != self._is_for_all:
            self.commit()  # what goes to all keeps its place among what goes to one
            self._is_for_all = target == ALL
        before = self._gathered.size
        size = self._gathered.add(target, parts)
        self._untold += self._gathered.size - before
        if size >= LONG:
            self._write([target])
        elif self._gathered.size >= GATHER_BYTES:
            self._write(self._gathered.targets)
        if self._untold >= TELL_BYTES:
            self.commit()

    def commit(self) -> None:
        """Store everything, and tell of it."""
        self._write(self._gathered.targets)
        self._untold = 0
        if self._error is None and (extents := self._file.take()):
            self._note(extents)

    def finish(self) -> None:
        """Store everything; the file is complete."""
        self.commit()
        self._file.close()

    def drop(self) -> None:
        """Forget everything, file and all."""
        self._gathered.clear()
        self._file.remove()

    def _write(self, targets: list[int]) -> None:
        """Once that has failed the file is gone: it fails again, and nothing more is told."""
        runs = [(target, self._gathered.take(target)) for target in targets]
        if not runs:
            return
        if self._error is not None:
            raise self._error
        try:
            self._file.write(runs)
        except PenstockError as error:
            self._error = error
            raise
