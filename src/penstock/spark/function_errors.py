# SPDX-License-Identifier: Apache-2.0
"""The error of a user's function, as every action raises it: a `JobError` that is PySpark's `PythonException` too.

So `except PythonException` catches it after each action, `toDF` among them, whose error is the JVM's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.errors import PythonException

from penstock.errors import JobCancelledError, JobError
from penstock.job.core.failure import is_users


class FunctionError(JobError, PythonException):  # type: ignore[misc]  # pyspark is not followed by mypy here
    """A function raised. The message begins with its error, and has the user's frames and no others."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self),)


@contextmanager
def as_function_errors() -> Iterator[None]:
    """In here a job's error that has a user's traceback comes out as a FunctionError."""
    try:
        yield
    except JobCancelledError:
        raise
    except JobError as error:
        if not is_users(str(error)):
            raise
        raise FunctionError(str(error)) from None
