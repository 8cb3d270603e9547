# SPDX-License-Identifier: Apache-2.0
"""The clock of leases: what a process overslept does not count against its peers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.link.leases import WakingClock


class Wall:
    """A clock on the wall that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        """The time that it shows."""
        return self.seconds


def test_time_counts_while_somebody_looks_and_a_pause_counts_once() -> None:
    """Forty-five seconds without a look are one: a lease of sixty has fifty-nine left."""
    wall = Wall()
    clock = WakingClock(wall, most=1.0)
    for _ in range(20):
        wall.seconds += 0.5
        clock.now()
    assert clock.now() == pytest.approx(10.0)
    wall.seconds += 45.0
    assert clock.now() == pytest.approx(11.0)
    assert clock.now() == pytest.approx(11.0), "it stands while the wall's does"


@given(steps=st.lists(st.floats(-5, 500), max_size=50))
def test_it_never_goes_back_and_never_faster_than_the_wall(steps: list[float]) -> None:
    """This holds whatever the wall's clock does."""
    wall = Wall()
    clock = WakingClock(wall, most=1.0)
    before = clock.now()
    for step in steps:
        wall.seconds += step
        now = clock.now()
        assert 0 <= now - before <= min(1.0, max(0.0, step)) + 1e-6
        before = now
