# SPDX-License-Identifier: Apache-2.0
"""Figures of a job's progress: short, and rates over the last seconds."""

from __future__ import annotations

from penstock.observe import ProgressSnapshot, ShownVertex
from penstock.observe.progress import RATE_SECONDS, Rates, short_bytes, short_count, short_time, whole_rates


def job(rows: int, seconds: float, key: str = "j1") -> ProgressSnapshot:
    """A job of two stages of the same name, of which the second one has read nothing."""
    return ProgressSnapshot("job", (ShownVertex("a", 1, 1, rows), ShownVertex("a", 1, 1, 0)), seconds, key)


def test_rates_are_those_of_the_last_seconds() -> None:
    """Reports come in steps, so a rate is taken over some seconds; before there are two frames there is none."""
    rates = Rates()
    found = [rates.of([job(1000 * quarter, quarter / 4)])["j1"] for quarter in range(5)]
    assert found == [(None, None)] + [(4000.0, 0.0)] * 4
    later = [rates.of([job(4000, 1 + quarter / 4)])["j1"][0] for quarter in range(1, 17)]
    assert later[-1] == 0.0
    assert all(rate is not None and rate > 0 for rate in later[: int(RATE_SECONDS * 4) - 1])


def test_rates_of_jobs_are_apart() -> None:
    """By key, whatever their names; one that begins anew with fewer rows has no rate below zero."""
    rates = Rates()
    rates.of([job(1000, 1.0), job(0, 1.0, "j2")])
    assert rates.of([job(500, 2.0), job(100, 2.0, "j2")]) == {"j1": (0.0, 0.0), "j2": (100.0, 0.0)}


def test_the_last_frame_has_the_rates_of_all_the_time() -> None:
    """Rows over the seconds of the job."""
    assert whole_rates(job(100, 4.0)) == (25.0, 0.0)
    assert whole_rates(job(100, 0.0)) == (None, None)


def test_counts_stay_short() -> None:
    """Two or three significant places are enough to watch, and no figure has four digits and a unit."""
    counts = {0: "0", 999: "999", 1_000: "1.0k", 1_250: "1.2k", 12_500: "12k", 999_999: "1.0M", 3_400_000: "3.4M"}
    assert {count: short_count(count) for count in counts} == counts
    assert short_count(5e15) == "5000T"
    assert [short_bytes(count) for count in (0, 1e3, 640e6)] == ["0 B", "1.0 kB", "640 MB"]
    assert [short_time(seconds) for seconds in (0, 9.96, 59.6, 3599, 3661)] == [
        "0.0 s",
        "10 s",
        "1 min 0 s",
        "59 min 59 s",
        "1 h 1 min",
    ]
