# SPDX-License-Identifier: Apache-2.0
"""The Spark session of a pytest process: one at a time, all on the same Java, which is slow to start.

A file that needs another kind of session than the last one gets a new one in about a second. The words of a session
about itself (`Kind`) are compared; equal ones are shared between files.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from typing import Any

from penstock.testing import DEADLINE

SLOTS = 8


GENERATED_CODE = (("spark.sql.codegen.wholeStage", "true"), ("spark.sql.codegen.factoryMode", "FALLBACK"))
"""As users have it."""


@dataclass(frozen=True)
class Kind:
    """The kind of a session: its master, the task slots that it must have before a test begins, and its conf."""

    master: str
    slots: int
    conf: tuple[tuple[str, str], ...] = ()


USUAL = Kind(f"local[{SLOTS}]", SLOTS)

FAIR = Kind(f"local[{SLOTS}]", SLOTS, (("spark.scheduler.mode", "FAIR"),))

CLUSTER = Kind(
    "local-cluster[2,2,1024]",
    4,
    (
        *GENERATED_CODE,
        ("spark.executor.memory", "512m"),
        ("spark.penstock.environment.scope", "executor"),
        ("spark.penstock.job.slotsTimeout", f"{DEADLINE:g}s"),
        ("spark.penstock.network.memory", "64m"),
        ("spark.penstock.tls.mode", "always"),
        ("spark.log.level", "OFF"),  # killed executors are no news
    ),
)
"""Two executors, two slots each, with an environment process of its own each; encrypted as between two hosts."""


_PATIENT = {"spark.python.authenticate.socketTimeout": f"{DEADLINE:g}s"}
"""Spark waits 15 s for the Python workers of its own processors, which a busy machine takes to start them."""


class Sessions:
    """Starts and stops sessions."""

    def __init__(self) -> None:
        self._java = contextlib.ExitStack()
        self._kind: Kind | None = None
        self._session: Any = None

    def of(self, kind: Kind) -> Any:
        """The session of this kind, built as the command line builds it; it takes the place of another one."""
        if kind != self._kind:
            self.stop()
            from penstock.spark.session import build_session

            conf = {"spark.master": kind.master, **_PATIENT, **dict(kind.conf)}
            self._session = build_session("penstock-tests", kind.slots, conf)
            self._session.sparkContext.setLogLevel(conf.get("spark.log.level", "ERROR"))
            self._kind = kind
        if kind.master.startswith("local-cluster"):
            self._wait_for_executors(kind)
        return self._session

    def stop(self) -> None:
        """Let no session be there: whoever starts one himself does so on our Java, which stays."""
        self._start_java()
        self._stop_session()

    def close(self) -> None:
        """Stop all."""
        self._stop_session()
        self._java.close()

    def _stop_session(self) -> None:
        from penstock.spark.runtime import SparkRuntime

        if self._session is not None:
            SparkRuntime.of(self._session).close()
            self._session.stop()
        self._session = self._kind = None

    def _start_java(self) -> None:
        """Start it with no session's conf, which all later sessions would get."""
        from pyspark import SparkContext

        from penstock.spark.java import find_java
        from penstock_torture.cluster import spark_home

        if SparkContext._gateway is not None:
            return
        find_java()
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        self._java.enter_context(spark_home())
        SparkContext._ensure_initialized()
        self._java.callback(_end_java)

    def _wait_for_executors(self, kind: Kind) -> None:
        from penstock.spark.runtime import SparkRuntime
        from penstock.testing import wait_until

        runtime = SparkRuntime.of(self._session)
        wait_until(lambda: runtime.total_slots() == kind.slots, "all executors are there")


def _end_java() -> None:
    """PySpark keeps its JVM, a pipe and a socket until the interpreter ends; the run leaves nothing."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(DEADLINE)
    SparkContext._gateway = SparkContext._jvm = None
