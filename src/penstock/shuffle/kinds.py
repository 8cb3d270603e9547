# SPDX-License-Identifier: Apache-2.0
"""Partition kinds, each a set of five orthogonal flags, and the modes a user writes."""

from __future__ import annotations

from enum import Enum

from penstock.shuffle.errors import SettingError


class PartitionKind(Enum):
    """How a result partition lives: `(pipelined, back_pressured, bounded, persistent, reconnectable)`."""

    PIPELINED = ("pipelined", True, True, False, False, False)
    PIPELINED_BOUNDED = ("pipelined_bounded", True, True, True, False, False)
    PIPELINED_APPROXIMATE = ("pipelined_approximate", True, True, True, False, True)
    BLOCKING_HASH = ("blocking_hash", False, False, False, False, True)
    BLOCKING_SORT_MERGE = ("blocking_sort_merge", False, False, False, False, True)
    BLOCKING_PERSISTENT = ("blocking_persistent", False, False, False, True, True)
    HYBRID_FULL = ("hybrid_full", True, False, False, False, True)
    HYBRID_SELECTIVE = ("hybrid_selective", True, False, False, False, False)

    def __init__(
        self,
        label: str,
        pipelined: bool,
        back_pressured: bool,
        bounded: bool,
        persistent: bool,
        reconnectable: bool,
    ) -> None:
        self.label = label
        self.pipelined = pipelined
        self.back_pressured = back_pressured
        self.bounded = bounded
        self.persistent = persistent
        self.reconnectable = reconnectable

    @classmethod
    def from_label(cls, label: str) -> PartitionKind:
        """The kind with this label; raises SettingError for an unknown one."""
        for kind in cls:
            if kind.label == label:
                return kind
        raise SettingError(f"unknown partition kind {label!r}: one of {', '.join(k.label for k in cls)}")


MODES = {
    "auto": PartitionKind.PIPELINED_BOUNDED,
    "pipelined": PartitionKind.PIPELINED_BOUNDED,
    "blocking": PartitionKind.BLOCKING_SORT_MERGE,
    "blocking_hash": PartitionKind.BLOCKING_HASH,
}
"""Modes this version can run. The others of the vocabulary are refused by name until they are built."""

LATER_MODES = ("hybrid", "hybrid_selective")


def mode_to_kind(mode: str) -> PartitionKind:
    """The partition kind of an edge's mode; raises SettingError for an unknown or not yet built mode."""
    if mode in MODES:
        return MODES[mode]
    if mode in LATER_MODES:
        raise SettingError(
            f"mode {mode!r} is not available in this version of Penstock: use one of {', '.join(MODES)}"
        )
    raise SettingError(f"unknown mode {mode!r}: use one of {', '.join(MODES)}")
