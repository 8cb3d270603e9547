# SPDX-License-Identifier: Apache-2.0
"""Lengths of time in Spark's words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PlanError
from penstock.operators.intervals import interval_text, microseconds


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("10 minutes", 600_000_000),
        ("interval 10 minutes", 600_000_000),
        ("1 hour 30 minutes", 5_400_000_000),
        ("1hour", 3_600_000_000),
        ("1.5 Seconds", 1_500_000),
        ("2 weeks -1 day", 13 * 86_400_000_000),
        ("250 milliseconds 5 microseconds", 250_005),
        ("0 seconds", 0),
    ],
)
def test_an_interval_is_read_as_spark_reads_it(text: str, length: int) -> None:
    """Several units add up, in any case and with a sign."""
    assert microseconds(text, "a delay") == length


@pytest.mark.parametrize("text", ["", "interval", "10", "minutes", "10 minutes ago", "1 year", "0.5 microseconds"])
def test_what_is_no_interval_is_refused(text: str) -> None:
    """With the text, and words for what it stands for."""
    with pytest.raises(PlanError, match=r"^a delay"):
        microseconds(text, "a delay")


@given(st.integers(0, 10**15))
def test_an_interval_is_shown_as_it_is_read(length: int) -> None:
    """Its text is an interval of the same length."""
    assert microseconds(interval_text(length), "a delay") == length
