# SPDX-License-Identifier: Apache-2.0
"""The short names of stages on the page."""

from __future__ import annotations

import pytest

from penstock.web.titles import short_name, titles_of


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("parquet /data/shop/orders/part-0.parquet and 3 more files + mapInArrow(slow)", "orders + slow"),
        ("parquet s3://bucket/orders/day=1/part-7.parquet", "orders"),
        ("parquet /data/orders.parquet", "orders"),
        ("csv files of /in/orders", "orders"),
        ("text /var/log/0001.log", "log"),
        ("DataFrame(id, key) + mapInPandas(clean)", "DataFrame(id, key) + clean"),
        ("rebalance + mapInArrow(<lambda>)", "rebalance + mapInArrow(<lambda>)"),
        ("hash(key) + applyInPandas(best) by key", "best by key"),
        ("hash(key) + applyInPandas(<lambda>) by key", "applyInPandas(<lambda>) by key"),
        ("hash(a, b) + aggregate by a, b", "groupBy(a, b)"),
        ("hash(a) + aggregate by b", "keyBy(a) + groupBy(b)"),
        ("hash(key)", "keyBy(key)"),
        ("toOne + aggregate of all rows", "agg of all rows"),
        ("toOne", "toOne"),
        ("inner join on id + select(id, name)", "inner join on id + select(id, name)"),
        ("range(place) + sort by amount desc", "range(place) + sort(amount desc)"),
        ("DataFrame(a) + filter((a + b) > 3) + nullable(a)", "DataFrame(a) + filter((a + b) > 3)"),
        ("select(first_column, second_column, third_column, 9 more)", "select(first_column, second_column, th…)"),
        ("a + b + c + d + e", "a + b + … + e"),
        ("kafka orders", "kafka orders"),
        ("parquet /out/daily by day", "daily by day"),
        ("parquet without files", "parquet without files"),
    ],
)
def test_a_stage_is_named_as_people_call_it(name: str, title: str) -> None:
    """The table, the functions and the verbs, and no paths or kinds of exchanges."""
    assert short_name(name) == title


def test_two_stages_never_have_one_name() -> None:
    """The second one has a number."""
    stages = [{"id": each, "name": name} for each, name in enumerate(("hash(a)", "rebalance", "hash(a)"))]
    assert titles_of(stages) == {0: "keyBy(a)", 1: "rebalance", 2: "keyBy(a) (2)"}
