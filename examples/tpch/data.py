# SPDX-License-Identifier: Apache-2.0
"""The tables of TPC-H as Parquet files, one for each table, made by `tpchgen-cli`."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq

TABLES = ("customer", "lineitem", "nation", "orders", "region", "supplier")
"""Those that the queries here read."""

_CUSTOMERS = 150_000
"""Rows of customer at scale factor 1."""


def generate(folder, scale):
    """Write the tables into the folder, or leave there what an earlier call wrote at the same scale factor.

    Raises ValueError where the folder has tables of another scale factor, or some of the tables only, and
    CalledProcessError where the generator fails.
    """
    there = [table for table in TABLES if _path(folder, table).exists()]
    if there:
        _check(folder, there, scale)
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=folder) as making:  # whole tables only get their names
        arguments = ["-s", str(scale), "-o", making, "--tables", ",".join(TABLES), "--quiet"]
        subprocess.run([_generator(), "parquet", *arguments], check=True)
        for table in TABLES:
            _path(making, table).rename(_path(folder, table))


def _path(folder, table):
    return Path(folder) / f"{table}.parquet"


def _check(folder, there, scale):
    missing = [table for table in TABLES if table not in there]
    if missing:
        raise ValueError(f"{folder} has no {', '.join(missing)}: remove the folder or give another one with --data")
    found = pq.read_metadata(_path(folder, "customer")).num_rows
    if found != int(_CUSTOMERS * scale):
        raise ValueError(
            f"{folder} has tables of scale factor {found / _CUSTOMERS:g}, not {scale:g}: "
            "remove the folder or give another one with --data"
        )


def _generator():
    beside = Path(sys.executable).with_name("tpchgen-cli")
    found = str(beside) if beside.exists() else shutil.which("tpchgen-cli")
    if found is None:
        raise ValueError("there is no tpchgen-cli: pip install -e '.[tpch]'")
    return found
