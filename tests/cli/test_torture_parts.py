# SPDX-License-Identifier: Apache-2.0
"""Torture without Spark: seeds repeat themselves, right cases pass, and each kind of wrong ending is noticed."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from penstock.torture import command
from penstock.torture.recipe import Exchange, Recipe, Step, random_recipe

PLAIN = Recipe("t", 100, (pa.string(),), 2, (Exchange("key", 2, "c0"), Step("keep")), "", "", 0.0)


def test_a_seed_repeats_itself() -> None:
    """The same case from the same seed, another from another."""
    assert random_recipe(7, 3, spark=True) == random_recipe(7, 3, spark=True)
    assert len({random_recipe(seed, 3, spark=True).describe() for seed in range(20)}) > 10


@pytest.mark.parametrize("number", range(12))
def test_local_cases_end_well(number: int) -> None:
    """A dozen cases of a seed."""
    is_well, text = command.run_case(random_recipe(11, number, spark=False))
    assert is_well, text


def test_wrong_rows_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that lacks a row is a failure."""
    run = command.run_local
    monkeypatch.setattr(command, "run_local", lambda *given, **named: run(*given, **named).slice(1))
    is_well, text = command.run_case(PLAIN)
    assert not is_well
    assert "differ" in text


def test_an_error_without_harm_is_a_failure() -> None:
    """The same error is right where harm was done."""
    raising = replace(PLAIN, steps=(Step("raise"), *PLAIN.steps))
    assert not command.run_case(raising)[0]
    assert command.run_case(replace(raising, harm="raise"))[0]


def test_an_error_that_is_not_ours_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where harm was done."""

    def fail(*given: object, **named: object) -> pa.Table:
        raise KeyError("inside")

    monkeypatch.setattr(command, "run_local", fail)
    assert not command.run_case(replace(PLAIN, harm="raise"))[0]


def test_a_case_that_does_not_end_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up after its time."""
    import threading

    gate = threading.Event()
    monkeypatch.setattr(command, "_CASE_SECONDS", 0.05)
    monkeypatch.setattr(command, "run_local", lambda *given, **named: gate.wait(30) and PLAIN.table())
    is_well, text = command.run_case(PLAIN)
    gate.set()
    assert not is_well
    assert "did not end" in text
