# SPDX-License-Identifier: Apache-2.0
"""Event logs of real jobs: what a finished job was comes back out of its log, equal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.errors import JobError, SettingError
from penstock.job.shell.history import replayed
from penstock.observe import read_events
from penstock.testing import DEADLINE, wait_until
from penstock_torture.gates import Gates, stream
from penstock_torture.process_launcher import Nursery
from process_cluster import PRELOADED, ProcessCluster
from underway import listed

pytestmark = pytest.mark.processes


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ProcessCluster]:
    """One executor, whose jobs' logs are in the folder `logs`."""
    conf = {"spark.penstock.observe.eventLog": str(tmp_path / "logs")}
    with Nursery(list(PRELOADED)) as nursery:
        made = ProcessCluster(nursery, executors=1, conf=conf)
        try:
            yield made
        finally:
            made.close()


def log_of(folder: Path, job: str) -> Path:
    """The log of a job, once that is whole."""

    def is_whole() -> bool:
        found = listed(folder / "logs", f"*-{job}.jsonl")
        return bool(found) and any(event["event"] == "job_ended" for event in read_events(found[0]))

    wait_until(is_whole, f"the log of {job} is whole")
    (path,) = listed(folder / "logs", f"*-{job}.jsonl")
    return path


def test_a_finished_job_is_replayed_with_equal_figures(
    cluster: ProcessCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Result, trace, figures of each subtask, and the bottleneck; the command shows them."""
    gates = Gates(str(tmp_path))
    gates.open_all()
    handle = cluster.submit(stream(gates, "blocking"))
    result = handle.wait(DEADLINE).result
    path = log_of(tmp_path, handle.job)
    again = replayed(path)
    assert again == result
    assert again.statistics() == result.statistics()
    assert result.bottleneck is not None
    assert result.trace_of("bottleneck")[0][2] == result.bottleneck.text
    assert sum(figures["rows_in"] for figures in result.subtasks[1]) == result.metrics[1]["rows_in"] > 0
    assert path.stat().st_mode & 0o777 == 0o600
    assert main(["replay", str(path)]) == 0
    shown = capsys.readouterr().out
    assert repr(result) in shown
    assert result.bottleneck.text in shown
    assert main(["replay", "--json", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["stages"][1]["figures"]["rows_in"] == result.metrics[1]["rows_in"]


def test_a_job_that_fails_has_a_log_too(cluster: ProcessCluster, tmp_path: Path) -> None:
    """It says why; a log without an end is refused in words."""
    failing = stream(Gates(str(tmp_path)), "pipelined").mapInArrow(_broken, "id long, origin long, target long")
    Gates(str(tmp_path)).open_all()
    handle = cluster.submit(failing)
    with pytest.raises(JobError):
        handle.wait(DEADLINE)
    path = log_of(tmp_path, handle.job)
    (end,) = [event for event in read_events(path) if event["event"] == "job_ended"]
    assert "no good" in end["error"]
    assert replayed(path).state.name == end["state"] == "FAILED"
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(path.read_bytes().rsplit(b"\n", 2)[0] + b"\n")
    with pytest.raises(SettingError, match="has 0 events job_ended"):
        replayed(cut)
    assert main(["replay", str(tmp_path / "none")]) == 2


def _broken(batches: object) -> object:
    raise ValueError("no good")
