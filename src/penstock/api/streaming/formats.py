# SPDX-License-Identifier: Apache-2.0
"""The formats that `readStream` knows by name, each with its options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from penstock.api.streaming.options import Options
from penstock.shuffle.errors import PlanError
from penstock.stream.rate import RateSource
from penstock.stream.sources import StreamSource


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """What somebody asked `readStream` for."""

    path: str | None
    schema: pa.Schema | None
    options: Options

    def refuse_path(self, what: str) -> None:
        """Raise PlanError where a path or schema was given that means nothing."""
        if self.path is not None:
            raise PlanError(f"readStream: {what} makes its rows up, and reads no path")
        if self.schema is not None:
            raise PlanError(f"readStream: {what} has a schema of its own")


def rate(request: SourceRequest) -> StreamSource:
    """Rows that are made up: columns `timestamp` and `value`."""
    request.refuse_path("rate")
    options = request.options
    options.refuse_others("rate", ("rowsPerSecond", "numPartitions", "numRows"))
    return RateSource(
        options.value("rowsPerSecond", float, 1.0),
        options.value("numPartitions", int, 1),
        options.value("numRows", int, None),
    )


FORMATS: dict[str, Callable[[SourceRequest], StreamSource]] = {"rate": rate}
