# SPDX-License-Identifier: Apache-2.0
"""Identities as text: each comes back with its parts, and nothing else is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shuffle import DatasetId, PartitionId
from penstock.shuffle.ids import environment_name, host_of

NAMES = st.text(min_size=1)


@given(NAMES, st.integers(0), st.booleans())
def test_a_dataset_comes_back_from_its_text(job: str, number: int, is_result: bool) -> None:
    """A job may have any name, dashes and digits included."""
    dataset = DatasetId(job, number, is_result)
    assert DatasetId.of(str(dataset)) == dataset
    assert PartitionId.from_wire(PartitionId(dataset, 1, 2).to_wire()) == PartitionId(dataset, 1, 2)


@pytest.mark.parametrize("text", ["", "plain", "j1-0", "j1-e", "-e0", "j1-e01", "j1-e-1", "j1-e0 ", "j1-results1"])
def test_what_names_no_dataset_is_refused(text: str) -> None:
    """Nobody guesses a job from it."""
    with pytest.raises(ValueError, match="names no dataset"):
        DatasetId.of(text)


@given(NAMES, st.integers(0), st.text("0123456789abcdef", min_size=1))
def test_the_name_of_an_environment_says_its_host(host: str, pid: int, token: str) -> None:
    """Hosts have dashes of their own."""
    assert host_of(environment_name(host, pid, token)) == host


def test_another_name_is_a_host_of_its_own() -> None:
    """Such as those of shuffle services that have no process of ours."""
    assert host_of("store") == "store"
    assert host_of("a-b-c") == "a-b-c"
