# SPDX-License-Identifier: Apache-2.0
"""Metrics of a real JobMaster and real environment processes, read as a scraper reads them."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.testing import DEADLINE, wait_until
from penstock_torture.gates import Gates, stream
from penstock_torture.process_launcher import Nursery
from process_cluster import PRELOADED, ProcessCluster

pytestmark = pytest.mark.processes

CONF = {"spark.penstock.observe.metrics": "true", "spark.penstock.observe.detailedMetrics": "true"}
Scrape = dict[str, dict[frozenset[tuple[str, str]], float]]


def scrape(address: str) -> Scrape:
    """The samples at an endpoint, by name and labels."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=DEADLINE) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        found: Scrape = {}
        for sample in (sample for family in families for sample in family.samples):
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
        return found


def of_job(found: Scrape, name: str, job: str) -> list[float]:
    """The values of a metric for a job."""
    return [value for labels, value in found.get(name, {}).items() if ("job", job) in labels]


def test_the_driver_serves_all_and_each_environment_its_own(tmp_path: Path) -> None:
    """While a job runs: tasks, stages by name, channels, memory, and where the environments' endpoints are."""
    gates = Gates(str(tmp_path))
    with Nursery(list(PRELOADED)) as nursery:
        cluster = ProcessCluster(nursery, conf=CONF)
        try:
            handle = cluster.submit(stream(gates, "pipelined"))
            gates.reach("writing", "pipelined", lambda _: False)
            driver = cluster.master.metrics_address

            def is_told() -> bool:
                found = scrape(driver)
                rows = of_job(found, "penstock_task_in_records_total", handle.job)
                return len(rows) == 4 and all(rows) and bool(found.get("penstock_channel_credits"))

            wait_until(is_told, "all four tasks have told of rows")
            found = scrape(driver)
            names = {dict(labels)["name"] for labels in found["penstock_stage_info"]}
            progress = handle.progress()
            assert progress is not None
            assert names == {vertex.name for vertex in progress.vertices}
            assert of_job(found, "penstock_task_in_remote_bytes_total", handle.job)
            kinds = [dict(labels)["kind"] for labels in found["penstock_environment_partitions"]]
            assert sorted(kinds) == ["hybrid", "hybrid", "pipelined", "pipelined"]
            assert sum(found["penstock_environment_used_segments"].values()) > 0
            own = [dict(labels)["metrics"] for labels in found["penstock_environment_info"]]
            assert len(set(own)) == 2
            parts = [of_job(scrape(address), "penstock_task_in_records_total", handle.job) for address in own]
            assert sorted(len(part) for part in parts) in ([1, 3], [2, 2], [0, 4])
            gates.open_all()
            handle.wait(DEADLINE)
            found = scrape(driver)
            assert not of_job(found, "penstock_task_in_records_total", handle.job)
            ended = {
                dict(labels)["outcome"]: value for labels, value in found["penstock_driver_ended_jobs_total"].items()
            }
            assert ended == {"finished": 1, "failed": 0}
        finally:
            gates.open_all()
            cluster.close()
