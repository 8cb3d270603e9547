# SPDX-License-Identifier: Apache-2.0
"""Nexmark's queries in Flink's SQL, run by Flink's own jars in a process beside, over the same events.

The jars come with the package `apache-flink-libraries` (329 MB). Flink reads the events from CSV files, as it has no
reader of Arrow; query 0 says what that costs. Times have milliseconds there, as Flink's watermarks have. Rows go
nowhere (`blackhole`). The settings are those of Nexmark's own suite for Flink: small batches, partial aggregates
before the exchange, distinct counts split.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv

from penstock_bench.nexmark import FOLDER

PACKAGE = "apache-flink-libraries"
_OPENED = ("java.lang", "java.net", "java.nio", "java.time", "java.util")
_SETTINGS = {
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.agg-phase-strategy": "TWO_PHASE",
    "table.optimizer.distinct-agg.split.enabled": "true",
    "table.local-time-zone": "UTC",
}
_TYPES = {pa.int64(): "BIGINT", pa.string(): "STRING"}
_HEAD = re.compile(r"^-- query (\d+)$", re.MULTILINE)


def flink_queries() -> dict[int, str]:
    """The queries in SQL, by number."""
    parts = _HEAD.split(FOLDER.joinpath("flink.sql").read_text())
    return {int(number): text.strip() for number, text in zip(parts[1::2], parts[2::2], strict=True)}


def has_flink() -> bool:
    """Tell whether the package with Flink's jars is installed."""
    try:
        importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


class Flink:
    """A Flink of its own for some queries; `seconds` is how long one took by Flink's own clock."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._queries = flink_queries()

    def __contains__(self, query: int) -> bool:
        """Tell whether Flink's SQL has this query."""
        return query in self._queries

    def seconds(self, query: int) -> float:
        """Run a query to its end."""
        made = f"CREATE TABLE nowhere WITH ('connector' = 'blackhole') AS {self._queries[query]}"
        client = self._environment.executeSql(made).getJobClient().get()
        result = client.getJobExecutionResult().get()
        self._environment.executeSql("DROP TABLE nowhere")
        return float(result.getNetRuntime()) / 1e3


@contextmanager
def flink(events: dict[str, pa.Table], parallelism: int) -> Iterator[Flink]:
    """Flink over these events, until the end of the block."""
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    with tempfile.TemporaryDirectory(prefix="nexmark-flink-") as name:
        folder = Path(name)
        (folder / "config.yaml").write_text(_configuration(folder, parallelism))
        (folder / "log4j2.properties").write_text("rootLogger.level = off\n")
        options = [f"--add-opens=java.base/{each}=ALL-UNNAMED" for each in _OPENED]
        options += [f"-Dlog4j.configurationFile={folder}/log4j2.properties", "-Xmx6g"]
        before, os.environ["FLINK_CONF_DIR"] = os.environ.get("FLINK_CONF_DIR"), name
        try:
            port = launch_gateway(
                classpath=":".join(map(str, _jars())), jarpath=_gateway_jar(), javaopts=options, die_on_exit=True
            )
        finally:
            os.environ.pop("FLINK_CONF_DIR")
            if before is not None:
                os.environ["FLINK_CONF_DIR"] = before
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        try:
            yield Flink(_environment(gateway.jvm, events, folder, parallelism))
        finally:
            gateway.shutdown()


def _configuration(folder: Path, parallelism: int) -> str:
    return f"execution.target: local\nparallelism.default: {parallelism}\nio.tmp.dirs: {folder}\n"


def _jars() -> list[Path]:
    files = importlib.metadata.distribution(PACKAGE).files or []
    return [Path(str(each.locate())) for each in files if each.match("pyflink/lib/*.jar")]


def _gateway_jar() -> str:
    import pyspark

    return str(next(Path(pyspark.__file__).parent.joinpath("jars").glob("py4j-*.jar")))


def _environment(jvm: Any, events: dict[str, pa.Table], folder: Path, parallelism: int) -> Any:
    api = jvm.org.apache.flink.table.api
    environment = api.TableEnvironment.create(api.EnvironmentSettings.newInstance().inStreamingMode().build())
    for key, value in {**_SETTINGS, "parallelism.default": str(parallelism)}.items():
        environment.getConfig().set(key, value)
    for name, table in events.items():
        columns = [f"`{field.name}` {_TYPES.get(field.type, 'TIMESTAMP(3)')}" for field in table.schema]
        columns += ["arrival AS PROCTIME()", "WATERMARK FOR ts AS ts - INTERVAL '1' SECOND"]
        _register(environment, folder / name, columns, _plain(table))
    side = pa.table({"k": range(10_000), "v": [f"value {key}" for key in range(10_000)]})
    _register(environment, folder / "side", ["k BIGINT", "v STRING"], side)
    environment.executeSql("CREATE VIEW arrived AS SELECT bidder, arrival FROM bids")
    return environment


def _register(environment: Any, path: Path, columns: Sequence[str], rows: pa.Table) -> None:
    csv.write_csv(rows, path, csv.WriteOptions(include_header=False, quoting_style="none"))
    place = f"WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'csv')"
    environment.executeSql(f"CREATE TABLE {path.name} ({', '.join(columns)}) {place}")


def _plain(table: pa.Table) -> pa.Table:
    """Times without a zone, in milliseconds."""
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            plain = table.column(place).cast(pa.timestamp("us")).cast(pa.timestamp("ms"), safe=False)
            table = table.set_column(place, field.name, plain)
    return table
