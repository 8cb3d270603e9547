# SPDX-License-Identifier: Apache-2.0
"""Results that outlive their job because a stream was persisted. Driver side.

A persisted result is *lazy* until an action needs it, *materialised* while its partitions are held, and *lost* when a
host went with some of them: then the next action makes it again. One caller at a time makes it, on his own thread,
and the others wait for him; if his job fails, the next one tries. Making one may make others first, those it reads:
they are further up the same pipeline, so no two wait for each other. A result that is dropped while it is being
made is released as soon as it is there.

When not to use it: for data that must outlive the application, unless a service keeps it under a name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from penstock.job.core.result import FinishedJob
from penstock.shuffle import ShuffleDescriptor
from penstock.shuffle.ids import host_of

Lost = Callable[[], None]
Make = Callable[[Lost], FinishedJob]
"""Runs the job; what it is given is to be called once when partitions of the result are lost."""
Release = Callable[[str], None]
"""Releases the result of the job with this id."""


@dataclass(frozen=True, slots=True)
class HeldResult:
    """The partitions that a persisted result's job left. `made_at` is the monotonic clock's."""

    job: str
    partitions: tuple[ShuffleDescriptor, ...]
    rows: int
    bytes: int
    made_at: float

    @classmethod
    def of(cls, finished: FinishedJob) -> HeldResult:
        """The partitions that this job left."""
        figures = finished.result_rows, finished.result_bytes
        return cls(finished.result.job, finished.partitions, *figures, time.monotonic())

    @property
    def present(self) -> tuple[ShuffleDescriptor, ...]:
        """The partitions that had a producer: a DataFrame may have fewer parts than its stage has subtasks."""
        return tuple(item for item in self.partitions if not item.empty)

    @property
    def place(self) -> str:
        """The hosts that hold it."""
        return ", ".join(sorted({_host_of(item) for item in self.present}))


def _host_of(item: ShuffleDescriptor) -> str:
    """The host of its environment, or of the service that has it."""
    if item.environment:
        return host_of(item.environment)
    return item.address.partition("://")[2].rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class KeptAs:
    """The wish of a user for a persisted result: a name that outlives the application, a service. May be empty."""

    name: str = ""
    service: str = ""


class PersistedResult:
    """The result of one persisted step of a pipeline. `step` is known by its identity only."""

    def __init__(self, name: str, step: object, release: Release, kept: KeptAs) -> None:
        self.name = name
        self.kept = kept
        self.step = step
        self._release = release
        self._making = threading.Lock()
        self._guard = threading.Lock()
        """Never held while anything is waited for: the JobMaster's thread takes it too."""
        self._held: HeldResult | None = None
        self._run = 0
        """Which making the state below is of; what a former one says is ignored."""
        self._was_lost = False
        self._dropped = False

    @property
    def held(self) -> HeldResult | None:
        """The partitions that are held now."""
        return self._held

    @property
    def state(self) -> str:
        """`lazy`, `materialised` or `lost`."""
        with self._guard:
            if self._held is not None:
                return "materialised"
            return "lost" if self._was_lost else "lazy"

    def get(self, make: Make) -> HeldResult | None:
        """The held partitions, made now if there are none; None if they were dropped or lost while they were made.

        Raises what `make` raises; nothing is kept then.
        """
        with self._making:
            with self._guard:
                if self._held is not None or self._dropped:
                    return self._held
                self._run += 1
                run = self._run
            held = HeldResult.of(make(lambda: self._lose(run)))
            with self._guard:
                if run == self._run and not self._dropped:
                    self._held, self._was_lost = held, False
                    return held
            self._release(held.job)
            return None

    def drop(self) -> None:
        """Release it for good; idempotent."""
        with self._guard:
            self._dropped = True
            held, self._held = self._held, None
        if held is not None:
            self._release(held.job)

    def _lose(self, run: int) -> None:
        with self._guard:
            if run == self._run:
                self._run += 1
                self._held, self._was_lost = None, True


class PersistedResults:
    """All persisted results of one application, by the step they are the result of."""

    def __init__(self, release: Release) -> None:
        self._release = release
        self._lock = threading.Lock()
        self._by_step: dict[int, PersistedResult] = {}
        self._count = 0

    def __iter__(self) -> Iterator[PersistedResult]:
        with self._lock:
            return iter(list(self._by_step.values()))

    def add(self, step: object, title: str, kept: KeptAs = KeptAs()) -> PersistedResult:
        """The result of this step, made known with a number and this title where it is not yet."""
        with self._lock:
            found = self._by_step.get(id(step))
            if found is None:
                self._count += 1
                # It keeps the step alive, so no other object can have its id.
                found = self._by_step[id(step)] = PersistedResult(
                    f"d{self._count} {kept.name or title}", step, self._release, kept
                )
            return found

    def find(self, step: object) -> PersistedResult | None:
        """The result of this step, if it is persisted."""
        with self._lock:
            return self._by_step.get(id(step))

    def remove(self, step: object) -> None:
        """Drop the result of this step; nothing where it is not persisted."""
        with self._lock:
            found = self._by_step.pop(id(step), None)
        if found is not None:
            found.drop()
