# SPDX-License-Identifier: Apache-2.0
"""Storm's scheme in one environment: flags of its gates go to a coordinator, and its sources pause at the word of it.

A source is a task without a gate. It pauses because its writers get no segments more; what they have at hand they
may still fill. The coordinator is the JobMaster, or what `spark.penstock.network.throttleCoordinator` names. A job
has no flag of a gate that is closed, of an environment that is lost, or after its end.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Protocol, cast

from penstock.environment.ports.inputs import GatePort
from penstock.shuffle.registry import plug_in


class Coordinator(Protocol):
    """The place where flags are raised, and which tells all environments of a job that has one."""

    def put(self, job: str, flag: str, *, is_raised: bool) -> None:
        """A gate raises its flag, or takes it down. In order, and never waited for."""

    def forget(self, job: str) -> None:
        """The job is over."""

    async def close(self) -> None:
        """Take all flags of this environment down, as far as that can be done; idempotent."""


class Told(Protocol):
    """Called on the event loop when the first flag of a job goes up, or its last one down."""

    def __call__(self, job: str, *, is_raised: bool) -> None:
        """The job, and whether it has a flag."""


class CoordinatorPlugin(Protocol):
    """A plug-in that makes coordinators (`spark.penstock.network.throttleCoordinator=module:attribute@address`)."""

    def coordinate(self, address: str, application: str, environment: str, told: Told) -> Coordinator:
        """The flags of one environment, at this address; on the event loop. Raises SettingError."""


def other_coordinator(named: str, application: str, environment: str, told: Told) -> Coordinator:
    """The coordinator that the setting names; raises SettingError."""
    name, _, address = named.partition("@")
    found = plug_in("throttle coordinator", "penstock.throttle_coordinators", name, "coordinate")
    return cast("CoordinatorPlugin", found).coordinate(address, application, environment, told)


class Pausing(Protocol):
    """A task, as far as it may have to pause."""

    def pause_sources(self, jobs: Container[str]) -> None:
        """Pause its writers for these jobs, if it is a source, and let those for others go on."""


class Throttling:
    """The flags of this environment's gates, and the sources that pause. `tasks` are those that are attached."""

    coordinator: Coordinator
    """Set before the first flag."""

    def __init__(self, tasks: Iterable[Pausing]) -> None:
        self._tasks = tasks
        self._jobs: set[str] = set()

    def flag(self, gate: GatePort, *, is_raised: bool) -> None:
        """A gate of this environment holds more than its high-water mark, or less than its low one again."""
        self.coordinator.put(gate.attempt.job, f"{gate.attempt}-{gate.port}", is_raised=is_raised)

    def told(self, job: str, *, is_raised: bool) -> None:
        """The coordinator says that some gate of this job has its flag up, or that none has."""
        (self._jobs.add if is_raised else self._jobs.discard)(job)
        for task in list(self._tasks):
            self.settle(task)

    def settle(self, task: Pausing) -> None:
        """Pause a task's writers, or let them go on: it has opened a port, or a flag has changed."""
        task.pause_sources(self._jobs)

    def forget(self, job: str) -> None:
        """A job is over."""
        self.coordinator.forget(job)
        self.told(job, is_raised=False)

    async def close(self) -> None:
        """No flag of this environment stays up; idempotent."""
        await self.coordinator.close()
