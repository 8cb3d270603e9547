# SPDX-License-Identifier: Apache-2.0
"""The coroutines of an environment: the end of each is somebody's to know."""

from __future__ import annotations

import asyncio

from penstock.environment.supervision import Supervisor
from penstock.testing import DEADLINE


async def raises() -> None:
    """A loop with a fault."""
    raise KeyError("broken")


async def returns() -> None:
    """A loop that ends."""


async def goes_on() -> None:
    """A loop that does not."""
    await asyncio.Event().wait()


def test_a_loop_that_fails_or_ends_stops_the_environment_with_the_reason() -> None:
    """The other loops run on until it has been stopped."""

    async def run() -> list[str]:
        reasons: list[str] = []
        both = asyncio.Event()

        def stop(reason: str) -> None:
            reasons.append(reason)
            if len(reasons) == 2:
                both.set()

        supervisor = Supervisor(stop)
        supervisor.keep("heart", goes_on)
        supervisor.keep("left hand", raises)
        supervisor.keep("right hand", returns)
        await asyncio.wait_for(both.wait(), DEADLINE)
        await supervisor.close()
        return reasons

    assert asyncio.run(run()) == ["its left hand failed: KeyError('broken')", "its right hand ended"]


def test_work_that_fails_is_told_to_who_asked_for_it() -> None:
    """And to nobody when it ends well, or with the environment."""

    async def run() -> list[str]:
        told: list[str] = []
        done = asyncio.Event()

        def failed(error: Exception) -> None:
            told.append(repr(error))
            done.set()

        supervisor = Supervisor(told.append)
        supervisor.run(returns, failed)
        supervisor.run(goes_on, failed)
        supervisor.run(raises, failed)
        await asyncio.wait_for(done.wait(), DEADLINE)
        await supervisor.close()
        supervisor.run(raises, failed)
        await asyncio.sleep(0)
        return told

    assert asyncio.run(run()) == ["KeyError('broken')"]
