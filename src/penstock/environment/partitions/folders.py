# SPDX-License-Identifier: Apache-2.0
"""The folders of blocking partitions' files: one for each partition, in one of several directories.

`spark.penstock.blocking.directories`, or Spark's own (`SPARK_LOCAL_DIRS`, where the worker that started this process
had it), or the rendezvous folder. In each directory the application has one folder, noted at the rendezvous so that
the next environment of this host removes it when this one was killed. Everything here waits for disks: call it in a
thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
import time
from pathlib import Path

from penstock.errors import NoStorageError, ProtocolError, SettingError, StorageError
from penstock.link.rendezvous import Rendezvous
from penstock.partition.directories import LEFT_OUT_SECONDS, Directories
from penstock.partition.patience import Patience
from penstock.settings import BlockingSettings
from penstock.shuffle import PartitionId

log = logging.getLogger("penstock.environment")

_TRIES = 5
_PAUSE_SECONDS = 0.05


class Folders:
    """The folders of one environment's partitions. Directories are looked at when the first partition comes."""

    def __init__(self, place: Rendezvous, settings: BlockingSettings) -> None:
        self._place = place
        self._settings = settings
        self._lock = threading.Lock()
        self._directories: Directories | None = None

    def make(self, partition: PartitionId) -> Path:
        """A new, empty folder for a partition.

        Raises StorageError where no directory can be used, ProtocolError where the partition has a folder already.
        """
        parent = self._choose()
        folder = parent / f"{partition.dataset}.{partition.index}.{partition.attempt}"
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError as error:
            raise ProtocolError(f"partition {partition} is being written already: {folder} exists") from error
        except OSError as error:
            self.note_failure(folder)
            raise StorageError(f"cannot make the folder of partition {partition}: {error}") from error
        return folder

    def note_failure(self, folder: Path) -> None:
        """Something could not be written to this partition's folder: its directory is left out for a while.

        This alone waits for nothing.
        """
        if self._directories is not None and self._directories.note_failure(folder.parent):
            log.warning("a write to %s failed: it is left out for %g s", folder.parent, LEFT_OUT_SECONDS)

    def have_room(self) -> bool:
        """True if a partition that could not be stored in one directory may be in another one of this host."""
        with self._lock:
            return self._directories is None or self._directories.has_room

    def _choose(self) -> Path:
        patience = Patience()
        while True:
            try:
                with self._lock:
                    if self._directories is None:
                        self._directories = Directories(self._make_all(), self._settings.reserve)
                    self._make_again(self._directories)
                    return self._directories.choose()
            except StorageError:
                if self._directories is None or self._directories.are_broken or not patience.waits():
                    raise

    def _make_again(self, directories: Directories) -> None:
        """Make the application's folders that were removed: what lay there is lost, what follows is not."""
        for path in directories.paths:
            if path != self._place.results and not path.exists():
                with contextlib.suppress(OSError, SettingError):
                    self._place.make_folder_in(path.parent)

    def _make_all(self) -> list[Path]:
        wanted = self._settings.directories or os.environ.get("SPARK_LOCAL_DIRS", "")
        directories = [Path(part.strip()) for part in wanted.split(",") if part.strip()]
        if not directories:
            self._place.results.mkdir(mode=0o700, exist_ok=True)
            return [self._place.results]
        made, problems = [], []
        for directory in directories:
            try:
                made.append(self._place.make_folder_in(directory))
            except (OSError, SettingError) as error:
                log.warning("%s can't be used for partitions: %s", directory, error)
                problems.append(f"{directory}: {error}")
        if not made:
            raise NoStorageError(
                f"no directory can be used for partitions ({'; '.join(problems)}): set"
                " spark.penstock.blocking.directories to others"
            )
        return made


class PartitionFolder:
    """The folder of one partition, made when it is first asked for. Any thread; it waits for the disk."""

    def __init__(self, folders: Folders, partition: PartitionId) -> None:
        self._folders = folders
        self._partition = partition
        self._lock = threading.Lock()
        self.made: Path | None = None

    def path(self) -> Path:
        """The folder; errors as of `Folders.make`."""
        with self._lock:
            if self.made is None:
                self.made = self._folders.make(self._partition)
            return self.made


def remove_folder(folder: Path) -> None:
    """Remove a partition's folder. A writer that does not know yet may add a file meanwhile, so it is tried again."""
    for _ in range(_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(_PAUSE_SECONDS)
    log.warning("%s could not be removed; it goes with the application", folder)
