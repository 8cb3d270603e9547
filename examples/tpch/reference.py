# SPDX-License-Identifier: Apache-2.0
"""The answers of DuckDB over the same files, and the comparison of two answers: row for row, in order, exactly."""

import itertools

import duckdb
from data import TABLES


def duckdb_answer(folder, query):
    """The rows of the query as tuples of Python values."""
    with duckdb.connect() as connection:
        for table in TABLES:
            connection.read_parquet(f"{folder}/{table}.parquet").create_view(table)
        return connection.execute(query).fetchall()


def penstock_answer(stream):
    """The rows of a stream as tuples of Python values."""
    return [tuple(row) for row in stream.toDF().collect()]


def difference(ours, theirs):
    """Return the first differing row as a sentence, or None.

    Values are compared with their types: 1.5 is not Decimal("1.5").
    """
    for number, (own, other) in enumerate(itertools.zip_longest(ours, theirs)):
        if own is None or own != other or list(map(type, own)) != list(map(type, other)):
            return f"row {number} is {own}, DuckDB's is {other}"
    return None
