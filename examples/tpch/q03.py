# SPDX-License-Identifier: Apache-2.0
"""Query 3, shipping priority: the ten unshipped orders of the largest value, of customers of one market segment."""

import datetime as dt

import pyarrow.compute as pc
from duck import each_batch, whole_partition

import penstock

SQL = """
    SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate, o_shippriority
    FROM customer, orders, lineitem
    WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey AND l_orderkey = o_orderkey
        AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15'
    GROUP BY l_orderkey, o_orderdate, o_shippriority
    ORDER BY revenue DESC, o_orderdate, l_orderkey
    LIMIT 10
"""
"""The standard leaves the order of equal rows open; l_orderkey makes it total."""

DAY = dt.date(1995, 3, 15)
BUILDING = "SELECT c_custkey FROM rows WHERE c_mktsegment = 'BUILDING'"
REVENUE = "SELECT l_orderkey, CAST(l_extendedprice * (1 - l_discount) AS DECIMAL(18, 4)) AS revenue FROM rows"
TOP = """
    SELECT l_orderkey, revenue, o_orderdate, o_shippriority FROM rows
    ORDER BY revenue DESC, o_orderdate, l_orderkey LIMIT 10
"""
RESULT = "l_orderkey long, revenue decimal(28, 4), o_orderdate date, o_shippriority int"


def pipeline(spark, folder):
    """The stream of the answer."""
    customers = penstock.readParquet(spark, f"{folder}/customer.parquet", ["c_custkey", "c_mktsegment"])
    customers = customers.mapInArrow(each_batch(BUILDING), "c_custkey long")
    orders = penstock.readParquet(
        spark,
        f"{folder}/orders.parquet",
        ["o_orderkey", "o_custkey", "o_orderdate", "o_shippriority"],
        filter=pc.field("o_orderdate") < DAY,
    )
    lines = penstock.readParquet(
        spark,
        f"{folder}/lineitem.parquet",
        ["l_orderkey", "l_extendedprice", "l_discount"],
        filter=pc.field("l_shipdate") > DAY,
    ).mapInArrow(each_batch(REVENUE), "l_orderkey long, revenue decimal(18, 4)")

    theirs = orders.keyBy("o_custkey").join(
        customers.keyBy("c_custkey"), how="left_semi", on=[("o_custkey", "c_custkey")]
    )
    sold = lines.keyBy("l_orderkey").join(theirs.keyBy("o_orderkey"), on=[("l_orderkey", "o_orderkey")])
    totals = sold.groupBy("l_orderkey", "o_orderdate", "o_shippriority").agg(revenue=("revenue", "sum"))
    return totals.mapInArrow(each_batch(TOP), RESULT).toOne().mapInArrow(whole_partition(TOP), RESULT)
