# SPDX-License-Identifier: Apache-2.0
"""The manager's view of which workers are there, have room, and may get files. Pure, and not remembered.

Rules: a worker's own words count: its last beat says what room it has. One at whose address nothing listens gets no
new files until its next word; one that is a few beats late gets them only where there is no other. A task's word that
a worker can't be reached, or takes no more, counts for its application alone: for `leave_out` seconds that gets files
at other workers, if there are any.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.errors import NoStorageError
from penstock.remote import messages as ask
from penstock.remote.manager_state import KnownWorker
from penstock.remote.placement import Candidate, placed

_LATE_SECONDS = 5.0
"""A worker that lives has beaten within this time, several times."""
_CAUSE_LETTERS = 500


@dataclass(slots=True)
class _Seen:
    """The last words of a worker."""

    when: float
    free: int = 1
    """Hardly anything, as long as it has not said how much: another one goes first, if there is one."""
    load: float = 0.0
    gone: str = ""
    """Why the manager takes it for gone, until its next word; else empty."""


class WorkerSights:
    """These workers, with so many files each; `now` is in seconds of any clock."""

    def __init__(
        self, workers: Mapping[str, KnownWorker], files: Mapping[str, int], leave_out: float, now: float
    ) -> None:
        self._workers = workers
        self._files = files
        self._leave_out = leave_out
        self._seen = {worker: _Seen(now) for worker in workers}
        self._avoided: dict[str, dict[str, tuple[float, str]]] = {}
        """By application and worker: until when it gets files elsewhere, and why."""

    def forget_unknown(self) -> None:
        """Forget workers that are known no more."""
        self._seen = {worker: seen for worker, seen in self._seen.items() if worker in self._workers}

    def heard(self, worker: str) -> float:
        """The time of a worker's last word; for ever ago for one that is unknown."""
        seen = self._seen.get(worker)
        return -math.inf if seen is None else seen.when

    def silent(self, since: float) -> list[str]:
        """The workers without a word since then."""
        return [name for name, seen in self._seen.items() if seen.when < since]

    def came(self, worker: str, now: float) -> None:
        """A worker is there, or again."""
        seen = self._seen.setdefault(worker, _Seen(now))
        seen.when, seen.gone = now, ""

    def beat(self, worker: str, asked: ask.Beat, now: float) -> None:
        """A worker says how it is."""
        self._seen[worker] = _Seen(now, asked.free, asked.load)

    def lose(self, worker: str) -> None:
        """A worker is given up; idempotent."""
        self._seen.pop(worker, None)

    def avoid(self, application: str, worker: str, cause: str, now: float) -> None:
        """An application could not reach a worker, or it took no more: its files go elsewhere for a while."""
        if worker in self._seen:
            self._avoided.setdefault(application, {})[worker] = now + self._leave_out, cause[:_CAUSE_LETTERS]

    def end(self, application: str) -> None:
        """An application is over; idempotent."""
        self._avoided.pop(application, None)

    def miss(self, worker: str, cause: str) -> None:
        """Nothing listens at a worker's address: no new files go there until its next word."""
        if (seen := self._seen.get(worker)) is not None:
            seen.gone = cause

    def out_of(self, application: str, now: float) -> dict[str, str]:
        """The workers that get no files of an application, or only where there is no other, and why."""
        late = {
            name: f"silent for {now - seen.when:.0f} s"
            for name, seen in self._seen.items()
            if now - seen.when > _LATE_SECONDS
        }
        avoided = {name: cause for name, (until, cause) in self._avoided.get(application, {}).items() if until > now}
        return late | avoided | {name: seen.gone for name, seen in self._seen.items() if seen.gone}

    def placed(self, application: str, files: int, now: float, but: Iterable[str] = ()) -> list[str]:
        """A worker for each of so many files, not one of `but`; NoStorageError where there is none."""
        leaving = [name for name, known in self._workers.items() if known.is_leaving]
        refused = {*but, *leaving}
        there = [
            Candidate(name, seen.free, seen.load, self._files.get(name, 0))
            for name, seen in sorted(self._seen.items())
            if name not in refused and not seen.gone
        ]
        out = self.out_of(application, now)
        found = placed(files, [each for each in there if each.worker not in out]) or placed(files, there)
        if not found:
            told = ", ".join(f"{name} ({cause})" for name, cause in out.items())
            raise NoStorageError(
                f"no worker of the remote shuffle service has room: {len(self._workers)} are known, left out"
                f" are {told or 'none'}, leaving {', '.join(leaving) or 'none'}. Start workers (penstock service"
                " remote worker), or free space on their disks"
            )
        return found
