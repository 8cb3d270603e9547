# SPDX-License-Identifier: Apache-2.0
"""The pulse of an environment process, and what becomes of the place of one that stands still."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.attachment.attachment import attach
from penstock.attachment.launch import EnvironmentLaunch
from penstock.errors import EnvironmentLostError
from penstock.link.pulse import Pulse, PulseWatch
from penstock.link.rendezvous import Rendezvous
from penstock.testing import DEADLINE, wait_until
from underway import listed


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Rendezvous]:
    """A rendezvous folder that somebody lives in."""
    place = Rendezvous(tmp_path / "penstock" / "app")
    place.make()
    lock = place.take_lock()
    assert lock is not None
    yield place
    os.close(lock)


def test_a_pulse_that_stands_is_found_and_one_that_beats_is_not(place: Rendezvous) -> None:
    """A watch of a tenth of a second: it starts anew with each beat."""
    pulse = Pulse(place.pulse)
    watch = PulseWatch(place.pulse, 0.1)
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        pulse.beat()
        assert not watch.has_stopped()
    wait_until(watch.has_stopped, "it stands")
    assert watch.age > 0.1
    pulse.beat()
    assert not watch.has_stopped()
    pulse.close()


def test_what_has_no_pulse_never_stands(tmp_path: Path) -> None:
    """An environment that is just starting, and those of some tests."""
    watch = PulseWatch(tmp_path / "none", 0.0)
    assert not watch.has_stopped()
    assert watch.age == 0.0


def test_the_place_of_one_that_cannot_be_killed_is_given_to_another_once(place: Rendezvous) -> None:
    """It keeps its folder under another name, and its lock; of two that try, the second changes nothing."""
    before = place.lock.stat()
    place.notes.write_text("/elsewhere\n")
    place.results.mkdir()
    place.set_aside(before)
    assert not place.results.exists()
    assert place.notes.read_text() == "/elsewhere\n"
    fresh = place.take_lock()
    assert fresh is not None
    assert place.is_locked_by(fresh)
    place.set_aside(before)
    assert place.is_locked_by(fresh)
    os.close(fresh)
    assert len(listed(place.folder.parent)) == 2


def test_a_starter_that_never_makes_a_socket_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    """Somebody holds the lock and nobody listens: the error says where it waited, and for how long."""
    conf = {
        "spark.penstock.environment.directory": str(tmp_path),
        "spark.penstock.environment.startTimeout": "200ms",
    }
    launch = EnvironmentLaunch("app", b"s" * 32, "", conf)
    launch.place().make()
    lock = launch.place().take_lock()
    assert lock is not None
    began = time.monotonic()
    with pytest.raises(EnvironmentLostError, match="startTimeout"):
        attach(launch)
    assert time.monotonic() - began < DEADLINE
    os.close(lock)
