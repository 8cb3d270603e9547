# SPDX-License-Identifier: Apache-2.0
"""A session with `spark.authenticate`: jobs run, and the secret of Spark's shuffle service is Spark's own."""

from __future__ import annotations

import pytest

import penstock
from penstock.spark.runtime import SparkRuntime
from sessions import Kind, Sessions

pytestmark = pytest.mark.spark

CONF = (("spark.authenticate", "true"), ("spark.network.crypto.enabled", "true"))


def test_the_secret_is_the_one_that_spark_has_made(sessions: Sessions) -> None:
    """Nobody has set one here, so Spark made it, and no conf has it; a job runs."""
    spark = sessions.of(Kind("local[2]", 2, CONF))
    keyed = penstock.fromDataFrame(spark.range(0, 1000, 1, 2)).keyBy("id", numPartitions=2)
    assert keyed.mapInArrow(lambda batches: batches, "id long").count() == 1000
    ess = SparkRuntime.of(spark).settings().ess
    assert len(ess.secret) > 30
    assert ess.secret not in dict(spark.sparkContext.getConf().getAll()).values()
    assert ess.cipher == "AES/CTR/NoPadding"
