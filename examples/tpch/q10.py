# SPDX-License-Identifier: Apache-2.0
"""Query 10, returned items: the twenty customers that gave back goods of the largest value in one quarter.

The revenue is summed by customer before the join with the customers, so their names and comments move once each.
"""

import datetime as dt

import pyarrow.compute as pc
import pyarrow.parquet as pq
from duck import each_batch, whole_partition

import penstock

SQL = """
    SELECT c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) AS revenue,
        c_acctbal, n_name, c_address, c_phone, c_comment
    FROM customer, orders, lineitem, nation
    WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND c_nationkey = n_nationkey
        AND o_orderdate >= DATE '1993-10-01' AND o_orderdate < DATE '1994-01-01' AND l_returnflag = 'R'
    GROUP BY c_custkey, c_name, c_acctbal, c_phone, n_name, c_address, c_comment
    ORDER BY revenue DESC, c_custkey
    LIMIT 20
"""
"""The standard leaves the order of equal rows open; c_custkey makes it total."""

QUARTER = (dt.date(1993, 10, 1), dt.date(1994, 1, 1))
RETURNED = """
    SELECT l_orderkey, CAST(l_extendedprice * (1 - l_discount) AS DECIMAL(18, 4)) AS revenue
    FROM rows WHERE l_returnflag = 'R'
"""
FIRST_TOP = """
    SELECT c_custkey, c_name, revenue, c_acctbal, n_name, c_address, c_phone, c_comment
    FROM rows JOIN nation ON c_nationkey = n_nationkey ORDER BY revenue DESC, c_custkey LIMIT 20
"""
LAST_TOP = "SELECT * FROM rows ORDER BY revenue DESC, c_custkey LIMIT 20"
RESULT = (
    "c_custkey long, c_name string, revenue decimal(28, 4), c_acctbal decimal(15, 2), "
    "n_name string, c_address string, c_phone string, c_comment string"
)


def pipeline(spark, folder):
    """The stream of the answer."""
    customers = penstock.readParquet(
        spark,
        f"{folder}/customer.parquet",
        ["c_custkey", "c_name", "c_acctbal", "c_nationkey", "c_address", "c_phone", "c_comment"],
    )
    orders = penstock.readParquet(
        spark,
        f"{folder}/orders.parquet",
        ["o_orderkey", "o_custkey"],
        filter=(pc.field("o_orderdate") >= QUARTER[0]) & (pc.field("o_orderdate") < QUARTER[1]),
    )
    lines = penstock.readParquet(
        spark, f"{folder}/lineitem.parquet", ["l_orderkey", "l_extendedprice", "l_discount", "l_returnflag"]
    ).mapInArrow(each_batch(RETURNED), "l_orderkey long, revenue decimal(18, 4)")
    nation = pq.read_table(f"{folder}/nation.parquet", columns=["n_nationkey", "n_name"])

    returned = lines.keyBy("l_orderkey").join(orders.keyBy("o_orderkey"), on=[("l_orderkey", "o_orderkey")])
    totals = returned.groupBy("o_custkey").agg(revenue=("revenue", "sum"))
    named = customers.keyBy("c_custkey").join(totals.keyBy("o_custkey"), on=[("c_custkey", "o_custkey")])
    first = named.mapInArrow(each_batch(FIRST_TOP, nation=nation), RESULT)
    return first.toOne().mapInArrow(whole_partition(LAST_TOP), RESULT)
