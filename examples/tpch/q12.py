# SPDX-License-Identifier: Apache-2.0
"""Query 12, shipping modes and order priority: how many late lines of two shipping modes belong to urgent orders.

The few lines that are wanted are the right side of the join, which is the one that is collected.
"""

from duck import each_batch, whole_partition

import penstock

SQL = """
    SELECT l_shipmode,
        sum(CASE WHEN o_orderpriority IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END) AS high_line_count,
        sum(CASE WHEN o_orderpriority NOT IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END) AS low_line_count
    FROM orders, lineitem
    WHERE o_orderkey = l_orderkey AND l_shipmode IN ('MAIL', 'SHIP')
        AND l_commitdate < l_receiptdate AND l_shipdate < l_commitdate
        AND l_receiptdate >= DATE '1994-01-01' AND l_receiptdate < DATE '1995-01-01'
    GROUP BY l_shipmode
    ORDER BY l_shipmode
"""

LATE = """
    SELECT l_orderkey, l_shipmode FROM rows
    WHERE l_shipmode IN ('MAIL', 'SHIP') AND l_commitdate < l_receiptdate AND l_shipdate < l_commitdate
        AND l_receiptdate >= DATE '1994-01-01' AND l_receiptdate < DATE '1995-01-01'
"""
PRIORITY = """
    SELECT o_orderkey, CAST(urgent AS BIGINT) AS high, CAST(NOT urgent AS BIGINT) AS low
    FROM (SELECT o_orderkey, o_orderpriority IN ('1-URGENT', '2-HIGH') AS urgent FROM rows)
"""
RESULT = "SELECT l_shipmode, high AS high_line_count, low AS low_line_count FROM rows ORDER BY l_shipmode"


def pipeline(spark, folder):
    """The stream of the answer."""
    lines = penstock.readParquet(
        spark,
        f"{folder}/lineitem.parquet",
        ["l_orderkey", "l_shipmode", "l_shipdate", "l_commitdate", "l_receiptdate"],
    ).mapInArrow(each_batch(LATE), "l_orderkey long, l_shipmode string")
    orders = penstock.readParquet(spark, f"{folder}/orders.parquet", ["o_orderkey", "o_orderpriority"])
    orders = orders.mapInArrow(each_batch(PRIORITY), "o_orderkey long, high long, low long")

    late = orders.keyBy("o_orderkey").join(lines.keyBy("l_orderkey"), on=[("o_orderkey", "l_orderkey")])
    counts = late.groupBy("l_shipmode", numPartitions=1).agg(high=("high", "sum"), low=("low", "sum"))
    return counts.mapInArrow(whole_partition(RESULT), "l_shipmode string, high_line_count long, low_line_count long")
