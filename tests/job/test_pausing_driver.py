# SPDX-License-Identifier: Apache-2.0
"""A driver that did not run for a while: neither its leases nor its deadlines run out for that."""

from __future__ import annotations

import asyncio

from penstock.job.shell.environments import AttachedEnvironment, Environments
from penstock.job.shell.timers import WakingTimer
from penstock.link.leases import WakingClock
from penstock.link.master import AttachEnvironment
from penstock.testing import DEADLINE

SAID = AttachEnvironment("env-1", "tcp://h:1", "h", 1)

LEASE = 60.0


class Wall:
    """A clock on the wall that a test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        """The time that it shows."""
        return self.seconds


def silent(environments: Environments, clock: WakingClock) -> list[str]:
    """Whose lease is over, as the watch asks."""
    return [environment.name for environment in environments.silent_since(clock.now() - LEASE)]


def test_a_lease_counts_only_what_the_driver_was_awake_for() -> None:
    """An hour's pause loses nobody; sixty seconds in which a heartbeat could have come do."""
    wall = Wall()
    clock, environments = WakingClock(wall), Environments()
    environments.attach(AttachedEnvironment(SAID, clock.now()))
    wall.seconds += 3600
    assert silent(environments, clock) == []
    for _ in range(118):
        wall.seconds += 0.5
        assert silent(environments, clock) == []
    wall.seconds += 0.6
    assert silent(environments, clock) == ["env-1"]


def test_a_deadline_that_passed_while_the_driver_did_not_run_waits_for_the_rest() -> None:
    """The timer goes off, sees that a moment of its time counts only, and waits again."""

    async def run() -> list[float]:
        passed: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        wall, shown = Wall(), []

        def look() -> float:
            wall.seconds += 45.0
            shown.append(wall.seconds)
            return wall.seconds

        clock = WakingClock(look, most=0.01)
        WakingTimer(clock, 0.035, lambda: passed.set_result(clock.now()))
        await asyncio.wait_for(passed, DEADLINE)
        return shown

    assert len(asyncio.run(run())) >= 4, "it has looked again until the time had passed in which it was awake"


def test_a_timer_that_is_cancelled_never_calls() -> None:
    """Also where it has looked and waits for the rest."""

    async def run() -> list[str]:
        called: list[str] = []
        first = WakingTimer(WakingClock(), 0.01, lambda: called.append("first"))
        done = asyncio.Event()
        WakingTimer(WakingClock(), 0.02, done.set)
        first.cancel()
        await asyncio.wait_for(done.wait(), DEADLINE)
        return called

    assert asyncio.run(run()) == []
