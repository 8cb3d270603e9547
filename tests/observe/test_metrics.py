# SPDX-License-Identifier: Apache-2.0
"""The table of metrics, and samples as the text that scrapers read."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.errors import PlanError
from penstock.link.figures import ChannelFigures, PartitionFigures
from penstock.link.master import Heartbeat
from penstock.observe import catalogue
from penstock.observe.endpoint import rendered
from penstock.observe.samples import Sample, heartbeat_samples, share_samples, task_samples
from penstock.shuffle import AttemptId, Metric, MetricKind, declared_metrics, load_service

ATTEMPT = AttemptId("j1", 2, 0, 3)
EVERY = [metric for metrics in catalogue.GROUPS.values() for metric in metrics]
LOCAL = declared_metrics(load_service("local"))


def every_sample() -> Iterator[Sample]:
    """Two samples of each metric that there is."""
    for number, metric in enumerate([*EVERY, *LOCAL]):
        for subject in ("one", 'the "other"\n\\'):
            yield Sample(metric, tuple(f"{label} {subject}" for label in metric.labels), number + 0.5)


def test_names_and_figures_are_told_once() -> None:
    """No two metrics share a name, and within a group no two come from one figure."""
    names = [metric.name for metric in [*EVERY, *LOCAL]]
    assert len(set(names)) == len(names)
    for metrics in (*catalogue.GROUPS.values(), LOCAL):
        figures = [metric.figure for metric in metrics if metric.figure]
        assert len(set(figures)) == len(figures)


@pytest.mark.parametrize("name", ["penstock_Rows_total", "rows__in_total", "rows_in", "_rows_total"])
def test_a_name_that_no_scraper_takes_is_refused(name: str) -> None:
    """A counter ends with `_total`, and letters are small."""
    with pytest.raises(PlanError, match="can't be named"):
        Metric(name, MetricKind.COUNTER, "Rows.", figure="rows")


def test_a_service_declares_no_metric_of_the_engine() -> None:
    """A name that begins as the engine's do, or other labels than a task's, are refused by name."""
    for metric in (
        Metric("penstock_task_rows_total", MetricKind.COUNTER, "Rows.", figure="rows"),
        Metric("mine_rows_total", MetricKind.COUNTER, "Rows.", ("job",), "rows"),
    ):
        service = type("Service", (), {"metrics": (metric,)})()
        with pytest.raises(PlanError, match=metric.name):
            declared_metrics(service)


def test_the_parser_reads_back_every_metric() -> None:
    """prometheus_client's own parser gives the samples that went in, with odd label values too."""
    samples = list(every_sample())
    _, text = rendered(samples)
    read = {
        (found.name, frozenset(found.labels.items())): found.value
        for family in text_string_to_metric_families(text.decode())
        for found in family.samples
    }
    assert read == {
        (metric.name, frozenset(zip(metric.labels, labels, strict=True))): value for metric, labels, value in samples
    }


def test_promtool_accepts_every_metric() -> None:
    """`promtool check metrics` finds nothing to say; it is Debian's `prometheus`, which CI installs."""
    promtool = shutil.which("promtool")
    if promtool is None:
        assert "PENSTOCK_NEEDS_PROMTOOL" not in os.environ, "install Debian's prometheus: promtool is missing"
        pytest.skip("promtool is not installed (Debian's prometheus has it)")
    _, text = rendered(every_sample())
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_a_heartbeat_becomes_samples() -> None:
    """Environment, partitions, tasks and channels come out under their names, with the time that was work."""
    figures = {"seconds": 10.0, "idle_seconds": 3.0, "back_pressured_seconds": 2.0, "rows_in": 7.0}
    heartbeat = Heartbeat(
        "host-1",
        {"segments_total": 64, "unknown": 1},
        ((ATTEMPT, figures),),
        partitions=(PartitionFigures("local", "hybrid", "finished", 2, 4096),),
        channels=(ChannelFigures(ATTEMPT, 5, 1, {"credit": 3}),),
    )
    found = {(sample.metric.name, sample.labels): sample.value for sample in heartbeat_samples(heartbeat)}
    task = ("j1", "2", "0")
    assert found == {
        ("penstock_environment_segments", ("host-1",)): 64,
        ("penstock_environment_partitions", ("host-1", "local", "hybrid", "finished")): 2,
        ("penstock_environment_partition_bytes", ("host-1", "local", "hybrid", "finished")): 4096,
        ("penstock_task_in_records_total", task): 7,
        ("penstock_task_seconds_total", task): 10,
        ("penstock_task_idle_seconds_total", task): 3,
        ("penstock_task_back_pressured_seconds_total", task): 2,
        ("penstock_task_busy_seconds_total", task): 5,
        ("penstock_channel_credits", (*task, "5", "1")): 3,
    }


def test_a_services_figures_are_exported_declared_or_not_and_keys_never() -> None:
    """A declared figure has its own name, another one the name for all; keys of rows are not for scrapers."""
    mine = Metric("mine_pages_total", MetricKind.COUNTER, "Pages.", figure="pages")
    figures = {"service.pages": 4.0, "service.odd": 5.0, "key.secret": 6.0, "operator.map": 7.0}
    found = {sample.metric.name: sample for sample in task_samples(ATTEMPT, figures, {"pages": mine})}
    assert found["mine_pages_total"].value == 4
    assert found["penstock_task_service_figure"].labels[-1] == "odd"
    assert found["penstock_task_operator_seconds_total"].labels[-1] == "map"
    assert not any("secret" in label for sample in found.values() for label in sample.labels)


def test_shares_have_names_of_their_own() -> None:
    """The shares of the last seconds are gauges."""
    names = {sample.metric.name for sample in share_samples(ATTEMPT, {"busy": 0.5, "idle": 0.5, "back_pressured": 0})}
    assert names == {f"penstock_task_{name}_ratio" for name in ("busy", "idle", "back_pressured")}
