# SPDX-License-Identifier: Apache-2.0
"""The start of a run's Java: soon, and with Spark defaults that suit many small queries.

Each Java of a run, executors included, lives for short. The optimizing compiler costs half of its processor time
there and never earns it back. Of the rest, half goes into reading and checking Spark's classes: the first
`make test` writes them to an archive in the virtualenv (`python tests/support/java_starts.py`), which Java maps at
its start. Java itself sees whether the archive is of this Java and these jars, and does without it where it is not.

All of it is in `JDK_JAVA_OPTIONS`, Spark's defaults too: a folder of Spark settings would stand on the class path,
and an archive is for one class path. Options that the variable has from outside come last, so they win.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from penstock.errors import PenstockError
from penstock.spark import class_archive

VARIABLE = "JDK_JAVA_OPTIONS"

_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_DEFAULTS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "4",
    "spark.python.daemon.module": "penstock.daemon",
}
"""A run sees many small queries: it writes and compiles no Java for each, shuffles into no 200 partitions, and its
workers begin with everything imported."""

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"


def options(*, defaults: bool = True) -> str:
    """Of every Java of a run; without Spark defaults where a test wants those that Spark itself has."""
    found = [_QUICK]
    if ARCHIVE.exists() and ARCHIVE.stat().st_size:
        found.append(class_archive.java_options(ARCHIVE))
    if defaults:
        found += [f"-D{name}={value}" for name, value in _DEFAULTS.items()]
    return " ".join(found)


def start_soon() -> None:
    """Let every Java that this process and its descendants start have the options."""
    if _QUICK not in os.environ.get(VARIABLE, ""):
        os.environ[VARIABLE] = f"{options()} {os.environ.get(VARIABLE, '')}".strip()


def write_archive() -> None:
    """Of what a short session loads; an empty file where that fails, for tests pass without."""
    os.environ[VARIABLE] = _QUICK
    try:
        class_archive.write_archive(ARCHIVE)
    except PenstockError as error:
        print(f"sessions start slowly: {error}", file=sys.stderr)
        ARCHIVE.touch()


if __name__ == "__main__":
    write_archive()
