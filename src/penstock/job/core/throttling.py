# SPDX-License-Identifier: Apache-2.0
"""The flags of gates that hold too much, by job: Storm's scheme with the JobMaster as its coordinator. Pure.

Rules. A job's sources pause while it has a flag that is up. All environments are told when that changes, because a
source may be anywhere. An environment that is lost takes its flags along, and a job that is over has none. One that
attaches is told of all jobs that have one.
"""

from __future__ import annotations

from penstock.link.commands import PauseSources


class Flags:
    """All flags that are up. Each method returns what environments are to be told."""

    def __init__(self) -> None:
        self._up: dict[str, set[tuple[str, str]]] = {}

    def put(self, environment: str, job: str, flag: str, *, is_raised: bool) -> list[PauseSources]:
        """A gate of an environment raises its flag, or takes it down."""
        if is_raised:
            flags = self._up.setdefault(job, set())
            is_first = not flags
            flags.add((environment, flag))
            return [PauseSources(job, is_raised=True)] if is_first else []
        return self._drop(job, {(environment, flag)})

    def lost(self, environment: str) -> list[PauseSources]:
        """An environment is gone."""
        told = []
        for job, flags in list(self._up.items()):
            told += self._drop(job, {each for each in flags if each[0] == environment})
        return told

    def ended(self, job: str) -> list[PauseSources]:
        """A job is over."""
        return self._drop(job, set(self._up.get(job, ())))

    def attached(self) -> list[PauseSources]:
        """The commands to an environment that attaches now."""
        return [PauseSources(job, is_raised=True) for job in self._up]

    def _drop(self, job: str, gone: set[tuple[str, str]]) -> list[PauseSources]:
        flags = self._up.get(job)
        if not flags or not flags & gone:
            return []
        flags -= gone
        if flags:
            return []
        del self._up[job]
        return [PauseSources(job, is_raised=False)]
