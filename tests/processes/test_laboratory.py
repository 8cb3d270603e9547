# SPDX-License-Identifier: Apache-2.0
"""The laboratory runs: two environment processes, a JobMaster, one TCP connection; and leaves nothing."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.testing import DEADLINE, wait_until
from penstock_bench.environment import environment_pids
from penstock_lab.options import LabOptions
from penstock_lab.runs import run

pytestmark = [pytest.mark.processes, pytest.mark.thorough]

SHORT = LabOptions(seconds=1.0, rate=150.0)
"""Few batches, so that a busy machine keeps up with them."""


def test_one_stuck_consumer_stops_the_other_under_tcp_alone() -> None:
    """Loosely: under credit the healthy one keeps more than half of its rate, under tcp next to nothing."""
    credit, tcp = (run("A", scheme, SHORT) for scheme in ("credit", "tcp"))
    assert (credit.connections, tcp.connections) == (1, 1)
    assert credit.lone_rate > 50
    assert credit.share > 0.5
    assert tcp.share < 0.3
    assert tcp.buffers_in_flight > credit.buffers_in_flight
    assert credit.source_noticed is not None


def test_a_flag_pauses_the_source_and_a_checkpoint_comes_through() -> None:
    """Under throttle, with one consumer slowed: the source stands still for a while, again and again."""
    found = run("B", "throttle", LabOptions(seconds=1.0, rate=300.0, slowdown=5.0, queue=16))
    assert found.checkpoint is not None
    assert found.source_noticed is not None
    assert 0 in found.source_series
    assert found.variation > 0.3


def test_the_command_writes_its_report_and_can_be_interrupted(tmp_path: Path) -> None:
    """With plots where matplotlib is; interrupted it ends with code 130, and all of its processes with it."""
    command = [sys.executable, "-m", "penstock_lab", "--out", str(tmp_path), "--json"]
    few = ["--schemes", "credit", "--scenarios", "A", "--rate", "100"]
    ended = subprocess.run([*command, *few, "--seconds", "1"], capture_output=True, text=True, timeout=DEADLINE)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == json.loads((tmp_path / "backpressure.json").read_text())
    assert "1 of 1: scenario A under credit" in ended.stderr
    page = (tmp_path / "backpressure.html").read_text()
    has_plots = importlib.util.find_spec("matplotlib") is not None
    assert ("data:image/png;base64," in page) is has_plots
    assert ("matplotlib is not installed" in page) is not has_plots
    running = subprocess.Popen([*command, *few, "--seconds", "60"], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: len(environment_pids(f"lab-{running.pid}-")) == 2, "both environments run")
    pids = environment_pids(f"lab-{running.pid}-")
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=DEADLINE)
    assert running.returncode == 130
    assert said.splitlines()[-1] == "penstock: interrupted"
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "they have ended")


def test_a_folder_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    """Before anything runs: one line, code 2."""
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "penstock_lab", "--out", str(tmp_path / "file")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert ended.returncode == 2
    assert ended.stderr.startswith("penstock: the report can't be written to")
    assert len(ended.stderr.splitlines()) == 1
