# SPDX-License-Identifier: Apache-2.0
"""The verbs that give a stream event time, and tell its late rows from the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.api.streaming.refusals import is_streaming
from penstock.api.watermark_columns import event_times
from penstock.errors import PlanError
from penstock.operators.intervals import microseconds
from penstock.operators.times import time_column

if TYPE_CHECKING:
    from penstock.api.stream import Stream


def with_watermark(stream: Stream, time: object, delay: object) -> Stream:
    """The rows behind a watermark: the greatest time of this column less the delay."""
    column = time_column(stream.schema, time, "withWatermark")
    length = microseconds(delay, "withWatermark: the delay")
    if length < 0:
        raise PlanError(f"withWatermark: the delay must not be negative, but it is {delay!r}")
    if not is_streaming(stream.branches):
        return stream
    from penstock.stream.watermark_step import AssignWatermark

    return stream.applied(AssignWatermark(column, length), stream.schema)


def by_lateness(stream: Stream, time: object, verb: str) -> Stream:
    """The rows that are late where they come, or for `onTime` those that are not."""
    column = time_column(stream.schema, time, verb)
    if not is_streaming(stream.branches):
        raise PlanError(f"{verb} is for streams of penstock.readStream: a batch job has no late rows")
    times = event_times(stream.branches)
    if not times.is_everywhere:
        raise PlanError(
            f"{verb} needs a watermark, which says what is late: write withWatermark({column!r}, delay) ahead of it, "
            "on each stream ahead of a union"
        )
    times.refuse_other(f"{verb} by", column)
    from penstock.stream.late_rows import ByLateness

    return stream.applied(ByLateness(column, verb == "lateRows"), stream.schema)
