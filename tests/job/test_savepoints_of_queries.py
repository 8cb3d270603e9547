# SPDX-License-Identifier: Apache-2.0
"""Savepoints of queries in a whole JobMaster: written while checkpoints come and go, and begun with."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from job_fakes import DEADLINE, fresh_service
from penstock.checkpoint.errors import CheckpointError
from penstock.checkpoint.metadata import pack_part, unpack_part
from penstock.checkpoint.running import runners
from penstock.checkpoint.savepoints import SavepointFolder
from penstock.checkpoint.stamps import Owner, Stamp
from penstock.checkpoint.storage import CheckpointStorage
from penstock.errors import PlanError
from penstock.graph.streaming import SavedParts, StreamingOptions
from penstock.job.kept_checkpoints import KeptCheckpoints
from penstock.job.last_savepoint import LastSavepoint, saved
from penstock.job.query_storage import QueryStorage, SavedStates
from penstock.machine.locations import here
from query_driver import Driver, query
from underway import listed

WIDTHS = {"u0": 1, "u1": 1}


@pytest.fixture
def drivers() -> Iterator[list[Driver]]:
    """Drivers that are closed at the end."""
    fresh_service()
    made: list[Driver] = []
    with contextlib.ExitStack() as stack:
        yield made
        for driver in made:
            stack.callback(driver.close)


def claimed(location: Path, **options: object) -> QueryStorage:
    """A location that a query has taken."""
    storage = QueryStorage(StreamingOptions("q", "q", str(location), **options))  # type: ignore[arg-type]
    storage.claim(WIDTHS)
    return storage


def stored(storage: QueryStorage, number: int, location: Path) -> None:
    """A complete checkpoint."""
    parts = CheckpointStorage(str(location))
    owner = storage.beginning.owner
    found = {f"{uid}.0": parts.write(Stamp.by(owner, number), f"{uid}.0", [("n", b"%d" % number)]) for uid in WIDTHS}
    packed = {name: pack_part(part) for name, part in found.items()}
    storage.store(SavedParts(number, packed, frozenset(), WIDTHS))


def test_a_query_begins_with_a_savepoint_and_goes_on_from_its_own(drivers: list[Driver], tmp_path: Path) -> None:
    """Its tasks get the parts at its own location; the savepoint, and the first location, may go from then on."""
    drivers.append(first := Driver(query(tmp_path / "one", interval=None)))
    handle = first.start()
    path = str(tmp_path / "saved")
    number = saved(first.storage.save, path, lambda: first.master.checkpoint(handle.job, DEADLINE))
    first.master.checkpoint(handle.job, DEADLINE)
    first.close()
    shutil.rmtree(tmp_path / "one")
    drivers.append(second := Driver(query(tmp_path / "two", interval=None, savepoint=path), "e2"))
    handle = second.start()
    assert second.storage.beginning.saved is not None
    assert second.storage.beginning.saved.checkpoint == number
    own = second.master.checkpoint(handle.job, DEADLINE)
    assert own > number
    told = second.tasks.deployed[0].streaming
    assert told is not None
    ((_, data),) = CheckpointStorage(str(tmp_path / "two")).read(unpack_part(told.restored[0][1]))
    assert data == b"%d" % number
    second.close()
    drivers.append(third := Driver(query(tmp_path / "two", interval=None, savepoint=path), "e3"))
    third.start()
    assert third.storage.beginning.saved is not None
    assert third.storage.beginning.saved.checkpoint == own, "the same start again goes on from what is there"
    third.close()
    shutil.rmtree(path)
    drivers.append(fourth := Driver(query(tmp_path / "two", interval=None), "e4"))
    fourth.start()


def test_a_location_with_checkpoints_of_its_own_is_refused(tmp_path: Path) -> None:
    """Which of the two is meant nobody can tell; and one of another plan is refused before anything is copied."""
    one = claimed(tmp_path / "one")
    stored(one, 1, tmp_path / "one")
    SavepointFolder(str(tmp_path / "saved")).prepare()
    assert one.save(str(tmp_path / "saved"), 1) == 1
    one.end()
    with pytest.raises(PlanError, match="did not begin with the savepoint"):
        claimed(tmp_path / "one", savepoint=str(tmp_path / "saved"))
    other = QueryStorage(StreamingOptions("q", "q", str(tmp_path / "two"), savepoint=str(tmp_path / "saved")))
    for claim in (other.look, other.claim):
        with pytest.raises(PlanError, match=r"the savepoint at .* is of another plan"):
            claim({"x": 1})
    assert not (tmp_path / "two").exists()
    with pytest.raises(CheckpointError, match="no savepoint at"):
        claimed(tmp_path / "two", savepoint=str(tmp_path / "nothing"))


def test_what_a_query_does_without_is_not_copied(tmp_path: Path) -> None:
    """As what a sink has prepared for another place; a checkpoint of the query's own is not asked about."""
    one = claimed(tmp_path / "one")
    stored(one, 4, tmp_path / "one")
    SavepointFolder(str(tmp_path / "saved")).prepare()
    one.save(str(tmp_path / "saved"))
    one.end()
    asked: list[bool] = []

    def agree(states: SavedStates) -> set[tuple[str, str]]:
        asked.append(states.is_savepoint)
        return {("u0", "n")} if states.is_savepoint else set()

    options = StreamingOptions("q", "q", str(tmp_path / "two"), savepoint=str(tmp_path / "saved"))
    for _ in range(2):
        two = QueryStorage(options, agree)
        two.claim(WIDTHS)
        begun = two.beginning.saved
        assert begun is not None
        chunks = {name: [chunk.name for chunk in unpack_part(part).chunks] for name, part in begun.parts.items()}
        assert chunks == {"u0.0": [], "u1.0": ["n"]}
        two.end()
    assert (asked[0], asked[-1]) == (True, False), "the second start goes on from what the first one copied"


def test_a_start_that_fails_after_the_copy_leaves_an_empty_location(tmp_path: Path) -> None:
    """The next start begins with the savepoint again."""
    one = claimed(tmp_path / "one")
    stored(one, 4, tmp_path / "one")
    SavepointFolder(str(tmp_path / "saved")).prepare()
    one.save(str(tmp_path / "saved"))
    one.end()
    for _ in range(2):
        two = claimed(tmp_path / "two", savepoint=str(tmp_path / "saved"))
        assert two.beginning.saved is not None
        two.withdraw()
        assert not CheckpointStorage(str(tmp_path / "two")).history()
        assert not listed(tmp_path / "two", "chk-*")


def test_a_checkpoint_that_is_read_stays(tmp_path: Path) -> None:
    """It goes with the first sweep after it was read, though it was to go before."""
    location = tmp_path / "one"
    storage = claimed(location, retained=1)
    stored(storage, 1, location)
    with storage._kept.newest():
        stored(storage, 2, location)
        storage.discard(1)
        storage.sweep()
        assert len(listed(location, "chk-*/u0.0")) == 2
    stored(storage, 3, location)
    storage.discard(2)
    storage.sweep()
    assert len(listed(location, "chk-*")) == 1
    storage.end()


def test_two_readers_are_counted() -> None:
    """A checkpoint stays until the second of them has read; one that nobody knows is none."""
    kept = KeptCheckpoints()
    with kept.newest() as nothing:
        assert nothing is None
    kept.keep(Stamp(1, Owner(1, "a")))
    with kept.newest() as first:
        with kept.newest() as second:
            assert first == second
            assert kept.drop(1) is None
            assert kept.is_read(1)
        assert kept.stamps == [first]
        assert kept.numbers == []
    assert kept.stamps == []


def test_a_query_that_runs_leaves_a_sign(tmp_path: Path) -> None:
    """With its process, as long as it runs: a driver that ends, or could not begin, takes it away."""
    storage = claimed(tmp_path)
    (found,) = runners(here(), str(tmp_path))
    assert found.is_certain
    assert "process" in found.text
    storage.end()
    assert not runners(here(), str(tmp_path))
    claimed(tmp_path).withdraw()
    assert not runners(here(), str(tmp_path))


def test_a_savepoint_at_the_end_that_fails_is_told(tmp_path: Path) -> None:
    """The folder is looked at before the query is told to stop; what fails later names the location."""
    (tmp_path / "full").write_text("")
    last = LastSavepoint(lambda _, __: 1)
    with pytest.raises(CheckpointError, match="is a file"):
        last.ask(str(tmp_path / "full"), is_active=True)
    assert last.write(is_well=True)
    last.check(None)
    last.ask(str(tmp_path / "saved"), is_active=True)
    with pytest.raises(CheckpointError, match="told to stop already"):
        last.ask(str(tmp_path / "saved"), is_active=True)
    assert not last.write(is_well=False)
    with pytest.raises(CheckpointError, match="ended without the savepoint"):
        last.check(None)
    assert not (tmp_path / "saved").exists()
