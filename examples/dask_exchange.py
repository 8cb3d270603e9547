# SPDX-License-Identifier: Apache-2.0
"""A Dask bag whose rows go by key from one step to the next through the host service `external`, without Spark.

    python examples/dask_exchange.py [--socket /data1/penstock/service.sock] [--port 7447]

Each task of the first step writes its events as a part, dealt out by the hash of the sensor. Each task of the second
step reads one subpartition of all parts, so it has all events of its sensors, and writes their totals as a part. The
totals are kept under a name: a notebook reads them, and a Spark job by `penstock.readPersisted(spark, "totals")`.
Without --socket the program starts a service of its own and ends it. It needs Dask: the extra `dask`.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

import dask.bag
import numpy as np
import pyarrow as pa

from penstock import client

EVENTS = pa.schema([("sensor", pa.int64()), ("value", pa.float64())])
TOTALS = pa.schema([("sensor", pa.int64()), ("events", pa.int64()), ("total", pa.float64())])
PRODUCERS, CONSUMERS, ROWS, SENSORS = 4, 2, 50_000, 100
PROCESSES = {"scheduler": "processes", "num_workers": 2}


def write_events(access: client.ClientAccess, number: int) -> client.Part:
    """One producer: events of all sensors, by sensor."""
    drawn = np.random.default_rng(number)
    columns = [pa.array(drawn.integers(0, SENSORS, ROWS)), pa.array(drawn.random(ROWS))]
    with client.join(access) as service, service.write_part(EVENTS, CONSUMERS, keys=["sensor"]) as writer:
        writer.write(pa.record_batch(columns, schema=EVENTS))
        return writer.finish()


def write_totals(access: client.ClientAccess, parts: Sequence[client.Part], number: int) -> client.Part:
    """One consumer: the totals of its sensors."""
    with client.join(access) as service:
        events = service.read_parts(parts, number).read_all()
        totals = events.group_by("sensor").aggregate([([], "count_all"), ("value", "sum")])
        with service.write_part(TOTALS) as writer:
            writer.write(totals.rename_columns(TOTALS.names).cast(TOTALS))
            return writer.finish()


def run(socket: str, port: int) -> pa.Table:
    """Both steps, each as a Dask bag over processes; the result as it is read by its name."""
    with client.connect(socket, conf={"spark.penstock.external.port": str(port)}) as service:
        access = service.access
        produced = dask.bag.from_sequence(range(PRODUCERS), npartitions=PRODUCERS)
        parts = produced.map(lambda number: write_events(access, number)).compute(**PROCESSES)
        consumed = dask.bag.from_sequence(range(CONSUMERS), npartitions=CONSUMERS)
        totals = consumed.map(lambda number: write_totals(access, parts, number)).compute(**PROCESSES)
        service.keep("totals", totals)
        return service.read("totals").read_all()


@contextlib.contextmanager
def own_service() -> Iterator[tuple[str, int]]:
    """A host service for this program: its socket and port."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "penstock.cli", "service", "external", "--dir", folder]
        command += ["--host", "127.0.0.1", "--port", "0", "--reserve", "1m"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            try:
                assert process.stdout is not None  # noqa: S101 - a pipe
                words = process.stdout.readline().split()  # serving FOLDER at tls://HOST:PORT and SOCKET
                yield words[-1], int(words[3].rpartition(":")[2])
            finally:
                process.terminate()


def main() -> None:
    """Run, and compare the number of events."""
    arguments = argparse.ArgumentParser(description="a Dask bag through the host service")
    arguments.add_argument("--socket", default="", help="of this host's service (one is started)")
    arguments.add_argument("--port", type=int, default=7447, help="of that service")
    options = arguments.parse_args()
    with contextlib.ExitStack() as stack:
        place = (options.socket, options.port) if options.socket else stack.enter_context(own_service())
        totals = run(*place)
    events = sum(totals["events"].to_pylist())
    if (totals.num_rows, events) != (SENSORS, PRODUCERS * ROWS):
        sys.exit(f"{totals.num_rows} sensors with {events} events were read")
    print(f"{events} events of {totals.num_rows} sensors went through the service, {CONSUMERS} partitions are kept")


if __name__ == "__main__":
    main()
