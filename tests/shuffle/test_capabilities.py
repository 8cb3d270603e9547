# SPDX-License-Identifier: Apache-2.0
"""The kind that a service gets for each purpose of the engine, and the modes that it refuses."""

from __future__ import annotations

import pytest

from penstock.errors import SettingError
from penstock.shuffle import Capabilities, PartitionKind, load_service
from penstock.shuffle.kinds import MODES

K = PartitionKind
ALL = load_service("local").capabilities


def test_the_local_service_has_a_kind_for_everything() -> None:
    """Exchanges are pipelined, stored ones and results hybrid, persisted results have a kind of their own."""
    assert (ALL.automatic, ALL.stored, ALL.unbuffered) == (K.PIPELINED_BOUNDED, K.HYBRID_FULL, K.BLOCKING_SORT_MERGE)
    assert (ALL.result, ALL.persisted, ALL.streamed) == (K.HYBRID_FULL, K.BLOCKING_PERSISTENT, K.PIPELINED_BOUNDED)
    assert ALL.approximate is K.PIPELINED_APPROXIMATE
    assert {mode: ALL.kind_of(mode, "local") for mode in MODES} == MODES


@pytest.mark.parametrize("kinds", [(K.BLOCKING_HASH,), (K.BLOCKING_HASH, K.BLOCKING_SORT_MERGE)])
def test_a_service_of_files_stores_everything(kinds: tuple[PartitionKind, ...]) -> None:
    """The kind that it names first serves every purpose but streams."""
    files = Capabilities(kinds)
    assert {files.automatic, files.stored, files.unbuffered, files.result, files.persisted} == {K.BLOCKING_HASH}
    assert files.streamed is None


def test_what_stores_nothing_keeps_nothing() -> None:
    """A service of wires has no kind for results; streams need that it says so, and a bounded kind."""
    wires = Capabilities((K.PIPELINED, K.PIPELINED_APPROXIMATE))
    assert wires.automatic is K.PIPELINED
    assert not {wires.stored, wires.unbuffered, wires.result, wires.persisted, wires.streamed} - {None}
    assert Capabilities((K.PIPELINED, K.PIPELINED_BOUNDED)).streamed is None
    assert Capabilities((K.PIPELINED, K.PIPELINED_BOUNDED), streams=True).streamed is K.PIPELINED_BOUNDED
    assert (wires.approximate, Capabilities((K.PIPELINED_BOUNDED,), streams=True).approximate) == (None, None)


def test_a_selective_kind_is_no_result() -> None:
    """Its rows go with their first reader: enough against deadlocks, not for what is read twice."""
    hybrid = Capabilities((K.HYBRID_SELECTIVE, K.HYBRID_FULL))
    assert (hybrid.automatic, hybrid.stored, hybrid.result) == (K.HYBRID_SELECTIVE, K.HYBRID_SELECTIVE, K.HYBRID_FULL)


def test_a_mode_that_a_service_lacks_is_refused_with_those_that_it_has() -> None:
    """The sentence names the service, the mode and the choice there is; an unknown mode is no mode of anybody."""
    files = Capabilities((K.BLOCKING_SORT_MERGE,))
    assert files.kind_of("blocking", "files") is K.BLOCKING_SORT_MERGE
    with pytest.raises(SettingError) as refused:
        files.kind_of("hybrid", "files")
    assert str(refused.value) == (
        "the shuffle service 'files' has no mode 'hybrid': it has auto, blocking; use one of these, or another "
        "service"
    )
    with pytest.raises(SettingError, match="unknown mode 'fast'"):
        files.kind_of("fast", "files")
    with pytest.raises(SettingError, match="'none' has no mode 'auto'"):
        Capabilities(()).kind_of("auto", "none")


class Silent:
    """A service that does not say what it carries."""


def test_a_service_that_names_no_kinds_is_refused() -> None:
    """When it is loaded, and not by the first plan."""
    with pytest.raises(SettingError, match=r"cannot be loaded.*no attribute 'capabilities'"):
        load_service("test_capabilities:Silent")
