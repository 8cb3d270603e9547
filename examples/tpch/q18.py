# SPDX-License-Identifier: Apache-2.0
"""Query 18, large volume customers: the hundred most valuable orders of more than 300 pieces.

The quantity of an order is needed twice, to choose it and to show it; it is summed once.
"""

from duck import each_batch, whole_partition

import penstock

SQL = """
    SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) AS quantity
    FROM customer, orders, lineitem
    WHERE o_orderkey IN (SELECT l_orderkey FROM lineitem GROUP BY l_orderkey HAVING sum(l_quantity) > 300)
        AND c_custkey = o_custkey AND o_orderkey = l_orderkey
    GROUP BY c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice
    ORDER BY o_totalprice DESC, o_orderdate, o_orderkey
    LIMIT 100
"""
"""The standard leaves the order of equal rows open; o_orderkey makes it total."""

LARGE = "SELECT l_orderkey, quantity FROM rows WHERE quantity > 300"
TOP = """
    SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, quantity FROM rows
    ORDER BY o_totalprice DESC, o_orderdate, o_orderkey LIMIT 100
"""
RESULT = (
    "c_name string, c_custkey long, o_orderkey long, o_orderdate date, "
    "o_totalprice decimal(15, 2), quantity decimal(25, 2)"
)


def pipeline(spark, folder):
    """The stream of the answer."""
    customers = penstock.readParquet(spark, f"{folder}/customer.parquet", ["c_custkey", "c_name"])
    orders = penstock.readParquet(
        spark, f"{folder}/orders.parquet", ["o_orderkey", "o_custkey", "o_orderdate", "o_totalprice"]
    )
    lines = penstock.readParquet(spark, f"{folder}/lineitem.parquet", ["l_orderkey", "l_quantity"])

    quantities = lines.groupBy("l_orderkey").agg(quantity=("l_quantity", "sum"))
    large = quantities.mapInArrow(each_batch(LARGE), "l_orderkey long, quantity decimal(25, 2)")
    chosen = orders.keyBy("o_orderkey").join(large.keyBy("l_orderkey"), on=[("o_orderkey", "l_orderkey")])
    named = customers.keyBy("c_custkey").join(chosen.keyBy("o_custkey"), on=[("c_custkey", "o_custkey")])
    return named.mapInArrow(each_batch(TOP), RESULT).toOne().mapInArrow(whole_partition(TOP), RESULT)
