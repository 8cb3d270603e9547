# SPDX-License-Identifier: Apache-2.0
"""Partition kinds, each a set of five orthogonal flags, and the modes a user writes."""

from __future__ import annotations

from enum import Enum

from penstock.errors import SettingError


class PartitionKind(Enum):
    """The life of a result partition: `(pipelined, back_pressured, bounded, persistent, reconnectable)`.

    - `pipelined`: it may be read while it is written. Else it is read when it is complete.
    - `back_pressured`: its writer waits for its readers, so they must run at the same time.
    - `bounded`: what is under way in it stays below a limit of its own, however much memory there is. A barrier is
      soon through it, so a streaming query takes these only.
    - `persistent`: it outlives its job, and no lease ends it: the caller that asked for it releases it.
    - `reconnectable`: a reader that has lost its place may come again: what keeps its rows is read again from the
      beginning. Of a back-pressured kind, which keeps none, it goes on with what comes then: of a query that bears
      that a task alone can begin anew. The rows under way are lost, and the writer's sums say how many these are.
    """

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

    @property
    def is_hybrid(self) -> bool:
        """True if it is read while it is written, yet never stops its producer: rows beyond memory are spilled."""
        return self.pipelined and not self.back_pressured

    @property
    def runs_together(self) -> bool:
        """True if producer and consumer must run at the same time, because the producer waits for its readers."""
        return self.pipelined and self.back_pressured

    @property
    def carries_streams(self) -> bool:
        """True if a streaming query may exchange rows by it: none is lost, and a barrier is soon through."""
        return self.runs_together and self.bounded and not self.reconnectable

    @property
    def reattaches(self) -> bool:
        """True if reader and producer of a channel may each begin anew alone, at the price of rows under way."""
        return self.runs_together and self.reconnectable

    @property
    def is_kept(self) -> bool:
        """True if its rows stay when they have been read, so that a reader may come again, or another one."""
        return self.reconnectable and not self.back_pressured

    @classmethod
    def from_label(cls, label: str) -> PartitionKind:
        """The kind with this label; raises SettingError for an unknown one."""
        for kind in cls:
            if kind.label == label:
                return kind
        raise SettingError(f"unknown partition kind {label!r}: one of {', '.join(k.label for k in cls)}")


AUTO = "auto"
"""The mode that leaves the choice to the plan."""
MODES = {
    AUTO: PartitionKind.PIPELINED_BOUNDED,
    "pipelined": PartitionKind.PIPELINED_BOUNDED,
    "blocking": PartitionKind.BLOCKING_SORT_MERGE,
    "blocking_hash": PartitionKind.BLOCKING_HASH,
    "hybrid": PartitionKind.HYBRID_FULL,
    "hybrid_selective": PartitionKind.HYBRID_SELECTIVE,
}
"""The modes a user may write. `auto` is pipelined first; its service and the plan may make it another kind."""


def mode_to_kind(mode: str) -> PartitionKind:
    """The partition kind of an edge's mode; raises SettingError for an unknown mode."""
    if mode in MODES:
        return MODES[mode]
    raise SettingError(f"unknown mode {mode!r}: use one of {', '.join(MODES)}")
