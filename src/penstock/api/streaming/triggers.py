# SPDX-License-Identifier: Apache-2.0
"""Triggers of `writeStream`: PySpark's words for when a query's rows appear, and for one that ends by itself.

| trigger | in PySpark | here |
|---|---|---|
| none | the next micro-batch begins when one has ended | rows flow; a checkpoint each `checkpointInterval` |
| `processingTime="10 seconds"` | a micro-batch each so often | rows flow; a checkpoint each so often |
| `continuous`, `realTime` | rows flow; a checkpoint each so often | the same as `processingTime` |
| `availableNow=True` | what is there, in micro-batches, then the end | what is there, then a checkpoint and the end |
| `once=True` | what is there in one micro-batch; deprecated | `availableNow`, with a warning |

The interval of `processingTime` is that of checkpoints, because rows appear with them. "0 seconds", with which
PySpark says "as fast as you can", leaves `checkpointInterval` as it is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.api.lineage import SourceStep, Step, in_order
from penstock.api.streaming.options import Options
from penstock.errors import PlanError, SettingError
from penstock.graph.streaming import StreamingOptions
from penstock.operators.intervals import microseconds

_MICROS = 1e6
_INTERVAL = "checkpointInterval"


@dataclass(frozen=True, slots=True)
class QueryTrigger:
    """The trigger of one query; without an `interval`, in seconds, it is the setting's."""

    title: str = ""
    interval: float | None = None
    available_now: bool = False

    def check(self, branches: tuple[Step, ...], options: Options) -> None:
        """Raise SettingError where an option says otherwise, PlanError for a source that can't do it."""
        if self.interval is not None and options.text(_INTERVAL) is not None:
            raise SettingError(
                f"writeStream: trigger({self.title}) and option({_INTERVAL!r}, ...) both say how often rows appear:"
                " leave one out"
            )
        for step in in_order(branches) if self.available_now else ():
            if not isinstance(step, SourceStep):
                continue
            now: Callable[[], object] | None = getattr(step.source, "available_now", None)
            if now is not None:
                now()
            elif step.streaming:
                raise PlanError(
                    f"writeStream: {step.name} can't tell what is available now: give its class the method"
                    " available_now(), which penstock.stream.sources describes, or stop the query yourself"
                )

    def of(self, options: StreamingOptions) -> StreamingOptions:
        """The options of a query with it."""
        interval = options.interval if self.interval is None else self.interval
        return replace(options, interval=interval, available_now=self.available_now)


def trigger_of(
    processing_time: object, once: object, continuous: object, available_now: object, real_time: object
) -> QueryTrigger:
    """The one that was given; raises PlanError for none, several or a wrong value, as PySpark does."""
    pairs = {
        "processingTime": processing_time,
        "once": once,
        "continuous": continuous,
        "availableNow": available_now,
        "realTime": real_time,
    }
    given = {name: value for name, value in pairs.items() if value is not None}
    if len(given) != 1:
        raise PlanError(
            "writeStream.trigger takes one trigger (PySpark's ONLY_ALLOW_SINGLE_TRIGGER), not "
            f"{', '.join(given) or 'none'}: say processingTime='10 seconds' or availableNow=True"
        )
    ((name, value),) = given.items()
    title = f"{name}={value!r}"
    if name in ("once", "availableNow"):
        return _flag(name, value, title)
    if not isinstance(value, str) or not value.strip():
        raise PlanError(f"writeStream.trigger({title}): it is an interval, such as {name}='10 seconds'")
    seconds = microseconds(value.strip(), f"writeStream.trigger: {name}") / _MICROS
    if seconds < 0:
        raise PlanError(f"writeStream.trigger({title}): the interval must not be negative")
    return QueryTrigger(title, seconds or None)


def _flag(name: str, value: object, title: str) -> QueryTrigger:
    if value is not True:
        raise PlanError(f"writeStream.trigger({title}): it is {name}=True, or another trigger")
    if name == "once":
        from penstock.spark.hints import PenstockWarning

        text = (
            "writeStream.trigger(once=True) is deprecated in PySpark, and here it is availableNow=True: what is there"
            " is read, with checkpoints meanwhile"
        )
        warnings.warn(text, PenstockWarning, stacklevel=4)
    return QueryTrigger(title, available_now=True)
