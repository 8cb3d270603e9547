# SPDX-License-Identifier: Apache-2.0
"""Kinds of partitions: what follows from their flags."""

from __future__ import annotations

from penstock.shuffle.kinds import MODES, PartitionKind


def test_what_follows_from_the_flags() -> None:
    """Scheduling, restarts, deadlock rules and streaming queries ask for these, and for no kind by its name."""
    kinds = PartitionKind
    assert {kind for kind in kinds if kind.runs_together} == {
        kinds.PIPELINED,
        kinds.PIPELINED_BOUNDED,
        kinds.PIPELINED_APPROXIMATE,
    }
    assert {kind for kind in kinds if kind.is_hybrid} == {kinds.HYBRID_FULL, kinds.HYBRID_SELECTIVE}
    assert {kind for kind in kinds if kind.carries_streams} == {kinds.PIPELINED_BOUNDED}
    assert {kind for kind in kinds if kind.is_kept} == {
        kinds.BLOCKING_HASH,
        kinds.BLOCKING_SORT_MERGE,
        kinds.BLOCKING_PERSISTENT,
        kinds.HYBRID_FULL,
    }


def test_no_two_kinds_differ_by_name_alone() -> None:
    """The layouts of blocking files are the one exception: those are the writer's business."""
    flags = [kind.value[1:] for kind in PartitionKind if kind is not PartitionKind.BLOCKING_HASH]
    assert len(set(flags)) == len(flags)


def test_no_mode_of_a_user_is_approximate_or_unbounded() -> None:
    """Rows are never lost, and nobody takes all of a host's memory, whatever is asked for."""
    assert not any(kind.back_pressured and (kind.reconnectable or not kind.bounded) for kind in MODES.values())
