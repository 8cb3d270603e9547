# SPDX-License-Identifier: Apache-2.0
"""A task writes the index of its own partition: whatever it says there, a host service allocates little for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import xxhash

from host_services import ENDS, Services, identity
from penstock.errors import IncompleteDataError, ProtocolError, QuotaError
from penstock.external import folders, keeper
from penstock.external.requests import CommitPartition, FindRange, KeptState, read_kept
from penstock.partition.extents import INDEX_NAME
from penstock.partition.file_header import INDEX_MAGIC, FileHeader, pack_footer, pack_header
from penstock.partition.file_input import FileOrigin
from penstock.partition.index import ENTRY, FOOTER, PLACE, read_index

MOST = 1_000
"""The bound of these tests."""
HUGE = (1 << 60) // ENTRY.size
"""More extents than any memory takes."""


def index_of(subpartitions: int, entries: int, *, says: int) -> bytes:
    """An index whose subpartitions share one list of so many entries, of which each says that it has others."""
    start = pack_header(INDEX_MAGIC, FileHeader(identity(0), subpartitions, True))
    extents = b"".join(ENTRY.pack(0, 1, number, number) for number in range(entries))
    places = PLACE.pack(len(start), says, xxhash.xxh3_64_intdigest(extents)) * subpartitions
    footer = FOOTER.pack(len(start) + len(extents), xxhash.xxh3_64_intdigest(places))
    return start + extents + places + pack_footer(footer)


INDEXES: dict[str, tuple[Callable[[], bytes], type[Exception] | None]] = {
    "as many as there may be": (lambda: index_of(4, MOST // 4, says=MOST // 4), None),
    "one more": (lambda: index_of(1, MOST + 1, says=MOST + 1), QuotaError),
    "one list of four": (lambda: index_of(4, MOST // 4 + 1, says=MOST // 4 + 1), QuotaError),
    "more subpartitions": (lambda: index_of(MOST + 1, 0, says=0), QuotaError),
    "a list that is not there": (lambda: index_of(1, 0, says=HUGE), QuotaError),
    "a list beyond the end": (lambda: index_of(1, 0, says=MOST), IncompleteDataError),
}


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    """Those of this test."""
    services = Services(tmp_path)
    yield services
    services.close()


@pytest.mark.parametrize("which", INDEXES)
def test_what_an_index_says_is_bounded(services: Services, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    """One question gets so many extents and no more, and the error says what to do; the service goes on."""
    monkeypatch.setattr(folders, "MOST_EXTENTS", MOST)
    make, error = INDEXES[which]

    async def run() -> int:
        keeper, account = await services.start()
        begun = await keeper.begin(account, identity(0), 4)
        os.write(begun.index, make())
        begun.close()
        await keeper.commit(account, CommitPartition(begun.kept.number, ENDS * 4))
        try:
            found = await keeper.find(account, FindRange(identity(0), 0, 4))
        finally:
            await keeper.close()
        assert found.state is KeptState.THERE
        return sum(extent.times for extent in read_kept(found.extents))

    if error is None:
        assert asyncio.run(run()) == MOST
    else:
        with pytest.raises(error, match=r"blocking\.sortBuffer|its index has places of|it ends before"):
            asyncio.run(run())


def test_no_memory_is_asked_for_what_lies_beyond_the_file(tmp_path: Path) -> None:
    """A damaged place is an error of the file: a reader of its own files hears so too."""
    (tmp_path / INDEX_NAME).write_bytes(index_of(1, 0, says=HUGE))
    with pytest.raises(IncompleteDataError, match="it ends before"):
        read_index(str(tmp_path), 0, 1, FileOrigin(identity(0), "here"))


def test_the_ends_of_a_commit_are_bounded(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition has so many subpartitions, and a commit that says that more follows says something."""
    monkeypatch.setattr(keeper, "MOST_SUBPARTITIONS", MOST)

    async def run() -> None:
        keeper, account = await services.start()
        with pytest.raises(QuotaError, match="has 1,001 subpartitions, and a host service takes 1,000"):
            await keeper.begin(account, identity(0), MOST + 1)
        begun = await keeper.begin(account, identity(0), MOST)
        begun.close()
        with pytest.raises(ProtocolError, match="has 1000 subpartitions, not 0"):
            await keeper.commit(account, CommitPartition(begun.kept.number, (), has_more=True))
        await keeper.close()

    asyncio.run(run())
