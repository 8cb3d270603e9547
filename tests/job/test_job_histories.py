# SPDX-License-Identifier: Apache-2.0
"""Those who are told the lives of jobs: one that is at fault costs no job anything."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest

from job_fakes import FakeEnvironment, ThreadLauncher
from job_graphs import chain
from penstock.graph.deployment import TaskDeployment
from penstock.job.launcher import Submission
from penstock.job.shell.history import JobMoment
from penstock.job.shell.master import JobMaster, MasterIdentity
from penstock.settings import Settings
from penstock.testing import DEADLINE
from penstock.web.store import JobStore

SECRET = b"s" * 32


class Faulty:
    """Raises whatever it is told."""

    def say(self, job: str, event: str, details: Mapping[str, object]) -> None:
        """Something has happened to a job."""
        raise RuntimeError("a fault of the listener")

    def look(self, moment: JobMoment) -> None:
        """A job that runs is like this now."""
        raise RuntimeError("a fault of the listener")

    def end(self, job: str) -> None:
        """Nothing more happens to a job."""

    def close(self) -> None:
        """Nothing happens any more."""


def test_a_listener_that_raises_costs_no_job_and_no_other_listener(caplog: pytest.LogCaptureFixture) -> None:
    """The job ends well, the store knows it, and the log says what is lacking."""

    def work(environment: FakeEnvironment, deployment: TaskDeployment) -> None:
        environment.finished(deployment.attempt)

    launcher = ThreadLauncher(work)
    master = JobMaster(MasterIdentity("app", SECRET), launcher, Settings())
    launcher.environment = FakeEnvironment(master.start(), SECRET, "e1")
    store, faulty = JobStore(), Faulty()
    with caplog.at_level(logging.ERROR):
        try:
            master.tell_jobs(faulty, faulty.look)
            master.tell_jobs(store, store.look)
            master.submit(Submission(master.new_job(), chain(2, result=False), Settings(), 4)).wait(DEADLINE)
            master.tell_no_more(faulty)
        finally:
            launcher.environment.close()
            master.close()
    assert store.jobs()[0]["state"] == "FINISHED"
    assert "a log or a page lacks" in caplog.text
