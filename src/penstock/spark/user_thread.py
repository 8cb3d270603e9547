# SPDX-License-Identifier: Apache-2.0
"""The state that Spark keeps per thread of the user: job group, tags, pool, description; and where he called us.

Our Spark jobs run on threads of their own, so these are captured where the user asks for the work and set again on
each of our threads. Then the user's cancel by group or tag reaches them, and his pool pays for them.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

_LIBRARIES = (f"{Path(__file__).resolve().parent.parent}/", f"{Path(pyspark.__file__).resolve().parent}/")


@dataclass(frozen=True, slots=True)
class UserThread:
    """The properties of one moment of one thread, and the line of the user's code that it was at."""

    properties: Any
    tags: frozenset[str]
    place: str = ""

    @classmethod
    def capture(cls, spark: SparkSession) -> UserThread:
        """The calling thread's properties now."""
        scala = spark.sparkContext._jsc.sc()  # noqa: SLF001 - as pyspark.InheritableThread does
        return cls(scala.getLocalProperties().clone(), frozenset(spark.getTags()), user_place())

    def apply(self, spark: SparkSession) -> None:
        """Give them to the calling thread; a copy, because setting tags changes the object."""
        if type(SparkContext._gateway).__name__ != "ClientServer":  # noqa: SLF001 - all threads share one JVM thread
            return
        spark.sparkContext._jsc.sc().setLocalProperties(self.properties.clone())  # noqa: SLF001
        for tag in self.tags:
            with contextlib.suppress(Exception):
                spark.addTag(tag)
        self._let_interrupt(spark)

    @staticmethod
    def _let_interrupt(spark: SparkSession) -> None:
        """Tag jobs as Spark does those of SQL: `interruptAll` knows them by a tag of the session."""
        session = spark._jsparkSession  # noqa: SLF001 - there is no public way to these tags
        tags = session.managedJobTags().get().values().iterator()
        spark.sparkContext.addJobTag(session.sessionJobTag())
        while tags.hasNext():
            spark.sparkContext.addJobTag(tags.next())


def user_place() -> str:
    """File and line of the innermost frame that is neither ours nor PySpark's; empty where there is none."""
    frame = sys._getframe(1)  # noqa: SLF001 - as `inspect` does, without reading source files
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return ""
    path = Path(frame.f_code.co_filename)
    name = "a cell" if path.parent.name.startswith("ipykernel") else path.name
    return f"{name}:{frame.f_lineno}"
