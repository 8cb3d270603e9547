# SPDX-License-Identifier: Apache-2.0
"""DuckDB as the inside of an operator: functions for `mapInArrow` that run SQL over Arrow batches in the task.

The SQL knows the task's rows as `rows`. Small tables (a few thousand rows) can travel with the function, by names of
their own. One thread for each task, because Spark runs as many tasks as there are slots. The functions are made here
and refer to nothing of this file, so they go to Spark's workers as code.
"""


def each_batch(query, **tables):
    """Run the query over each batch on its own: filters, expressions, lookups, and the first step of a top-k."""

    def over_batches(batches):
        import duckdb
        import pyarrow as pa

        with duckdb.connect(config={"threads": 1}) as connection:
            for name, table in tables.items():
                connection.register(name, table)
            for batch in batches:
                connection.register("rows", pa.Table.from_batches([batch]))
                yield from connection.sql(query).to_arrow_table().to_batches()

    return over_batches


def whole_partition(query, **tables):
    """Run the query once over all rows of the partition, which must fit memory: orders, the last step of a top-k."""
    over_batches = each_batch(query, **tables)

    def over_partition(batches):
        held = list(batches)
        if held:
            import pyarrow as pa

            yield from over_batches(pa.Table.from_batches(held).combine_chunks().to_batches())

    return over_partition
