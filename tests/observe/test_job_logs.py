# SPDX-License-Identifier: Apache-2.0
"""The logs of many jobs, written beside whoever says what happens."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from penstock.observe import read_events
from penstock.observe.job_logs import JobLogs


def test_each_job_has_a_file(tmp_path: Path) -> None:
    """In order, each with its own events, however they are mixed; a file ends with its job."""
    logs = JobLogs(str(tmp_path), "app")
    for number in range(100):
        logs.say(f"j{number % 2}", "step", {"number": number})
    logs.end("j0")
    logs.close()
    for job in (0, 1):
        events = list(read_events(logs.path(f"j{job}")))
        assert [event["number"] for event in events] == list(range(job, 100, 2))
        assert {event["job"] for event in events} == {f"j{job}"}


def test_a_folder_that_can_not_be_written_fails_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One warning for each job, which names the file; other jobs' logs go on."""
    logs = JobLogs(str(tmp_path), "app")
    logs.path("j1").mkdir()
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            logs.say("j1", "step", {})
            logs.say("j2", "step", {})
        logs.close()
    (warning,) = [record.getMessage() for record in caplog.records]
    assert str(logs.path("j1")) in warning
    assert len(list(read_events(logs.path("j2")))) == 10
