# SPDX-License-Identifier: Apache-2.0
"""The folders of a worker: which files lie there, and what may be removed of them.

    <folder>/<number>.merging  blocks of writers of whom none has committed
    <folder>/<number>.merged   blocks of writers, one of whom has committed
    <folder>/penstock-id       the worker's name

Rules: a file gets its second name before the first commit is answered. So a file of the first kind that the index
does not name has no committed rows, and goes when a worker starts; one of the second kind that the index does not
name stays, for the index may be an old copy.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Final, NamedTuple

from penstock.machine.owned_folders import ID_NAME, FolderKind, OpenFolders, open_folders
from penstock.remote.worker_index import INDEX_NAME, WorkerIndex

_LOG = logging.getLogger("penstock.remote.worker")
MERGED: Final = ".merged"
MERGING: Final = ".merging"


def _has_rows(folder: Path) -> bool:
    return any(number_of(each) >= 0 for each in folder.glob(f"*{MERGED}"))


KIND: Final = FolderKind(
    "remote worker", INDEX_NAME, _has_rows, ", or empty the folder for a worker that starts over"
)


def open_worker_folders(folders: Sequence[Path], *, adopts: bool = False) -> OpenFolders[WorkerIndex]:
    """Take these folders, and open the index in the one that has it; SettingError, StorageError."""
    return open_folders(KIND, [each.absolute() for each in folders], 0o700, WorkerIndex, adopts=adopts)


def number_of(path: Path) -> int:
    """The number of a file of ours, or -1."""
    return int(path.stem) if path.stem.isascii() and path.stem.isdigit() else -1


class FoundFile(NamedTuple):
    """A file that the index names: its folder, and its bytes."""

    folder: Path
    size: int


def found_files(folders: Sequence[Path], named: Set[int]) -> tuple[dict[int, FoundFile], int]:
    """The files that the index names, and the first number that no file has had, one of a disk that is away neither.

    Of other files, those that no commit was in are removed; the rest stay.
    """
    found: dict[int, FoundFile] = {}
    following, unknown = max(named, default=-1) + 1, 0
    for suffix in (MERGED, MERGING):
        for path in [path for folder in folders for path in folder.glob(f"*{suffix}")]:
            number, folder = number_of(path), path.parent
            following = max(following, number + 1)
            if number in named and number not in found:
                path = path.rename(path.with_suffix(MERGED))  # noqa: PLW2901 - that may have been lost with the power
                found[number] = FoundFile(folder, path.stat().st_size)
            elif number >= 0 and path.suffix == MERGING:
                path.unlink(missing_ok=True)
            else:
                unknown += 1
    if unknown:
        _LOG.warning(
            "%d files in %s are not in the index, which may be an old copy: they stay. Nobody reads them: remove them"
            " when you know that the index is the right one",
            unknown,
            ", ".join(map(str, folders)),
        )
    return found, following


def sweep(folder: Path) -> None:
    """Nothing of a worker is needed any more: its index goes, and its id where no file of an earlier one is left."""
    ours = [path for path in folder.glob(f"*{MERGING}") if number_of(path) >= 0]
    for path in (*ours, *(folder / f"{INDEX_NAME}{each}" for each in ("", "-wal", "-shm"))):
        path.unlink(missing_ok=True)
    if not _has_rows(folder):
        (folder / ID_NAME).unlink(missing_ok=True)
