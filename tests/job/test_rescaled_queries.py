# SPDX-License-Identifier: Apache-2.0
"""A query is rescaled once at a time, and not when it is told to stop: whoever waits hears which."""

from __future__ import annotations

import pytest

from job_graphs import chain
from penstock.checkpoint.errors import CheckpointError
from penstock.errors import JobError
from penstock.job.rescaling import Rescaling

PLAN = chain(2)


def test_it_goes_on_by_the_plan_that_was_asked_for() -> None:
    """The one who asked hears of it, a second one is refused meanwhile and may ask after it."""
    rescaling = Rescaling()
    assert rescaling.take() is None
    rescaling.ask(PLAN, "q")
    with pytest.raises(CheckpointError, match="query q is not rescaled: somebody else rescales it"):
        rescaling.ask(PLAN, "q")
    with pytest.raises(TimeoutError, match="query q has not stopped within 0 s"):
        rescaling.wait("q", 0)
    assert rescaling.take() is PLAN
    rescaling.gone_on()
    rescaling.wait("q", 0)
    assert rescaling.take() is None
    rescaling.ask(PLAN, "q")


def test_a_query_that_is_told_to_stop_or_fails_does_not_go_on() -> None:
    """A stop that comes later wins, and the error of the end is what the one who asked is told."""
    rescaling = Rescaling()
    rescaling.ask(PLAN, "q")
    rescaling.end()
    assert rescaling.take() is None
    rescaling.end(JobError("its function raised"))
    rescaling.end(JobError("once more"))
    with pytest.raises(JobError, match="its function raised"):
        rescaling.wait("q", 0)
    with pytest.raises(CheckpointError, match="query q is not rescaled: it has ended, or is told to stop"):
        rescaling.ask(PLAN, "q")
