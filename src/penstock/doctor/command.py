# SPDX-License-Identifier: Apache-2.0
"""`penstock doctor`: looks at everything, prints what is and what to do; starts a session to look at the workers."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.errors import PenstockError, SettingError
from penstock.machine.memory import machine_memory
from penstock.observe import host_check
from penstock.observe.cluster_check import judge_conf, judge_workers
from penstock.observe.finding import Finding, Level
from penstock.settings import PREFIX, Settings

SICK = 1


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """The options of the command line. Without a master only this machine is looked at, by a local session."""

    master: str = "local[2]"
    conf: Mapping[str, str] = field(default_factory=dict)
    json: bool = False


def run_doctor(options: DoctorOptions) -> int:
    """Look, and report; the exit code says whether something is wrong."""
    findings = examine(options)
    if options.json:
        rows = [{"subject": f.subject, "level": f.level.value, "what": f.what, "advice": f.advice} for f in findings]
        sys.stdout.write(json.dumps(rows) + "\n")
    else:
        _show(findings)
    return SICK if any(finding.level is Level.WRONG for finding in findings) else 0


def examine(options: DoctorOptions) -> list[Finding]:
    """All findings: this machine, Java, the session, its settings, its workers."""
    try:
        from penstock.spark.preflight import needs_of
    except SettingError as error:
        return [Finding.of("PySpark", "not installed", wrong=str(error))]
    settings = Settings.from_conf({key: value for key, value in options.conf.items() if key.startswith(PREFIX)})
    needs = needs_of(settings)
    here = host_check.facts(needs.folders)
    findings = host_check.judge(here, needs)
    try:
        findings.append(_java())
        spark = _session(options)
    except PenstockError as error:
        return [*findings, Finding.of("Java", str(error), wrong="Spark cannot start")]
    except Exception as error:  # noqa: BLE001 - whatever keeps Spark from starting is what we are asked for
        return [*findings, Finding.of("Spark", _first_line(error), wrong=f"no session on {options.master}")]
    try:
        from penstock.spark.runtime import session_conf

        conf = session_conf(spark)
        findings += judge_conf(conf, spark.sparkContext.master, settings.network.memory_on(machine_memory()))
        findings += _workers(spark, here, needs)
    finally:
        spark.stop()
    return findings


def _java() -> Finding:
    from penstock.spark.java import find_java

    return Finding.fine("Java", find_java())


def _session(options: DoctorOptions) -> Any:
    from pyspark.sql import SparkSession

    from penstock.spark.session import build_session

    if options.master.startswith("local["):
        return build_session("penstock-doctor", 2, {"spark.master": options.master, **options.conf})
    builder = SparkSession.builder.master(options.master).appName("penstock-doctor")
    for key, value in options.conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _workers(spark: Any, here: host_check.Facts, needs: host_check.Needs) -> list[Finding]:
    from penstock.spark.checks import python_hint

    context = spark.sparkContext
    count = max(2, 2 * context.defaultParallelism)
    asked, folders = time.time(), needs.folders

    def look(numbers: Iterator[int]) -> Iterator[dict[str, object]]:
        from penstock.observe import host_check as there

        for _ in numbers:
            pass
        yield {**there.facts(folders), "asked": asked}

    try:
        answers = context.parallelize(range(count), count).mapPartitions(look).collect()
    except Exception as error:  # noqa: BLE001 - whatever a worker cannot do is what we are asked for
        text = str(getattr(error, "java_exception", None) or error)
        advice = python_hint(text).strip(" ()") or "see the executors' logs"
        return [Finding.of("workers", _reason(text), wrong=advice)]
    elapsed = time.time() - asked
    near = [{**answer, "asked": _nearest(answer, asked, elapsed)} for answer in answers]
    return judge_workers(here, near)


def _nearest(answer: Mapping[str, Any], asked: float, elapsed: float) -> float:
    """The moment between question and answer that is nearest to the worker's clock: no skew within it."""
    return min(max(float(answer["clock"]), asked), asked + elapsed)


def _reason(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if "Error" in line and not line.strip().startswith("at ")]
    return lines[-1] if lines else _first_line(Exception(text))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _show(findings: list[Finding]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(3):
        table.add_column(overflow="fold")
    for finding in findings:
        advice = f"\n  -> {finding.advice}" if finding.advice else ""
        table.add_row(finding.level.value, finding.subject, f"{finding.what}{advice}")
    Console(highlight=False, markup=False, soft_wrap=False).print(table)
