# SPDX-License-Identifier: Apache-2.0
"""Spark's Java classes by their names, for what PySpark has no words for; and errors of ours that the JVM raises.

py4j gives an error of a Python callback to Java as a text, unless it holds a Java exception and the gateway was told
to pass those on. It also logs each, with a stack of frames that mean nothing to a user: ours are left out.
"""

from __future__ import annotations

import logging
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from penstock.job.core.failure import TRACEBACK
from penstock.spark.callback_threads import CallbackThreads

_RAISED = "An exception was thrown from the Python worker"
"""PySpark's own words."""
_PYTHON_UTILS = "org.apache.spark.api.python.PythonUtils"
_LOGGERS = ("py4j.clientserver", "py4j.java_gateway")


class RaisedInJavaError(Py4JJavaError):  # type: ignore[misc]  # py4j is not followed by mypy here
    """The error that a callback raises for Java to raise it."""


class JavaClasses:
    """The classes of one session's JVM, which may call back from now on."""

    def __init__(self, spark: SparkSession) -> None:
        gateway = spark.sparkContext._gateway  # noqa: SLF001 - there is no public way to Spark's classes
        ensure_callback_server_started(gateway)
        gateway.callback_server_parameters.propagate_java_exceptions = True
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(_is_not_ours)  # the same filter a second time is the same
        self.spark = spark
        self.threads = CallbackThreads.of(gateway)
        self._gateway = gateway
        self.none = self.named("scala.Option").empty()

    def named(self, name: str) -> Any:
        """A class."""
        return getattr(self._gateway.jvm, name)

    def new(self, name: str, *arguments: Any) -> Any:
        """An object of a class."""
        return self.named(name)(*arguments)

    def sequence(self, items: list[Any]) -> Any:
        """A Scala sequence."""
        return self.named(_PYTHON_UTILS).toSeq(items)

    def array(self, kind: str, items: list[Any]) -> Any:
        """A Java array."""
        array = self._gateway.new_array(self.named(kind), len(items))
        for position, item in enumerate(items):
            array[position] = item
        return array

    def python_exception(self, text: str) -> RaisedInJavaError:
        """Spark's own error of a function of the user's; without a traceback, one with just this text."""
        kind = "org.apache.spark.api.python.PythonException"
        contexts = self.array("org.apache.spark.QueryContext", [])
        if text.startswith(TRACEBACK):
            words = self._map({"msg": _RAISED, "traceback": text})
            return RaisedInJavaError(text, self.new(kind, "PYTHON_EXCEPTION", words, None, contexts, ""))
        return RaisedInJavaError(text, self.new(kind, text, None, self.none, self._map({}), contexts))

    def _map(self, items: dict[str, str]) -> Any:
        made = self.new("java.util.HashMap")
        for key, value in items.items():
            made.put(key, value)
        return self.named(_PYTHON_UTILS).toScalaMap(made)


def _is_not_ours(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], RaisedInJavaError)
