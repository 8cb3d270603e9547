# SPDX-License-Identifier: Apache-2.0
"""Makes `docs/metrics.md` out of the table of metrics; run it after changing that."""

from __future__ import annotations

from pathlib import Path

from penstock.observe.catalogue import GROUPS
from penstock.shuffle import Metric, declared_metrics, load_service

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"

INTRODUCTION = """\
# Metrics

<!-- made by tests/support/metrics_page.py -->

Set `spark.penstock.observe.metrics=true`. The driver and each environment process then serve Prometheus at
`/metrics`, each at a port of its own: `metricsPort` or one of the 15 after it, any free one where that is 0. The logs
of the processes name their addresses, and so does `penstock_environment_info` of the driver. The driver's endpoint
has everything; an environment's has what the environment and its tasks count. To scrape the driver is enough.

Figures are taken when a heartbeat is due, twice a second, or when somebody asks. Nothing is counted for each row.

- **Times are counters of seconds**: `rate(penstock_task_busy_seconds_total[1m])` is the share of a minute in which a
  task worked, Flink's `busyTimeMsPerSecond` divided by 1000. The driver also has the shares of the last seconds.
- **Labels**: `job` is the job's id, `stage` its number. `penstock_stage_info` has the name of each stage, the one in
  `explain`, in `lastProgress` and in the logs: join on `job` and `stage`.
- A restarted task counts from zero again, which `rate` expects. A job that is over has no series any more: its
  result has its metrics, and so has its event log.
- **A shuffle service** counts in the metric group of its task and declares names, units and help in its attribute
  `metrics` ([plug-in](plug-in.md)). Other metrics of it are `penstock_task_service_figure`.
- Keys of rows are in `lastProgress` where one is hot, and never in a metric.

## OpenTelemetry

With the extra `otel` and `spark.penstock.observe.otlpUrl=http://host:4318/v1/metrics` the driver sends
the same samples to a collector, every `otlpInterval`, by OpenTelemetry's exporter: the same names, labels as
attributes.

## Event logs

With `spark.penstock.observe.eventLog` each job writes a file in that folder of the driver's host, named after the
application and the job: one JSON object a line, with `seq`, `at`, `job` and `event`. The events are `job_submitted`
with stages and edges, each `trace` entry, each `checkpoint` with the metrics of its tasks, `progress` with what holds
the job back, every second and later every ten, now and then the `profile` of functions, at the end the last metrics
and the place of each `subtask`, and `job_ended` with the error; after it `result_read` each time that the result was
read. `penstock replay FILE` shows a finished job out of its log: its stages, their metrics, and
the stage that bounded its time; `--json` has all of it. A disk that is full or slow costs events, with a warning, and
no job. Keys of rows are in no event.

## When not to use them

Where others can reach the address: the endpoint asks nobody who they are, so it listens at `127.0.0.1` unless you say
otherwise with `metricsHost`.

## Names

A metric that is not known is left out. `peer` is Flink's name for it.
"""


def render() -> str:
    """The page's text."""
    groups = {**GROUPS, "The service `local`": declared_metrics(load_service("local"))}
    return INTRODUCTION + "\n".join(_group(title, metrics) for title, metrics in groups.items()) + "\n"


def _group(title: str, metrics: tuple[Metric, ...]) -> str:
    labels = metrics[0].labels
    head = f"\n### {title}\n\nLabels: {_named(labels)}.\n"
    return head + "".join(_item(metric, labels) for metric in metrics)


def _item(metric: Metric, labels: tuple[str, ...]) -> str:
    more = [label for label in metric.labels if label not in labels]
    less = [label for label in labels if label not in metric.labels]
    notes = [f"also {_named(more)}"] if more else []
    notes += [f"without {_named(less)}"] if less else []
    notes += [f"peer: `{metric.peer}`"] if metric.peer else []
    note = f" ({'; '.join(notes)})" if notes else ""
    return f"\n- `{metric.name}`, {metric.kind.value}{note}:\n  {metric.help}"


def _named(labels: tuple[str, ...] | list[str]) -> str:
    return ", ".join(f"`{label}`" for label in labels)


if __name__ == "__main__":
    PAGE.write_text(render())
