# SPDX-License-Identifier: Apache-2.0
"""The laboratory's figures out of times, its options, and its report: without running anything."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SettingError, how_to_install
from penstock_lab import plots
from penstock_lab.figures import (
    SinkTrace,
    SourceTrace,
    Window,
    checkpoints,
    in_flight,
    noticed,
    per_bin,
    rate,
    starvation,
    variation,
)
from penstock_lab.options import LabOptions, lab_options
from penstock_lab.report import COLUMNS, as_html, as_json, row, write
from penstock_lab.runs import RunFigures
from penstock_lab.verdicts import verdicts

WINDOW = Window(10.0, 12.0)
STEADY = [10 + number * 0.01 for number in range(200)]


def test_a_steady_rate() -> None:
    """Ten in each bin, no variation, no starvation."""
    assert rate(STEADY, WINDOW) == 100
    assert set(per_bin(STEADY, WINDOW)) <= {9, 10, 11}
    assert variation(per_bin(STEADY, WINDOW)) < 0.1
    assert starvation(STEADY, WINDOW) == 0


def test_bursts_vary_and_starve() -> None:
    """Everything in one tenth of a second of each second."""
    bursts = [second + number * 0.001 for second in (10, 11) for number in range(100)]
    assert per_bin(bursts, WINDOW) == [100, *[0] * 9] * 2
    assert variation(per_bin(bursts, WINDOW)) == pytest.approx(3)
    assert starvation(bursts, WINDOW) == pytest.approx(1.8, abs=0.02)


def test_nothing_at_all_starves_all_the_time() -> None:
    """And varies not at all."""
    assert starvation([], WINDOW) == WINDOW.seconds
    assert variation(per_bin([], WINDOW)) == 0


@given(st.lists(st.floats(0, 20, allow_nan=False), max_size=80).map(sorted))
def test_bins_hold_what_is_in_the_window(times: list[float]) -> None:
    """Each batch once, and starvation is never longer than the window."""
    assert sum(per_bin(times, WINDOW)) == sum(10 <= each < 12 for each in times) or any(
        math.isclose(each, 12, abs_tol=1e-6) for each in times
    )
    assert 0 <= starvation(times, WINDOW) <= WINDOW.seconds + 1e-9


def test_a_source_notices_when_it_has_no_room_for_a_while() -> None:
    """Short refusals are jitter, those before the moment count from it."""
    trace = SourceTrace(refused=[(1.0, 1.001), (5.5, 5.9), (7.0, math.inf)])
    assert noticed(trace, 5.0) == 0.5
    assert noticed(trace, 5.7) == 0.0
    assert noticed(trace, 6.0) == 1.0
    assert noticed(SourceTrace(refused=[(1.0, 2.0)]), 5.0) is None


def test_batches_in_flight_and_checkpoints() -> None:
    """Given and not taken; from the trigger to the last consumer, complete ones only."""
    assert in_flight([10.0, 10.01, 10.02], [10.05], Window(10, 10.3)) == [2, 2, 2]
    trace = SourceTrace(triggered={1: 5.0, 2: 7.0})
    assert checkpoints(trace, [SinkTrace(barriers={1: 5.2, 2: 7.1}), SinkTrace(barriers={1: 5.5})]) == [0.5]


def figures_of(scenario: str, scheme: str, **changes: object) -> RunFigures:
    """Figures as they are expected of a scheme."""
    healthy = {"A": {"credit": 990.0, "tcp": 0.0, "throttle": 0.0}, "B": {}}[scenario].get(scheme, 100.0)
    times = {"credit": (0.05, 0.0, 0.2, 0.2), "tcp": (0.06, 0.5, 0.4, 0.5), "throttle": (0.1, 3.0, 1.5, 0.3)}
    notice, starved, varies, checkpoint = times[scheme]
    made = RunFigures(
        scenario, scheme, 1000.0, healthy, notice, 20.0, 2.0, starved, 4.0, varies, (checkpoint,), 1, -1.0, (1,), (1,)
    )
    return replace(made, **changes)  # type: ignore[arg-type]


RUNS = {
    (scenario, scheme): figures_of(scenario, scheme)
    for scenario in ("A", "B")
    for scheme in ("credit", "tcp", "throttle")
}


def test_verdicts_compare_figures_with_what_is_expected() -> None:
    """All hold here; each falls with its figure, and then says why it may have."""
    options = LabOptions()
    assert [verdict.holds for verdict in verdicts(RUNS, options)] == [True] * 6
    worse = {
        0: figures_of("A", "credit", healthy_rate=500.0),
        1: figures_of("A", "tcp", healthy_rate=500.0),
        2: figures_of("B", "throttle", variation=0.3),
        3: figures_of("B", "tcp", checkpoints=(0.1,)),
        4: figures_of("B", "tcp", source_noticed=None),
        5: figures_of("B", "tcp", starved=4.0),
    }
    for place, run in worse.items():
        found = verdicts({**RUNS, (run.scenario, run.scheme): run}, options)
        assert [verdict.holds for verdict in found] == [number != place for number in range(6)]
        assert found[place].why
    assert verdicts({}, options) == []


def test_the_report_has_every_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The JSON all of them, the page a table for each scenario. Plots keep files of fonts open, so not here."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    page, figures = write(tmp_path / "new" / "folder", RUNS, LabOptions())
    found = json.loads(figures.read_text())
    assert [(each["scenario"], each["scheme"]) for each in found["runs"]] == list(RUNS)
    assert found["runs"][0]["share"] == 0.99
    assert len(found["verdicts"]) == 6
    assert found["options"]["rate"] == 1000
    text = page.read_text()
    assert text.count("<table>") == 2
    assert all(column in text for column in COLUMNS)
    assert all(cell in text for cell in row(RUNS["B", "throttle"]))
    assert as_json(RUNS, LabOptions()) == figures.read_text()


def test_without_matplotlib_the_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """And how it is installed; the tables are there."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    text = as_html(RUNS, LabOptions())
    assert text.count(escape(how_to_install("lab"))) == 2
    assert text.count("<table>") == 2
    with pytest.raises(plots.NoPlotsError):
        plots.series_plot(list(RUNS.values()))


GIVEN = {
    "schemes": "credit,tcp",
    "scenarios": "A",
    "seconds": 2.0,
    "rate": 10.0,
    "slowdown": 5.0,
    "segment": "16k",
    "socket_buffer": "64k",
    "exclusive": 2,
    "floating": 8,
    "queue": 64,
    "coordinator": "",
}


def test_options_of_a_command_line() -> None:
    """Lists and sizes are read, and become an application's settings."""
    options = lab_options(GIVEN)
    assert (options.schemes, options.scenarios, options.segment) == (("credit", "tcp"), ("A",), 16384)
    conf = options.conf("tcp")
    assert conf["spark.penstock.network.flowControl"] == "tcp"
    assert conf["spark.penstock.network.socketBuffer"] == "65536"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("schemes", "storm", "--schemes takes"),
        ("schemes", ",", "--schemes takes"),
        ("scenarios", "C", "--scenarios takes"),
        ("seconds", 0.5, "--seconds"),
        ("rate", 0.0, "--rate"),
        ("slowdown", 1.0, "--slowdown"),
        ("segment", "5000", "--segment"),
        ("segment", "much", "--segment takes a size"),
        ("socket_buffer", "1", "--socket-buffer"),
        ("floating", 0, "--floating"),
        ("queue", 1, "--queue"),
    ],
)
def test_options_that_make_no_sense_are_refused(name: str, value: object, said: str) -> None:
    """By the name of the option."""
    with pytest.raises(SettingError, match=said):
        lab_options({**GIVEN, name: value})
