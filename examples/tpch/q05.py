# SPDX-License-Identifier: Apache-2.0
"""Query 5, local supplier volume: revenue by nation of one region, where customer and supplier are of one nation.

Nation and region are small: they are read in the driver and travel with the functions that look something up.
"""

import datetime as dt

import pyarrow.compute as pc
import pyarrow.parquet as pq
from duck import each_batch, whole_partition

import penstock

SQL = """
    SELECT n_name, sum(l_extendedprice * (1 - l_discount)) AS revenue
    FROM customer, orders, lineitem, supplier, nation, region
    WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey
        AND c_nationkey = s_nationkey AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey
        AND r_name = 'ASIA' AND o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1995-01-01'
    GROUP BY n_name
    ORDER BY revenue DESC, n_name
"""

YEAR = (dt.date(1994, 1, 1), dt.date(1995, 1, 1))
CUSTOMERS = """
    SELECT c_custkey, c_nationkey FROM rows
    JOIN nation ON c_nationkey = n_nationkey JOIN region ON n_regionkey = r_regionkey WHERE r_name = 'ASIA'
"""
SUPPLIERS = "SELECT s_suppkey, s_nationkey, n_name FROM rows JOIN nation ON s_nationkey = n_nationkey"
REVENUE = """
    SELECT l_orderkey, l_suppkey, CAST(l_extendedprice * (1 - l_discount) AS DECIMAL(18, 4)) AS revenue FROM rows
"""
RESULT = "SELECT n_name, revenue FROM rows ORDER BY revenue DESC, n_name"


def pipeline(spark, folder):
    """The stream of the answer."""
    nation = pq.read_table(f"{folder}/nation.parquet")
    region = pq.read_table(f"{folder}/region.parquet")
    customers = penstock.readParquet(spark, f"{folder}/customer.parquet", ["c_custkey", "c_nationkey"])
    customers = customers.mapInArrow(
        each_batch(CUSTOMERS, nation=nation, region=region), "c_custkey long, c_nationkey long"
    )
    suppliers = penstock.readParquet(spark, f"{folder}/supplier.parquet", ["s_suppkey", "s_nationkey"]).mapInArrow(
        each_batch(SUPPLIERS, nation=nation), "s_suppkey long, s_nationkey long, n_name string"
    )
    orders = penstock.readParquet(
        spark,
        f"{folder}/orders.parquet",
        ["o_orderkey", "o_custkey"],
        filter=(pc.field("o_orderdate") >= YEAR[0]) & (pc.field("o_orderdate") < YEAR[1]),
    )
    lines = penstock.readParquet(
        spark, f"{folder}/lineitem.parquet", ["l_orderkey", "l_suppkey", "l_extendedprice", "l_discount"]
    ).mapInArrow(each_batch(REVENUE), "l_orderkey long, l_suppkey long, revenue decimal(18, 4)")

    theirs = orders.keyBy("o_custkey").join(customers.keyBy("c_custkey"), on=[("o_custkey", "c_custkey")])
    sold = lines.keyBy("l_orderkey").join(theirs.keyBy("o_orderkey"), on=[("l_orderkey", "o_orderkey")])
    local = sold.keyBy("l_suppkey", "c_nationkey").join(
        suppliers.keyBy("s_suppkey", "s_nationkey"), on=[("l_suppkey", "s_suppkey"), ("c_nationkey", "s_nationkey")]
    )
    totals = local.groupBy("n_name", numPartitions=1).agg(revenue=("revenue", "sum"))
    return totals.mapInArrow(whole_partition(RESULT), "n_name string, revenue decimal(28, 4)")
