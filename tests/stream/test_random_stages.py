# SPDX-License-Identifier: Apache-2.0
"""Random programs of one stage beside plain Python, a short form of `python -m penstock_torture --stages 1000`."""

from __future__ import annotations

import pytest

from effort import examples
from penstock_torture.stages import run
from penstock_torture.stages.kinds import KINDS, Stage
from penstock_torture.stages.rules import Totals
from penstock_torture.stages.run import described, run_stage


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(examples(80)))
def test_a_stage_gives_what_its_rules_say(kind: str, seed: int) -> None:
    """Rows, watermarks of each task, checkpoints that fail, restores at other widths: the oracle's rows each time."""
    ending = run_stage(seed, kind)
    assert not ending.wrong, "\n".join(described(seed, ending))


def test_a_seed_is_one_program() -> None:
    """Its story is the same again; another seed of the kind has another."""
    assert run_stage(4) == run_stage(4)
    assert run_stage(4).story != run_stage(4 + len(KINDS)).story


def test_a_wrong_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An oracle that forgets a row of each batch disagrees, and the ending says what and how to see it again."""

    class Forgetful(Totals):
        def give(self, rows, side):  # type: ignore[no-untyped-def]
            return super().give(rows[1:], side)

    made = KINDS["totals"]

    def forgetful(*given: object) -> Stage:
        stage = made(*given)  # type: ignore[arg-type]
        stage.oracle.__class__ = Forgetful
        return stage

    monkeypatch.setitem(run.KINDS, "totals", forgetful)
    ending = run_stage(4)
    assert "too many" in ending.wrong or "missing" in ending.wrong
    assert described(4, ending)[0].startswith("stage 4 (totals: totals by ")
