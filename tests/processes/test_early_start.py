# SPDX-License-Identifier: Apache-2.0
"""A driver beside its tasks starts their environment ahead of them."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from local_harness import wait_for_end
from penstock.attachment.attachment import attach
from penstock.attachment.launch import EnvironmentLaunch, start_early
from penstock.errors import EnvironmentLostError
from penstock.link.commands import Shutdown
from penstock.testing import DEADLINE


def test_tasks_find_the_environment_that_a_driver_started(tmp_path: Path) -> None:
    """It has the variables that Spark gives its workers; a second start finds it there and starts none."""
    launch = EnvironmentLaunch(f"early-{secrets.token_hex(4)}", b"a secret of the tests", "", {})
    start_early(launch, {"SPARK_LOCAL_DIRS": str(tmp_path)})
    start_early(launch, {"SPARK_LOCAL_DIRS": "elsewhere"})
    attachment = attach(launch)
    try:
        pid = int(attachment.environment.rsplit("-", 2)[1])
        ended = os.pidfd_open(pid)
        assert f"SPARK_LOCAL_DIRS={tmp_path}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    finally:
        attachment.ask(Shutdown(), DEADLINE)
        attachment.close()
    wait_for_end(ended)


def test_an_environment_that_takes_too_long_to_start_is_given_up(tmp_path: Path) -> None:
    """The error names the setting, and nobody holds the lock afterwards: the next task may try anew."""
    conf = {
        "spark.penstock.environment.directory": str(tmp_path),
        "spark.penstock.environment.startTimeout": "1ms",
    }
    launch = EnvironmentLaunch("slow", b"a secret of the tests", "", conf)
    with pytest.raises(EnvironmentLostError, match="startTimeout"):
        start_early(launch, {})
    lock = launch.place().take_lock()
    assert lock is not None
    os.close(lock)
