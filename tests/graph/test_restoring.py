# SPDX-License-Identifier: Apache-2.0
"""The state that tasks begin with if a checkpoint is restored into another plan, and plans that are refused."""

from __future__ import annotations

import pytest

from penstock.errors import PlanError
from penstock.graph.restoring import Beginning, beginning_of, ended_sources, parts_in_front, refuse_other_plan
from penstock.graph.streaming import SavedParts

WHERE = "the checkpoint at /there"


def saved(widths: dict[str, int], finished: frozenset[str] = frozenset()) -> SavedParts:
    """A checkpoint with a part of each task that had not finished."""
    names = [f"{uid}.{subtask}" for uid, width in widths.items() for subtask in range(width)]
    return SavedParts(7, {name: name.encode() for name in names if name not in finished}, finished, widths)


def test_a_stage_as_wide_as_before_gives_each_task_its_own_part() -> None:
    """Also where some had finished: those have none and say so."""
    found = saved({"a": 3, "b": 2}, frozenset({"a.1"}))
    assert [beginning_of(found, "a", subtask, 3) for subtask in range(3)] == [
        Beginning(("a.0",)),
        Beginning(is_finished=True),
        Beginning(("a.2",)),
    ]


def test_a_stage_of_another_width_gives_all_parts_in_order_of_their_numbers() -> None:
    """More tasks or fewer; the tenth part comes after the ninth."""
    found = saved({"a": 12, "a.b": 2})
    assert beginning_of(found, "a", 0, 2).parts == tuple(f"a.{number}" for number in range(12))
    assert beginning_of(found, "a.b", 4, 5).parts == ("a.b.0", "a.b.1")


def test_a_stage_that_had_finished_has_finished_at_any_width() -> None:
    """It has no rows left, however many tasks it gets."""
    found = saved({"a": 2, "b": 1}, frozenset({"a.0", "a.1"}))
    refuse_other_plan(found, (128, 128), {"a": 5, "b": 1}, WHERE)
    assert all(beginning_of(found, "a", subtask, 5) == Beginning(is_finished=True) for subtask in range(5))


def test_sources_that_had_ended_are_named() -> None:
    """Their tasks read nothing any more, also not what has come since; a source that reads on is not mentioned."""
    found = saved({"a": 2, "b": 1, "c": 3}, frozenset({"a.0", "a.1", "c.1"}))
    whole, part = ended_sources(found, {"a": "text files of /a", "b": "rate", "c": "text files of /c", "new": "rate"})
    assert whole.startswith("text files of /a: 2 of 2 tasks had read all of their rows")
    assert part.startswith("text files of /c: 1 of 3 tasks")
    assert "a new checkpointLocation" in part


def test_a_new_stage_begins_with_nothing() -> None:
    """It has not finished, and has no part."""
    refuse_other_plan(saved({"a": 2}), (128, 128), {"a": 2, "new": 3}, WHERE)
    assert beginning_of(saved({"a": 2}), "new", 0, 3) == Beginning()


def test_a_plan_without_a_stage_of_the_checkpoint_is_refused_by_name() -> None:
    """Both sides are named, as it is mostly one stage under another name; a finished one may go."""
    with pytest.raises(PlanError, match=r"2 stages \(b, c\).*not in it: d\. Start"):
        refuse_other_plan(saved({"a": 1, "b": 1, "c": 1}), (128, 128), {"a": 1, "d": 1}, WHERE)
    with pytest.raises(PlanError, match=r"5 stages \(b0, b1, b2 and 2 more\).*not in it: none"):
        refuse_other_plan(saved({f"b{n}": 1 for n in range(5)}), (128, 128), {}, WHERE)
    refuse_other_plan(saved({"a": 1, "b": 1}, frozenset({"b.0"})), (128, 128), {"a": 1}, WHERE)


def test_a_stage_of_which_some_tasks_had_finished_keeps_its_width() -> None:
    """The positions of those are written nowhere, so nobody could tell whose rows are done."""
    found = saved({"a": 3}, frozenset({"a.1"}))
    refuse_other_plan(found, (128, 128), {"a": 3}, WHERE)
    with pytest.raises(PlanError, match=r"1 of 3 tasks of stage a .* must go on with its 3 tasks, not with 2"):
        refuse_other_plan(found, (128, 128), {"a": 2}, WHERE)


def test_parts_in_front_are_given_where_an_end_of_the_exchange_has_changed() -> None:
    """The rows that producers had in flight; not where both ends are as they were, nor to a new stage."""
    found = saved({"a": 2, "b": 1, "c": 2})
    assert parts_in_front(found, ("c", 2), {"a": 2, "b": 1}) == ()
    assert parts_in_front(found, ("c", 3), {"a": 2, "b": 1}) == ("a.0", "a.1", "b.0")
    assert parts_in_front(found, ("c", 2), {"a": 5, "b": 1}) == ("a.0", "a.1")
    assert parts_in_front(found, ("c", 2), {"a": 2, "new": 3}) == ()
    assert parts_in_front(found, ("new", 2), {"a": 5}) == ()


def test_another_number_of_key_groups_is_refused() -> None:
    """State lies in them."""
    with pytest.raises(PlanError, match=r"128 key groups .*, this query 64"):
        refuse_other_plan(saved({"a": 1}), (128, 64), {"a": 1}, WHERE)
