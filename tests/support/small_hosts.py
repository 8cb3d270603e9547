# SPDX-License-Identifier: Apache-2.0
"""Hosts of few and small segments, and what runs a test on their event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from penstock.environment.config import HostConfig
from penstock.environment.host import Host
from penstock.link.rendezvous import Rendezvous
from penstock.settings import Settings
from penstock.shuffle import AttemptId
from penstock.testing import DEADLINE

SEGMENT = 4096
PRODUCER = AttemptId("job", 0, 0, 1)


def host_of(folder: Path, segments: int) -> Host:
    """A host of so many small segments, its files in this folder."""
    size = {"segmentSize": str(SEGMENT), "memory": str(SEGMENT * segments)}
    settings = Settings.from_conf({f"spark.penstock.network.{key}": value for key, value in size.items()})
    return Host(HostConfig("application", bytes(16), "", settings, Rendezvous(folder)))


def on_loop(test: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine to its end."""
    asyncio.run(asyncio.wait_for(test(), DEADLINE))  # type: ignore[arg-type]
