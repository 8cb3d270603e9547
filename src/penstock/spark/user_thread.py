# SPDX-License-Identifier: Apache-2.0
"""What Spark keeps per thread of the user: job group, tags, scheduler pool, description.

Our Spark jobs run on threads of their own, so these are captured where the user asks for the work and set again on
each of our threads. Then the user's cancel by group or tag reaches them, and his pool pays for them.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class UserThread:
    """The properties of one moment of one thread."""

    properties: Any
    tags: frozenset[str]

    @classmethod
    def capture(cls, spark: SparkSession) -> UserThread:
        """The calling thread's properties now."""
        scala = spark.sparkContext._jsc.sc()  # noqa: SLF001 - as pyspark.InheritableThread does
        return cls(scala.getLocalProperties().clone(), frozenset(spark.getTags()))

    def apply(self, spark: SparkSession) -> None:
        """Give them to the calling thread; a copy, because setting tags changes the object."""
        if type(SparkContext._gateway).__name__ != "ClientServer":  # noqa: SLF001 - all threads share one JVM thread
            return
        spark.sparkContext._jsc.sc().setLocalProperties(self.properties.clone())  # noqa: SLF001
        for tag in self.tags:
            with contextlib.suppress(Exception):
                spark.addTag(tag)
