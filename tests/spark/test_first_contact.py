# SPDX-License-Identifier: Apache-2.0
"""Workers with another Penstock than the driver's: one sentence says so, before anything of ours is unpacked."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import penstock
from penstock.errors import PenstockError
from penstock.spark import first_contact

SENTENCE = r"the driver has Penstock 0\.0\.7, and the workers on \S+ have \d.* install 0\.0\.7 there"


def test_a_plan_of_the_same_version_arrives() -> None:
    """A plan comes out as it was sent."""
    assert pickle.loads(pickle.dumps(first_contact.Sent({"a": 1}))).plan == {"a": 1}  # noqa: S301


def test_a_plan_of_another_version_is_not_unpacked() -> None:
    """Bytes that no unpickler takes are refused by the version that stands beside them."""
    with pytest.raises(PenstockError, match=SENTENCE):
        first_contact.received("0.0.7", b"never looked at")


@pytest.mark.spark
def test_the_user_reads_the_sentence(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of a job whose workers are of another version, and the next job runs."""
    stream = penstock.fromDataFrame(spark.range(0, 10, 1, 2)).keyBy("id", numPartitions=2)
    with monkeypatch.context() as patch:
        patch.setattr(first_contact, "VERSION", "0.0.7")
        with pytest.raises(Exception, match=SENTENCE):
            stream.run()
    assert penstock.fromDataFrame(spark.range(10)).count() == 10
