# SPDX-License-Identifier: Apache-2.0
"""The times that processors are told, as objects with PySpark's methods."""

from __future__ import annotations

from typing import Final

NONE: Final = "none"
PROCESSING: Final = "processingtime"
EVENT: Final = "eventtime"
MODES: Final = {NONE: "None", PROCESSING: "ProcessingTime", EVENT: "EventTime"}
UNKNOWN: Final = -1


class TimerValues:
    """The time of a call, as the processor's mode has it; -1 where it has none."""

    __slots__ = ("_processing", "_watermark")

    def __init__(self, currentProcessingTimeInMs: int = UNKNOWN, currentWatermarkInMs: int = UNKNOWN) -> None:
        self._processing = currentProcessingTimeInMs
        self._watermark = currentWatermarkInMs

    def getCurrentProcessingTimeInMs(self) -> int:
        """The clock's time at which the batch was begun, in milliseconds."""
        return self._processing

    def getCurrentWatermarkInMs(self) -> int:
        """The watermark, in milliseconds."""
        return self._watermark


class ExpiredTimerInfo:
    """The time for which a timer was registered."""

    __slots__ = ("_expiry",)

    def __init__(self, expiryTimeInMs: int = UNKNOWN) -> None:
        self._expiry = expiryTimeInMs

    def getExpiryTimeInMs(self) -> int:
        """In milliseconds."""
        return self._expiry
