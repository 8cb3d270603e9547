# SPDX-License-Identifier: Apache-2.0
"""Reads and writes partitions of the services `external` and `remote` from plain Python, without Spark.

    from penstock import client

    with client.connect("/data1/penstock/service.sock") as service:  # or ("manager:7450", key=..., application=...)
        with service.write("trips", schema, partitions=2) as writer:
            writer.write(batch, partition=1)
        table = service.read("trips").read_all()

A result under a name is the one of `persist(name=, service=)` and `readPersisted` at the same service. Errors are
those of `penstock.errors`. `connect_async` gives the same service for an event loop.
"""

from __future__ import annotations

from penstock.client.access import ClientAccess
from penstock.client.asynchronous import AsyncRows, AsyncShuffleClient, AsyncWriter, connect_async, join_async
from penstock.client.parts import Kept, Part
from penstock.client.reading import PartRows
from penstock.client.service import ShuffleClient, connect, join
from penstock.client.writing import ClientPartWriter, ResultWriter

__all__ = [
    "AsyncRows",
    "AsyncShuffleClient",
    "AsyncWriter",
    "ClientAccess",
    "ClientPartWriter",
    "Kept",
    "Part",
    "PartRows",
    "ResultWriter",
    "ShuffleClient",
    "connect",
    "connect_async",
    "join",
    "join_async",
]
