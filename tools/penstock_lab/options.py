# SPDX-License-Identifier: Apache-2.0
"""The sizes and rates of a run of the laboratory, validated once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from penstock.errors import SettingError
from penstock.settings.values import parse_size

SCHEMES = ("credit", "tcp", "throttle")
SCENARIOS = ("A", "B")


@dataclass(frozen=True, slots=True)
class LabOptions:
    """One laboratory. Sizes in bytes, times in seconds, rates in batches per second.

    `rate` is that of each consumer; a batch takes one segment. `socket_buffer` is what each end of the connection
    asks its system for. `queue` is what a gate may hold under `throttle`, in buffers.
    """

    schemes: tuple[str, ...] = SCHEMES
    scenarios: tuple[str, ...] = SCENARIOS
    seconds: float = 6.0
    rate: float = 1000.0
    slowdown: float = 10.0
    segment: int = 16 << 10
    socket_buffer: int = 128 << 10
    exclusive: int = 2
    floating: int = 8
    queue: int = 64
    coordinator: str = ""

    def __post_init__(self) -> None:
        checks = (
            (set(self.schemes) <= set(SCHEMES) and self.schemes, f"--schemes takes some of {', '.join(SCHEMES)}"),
            (set(self.scenarios) <= set(SCENARIOS) and self.scenarios, "--scenarios takes A, B or both"),
            (self.seconds >= 1, "--seconds must be at least 1: figures of less say nothing"),
            (1 <= self.rate <= 20_000, "--rate must be between 1 and 20000 batches per second"),
            (self.slowdown > 1, "--slowdown must be more than 1"),
            (
                4096 <= self.segment <= 1 << 20 and self.segment % 4096 == 0,
                "--segment must be a multiple of 4096 between 4k and 1m",
            ),
            (self.socket_buffer >= 4096, "--socket-buffer must be at least 4k"),
            (self.exclusive >= 0 and self.floating >= 1, "--exclusive must be 0 or more, --floating 1 or more"),
            (self.queue > 1, "--queue must be at least 2"),
        )
        for holds, text in checks:
            if not holds:
                raise SettingError(text)

    def conf(self, scheme: str) -> dict[str, str]:
        """The settings of the application that runs under this scheme."""
        network = {
            "flowControl": scheme,
            "segmentSize": str(self.segment),
            "memory": str((8 * self.queue + 512) * self.segment),
            "socketBuffer": str(self.socket_buffer),
            "exclusiveBuffersPerChannel": str(self.exclusive),
            "floatingBuffersPerGate": str(self.floating),
            "throttleQueue": str(self.queue),
            "throttleCoordinator": self.coordinator,
        }
        return {
            **{f"spark.penstock.network.{name}": value for name, value in network.items()},
            "spark.penstock.streaming.inFlightTime": "0",
        }


def lab_options(given: Mapping[str, Any]) -> LabOptions:
    """Those of a command line, lists and sizes as texts; raises SettingError."""
    values = {field.name: given[field.name] for field in fields(LabOptions)}
    for name in ("schemes", "scenarios"):
        values[name] = tuple(filter(None, values[name].split(",")))
    for name in ("segment", "socket_buffer"):
        try:
            values[name] = parse_size(values[name])
        except ValueError as error:
            raise SettingError(f"--{name.replace('_', '-')} takes {error}, not {values[name]!r}") from None
    return LabOptions(**values)
