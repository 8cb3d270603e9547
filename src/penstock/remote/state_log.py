# SPDX-License-Identifier: Apache-2.0
"""The manager's log on disk: records one after the other, and a new log of few records when it has grown.

    record = length u32 | xxh3_64 u64 | MessagePack list

Rules: a record that was not written to its end, by a kill, is cut off when the log is read; one that is damaged with
others after it is an error, because what follows can't be trusted. A new log is written beside the old one and takes
its name. Without `fsync` the log survives the manager, not a loss of power. A record that can't be
written leaves the log as it was before: its end is cut off ahead of the next record at the latest.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgpack
import xxhash

from penstock.errors import StorageError
from penstock.machine.durable import sync_folder
from penstock.machine.owned_folders import check_owned

_HEAD = struct.Struct("<IQ")
_NAME = "manager.log"
_SHRINK_FROM = 4 << 20
"""Bytes of a log that is not made anew, however few of its records still matter."""
_ROOM = ("room", bytes(16 << 10))
"""A record without meaning: a log that has room for it has some for others."""


class StateLog:
    """The log in one folder, of one manager."""

    def __init__(self, folder: Path, *, fsync: bool = False) -> None:
        self._path = folder / _NAME
        self._fsync = fsync
        self._size = self._kept = 0
        self._is_torn = False
        """True if there may be bytes behind the last record."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            check_owned(folder)
            check_owned(folder / _NAME, 0o077)
            check_owned(folder / "lock")
            self._lock = os.open(folder / "lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except BlockingIOError as error:
            os.close(self._lock)
            raise StorageError(
                f"another manager that lives keeps its state in {folder}: name another --dir"
            ) from error
        except OSError as error:
            raise self._failure(error) from error

    @property
    def has_grown(self) -> bool:
        """True if it is worth a new one."""
        return self._size > max(_SHRINK_FROM, 2 * self._kept)

    def read(self) -> list[tuple[Any, ...]]:
        """All records, as they were written; what a kill has cut is cut off. StorageError for damage."""
        try:
            found, begin = _read(self._path)
            os.ftruncate(self._file, begin)
        except OSError as error:
            raise self._failure(error) from error
        self._size = self._kept = begin
        return found

    def kept(self) -> list[tuple[Any, ...]]:
        """The records that were kept, whatever is behind them; StorageError where they can't be read."""
        try:
            return _read(self._path, self._size)[0]
        except OSError as error:
            raise self._failure(error) from error

    def append(self, records: Iterable[tuple[object, ...]]) -> None:
        """Write records; StorageError where they can't be kept, and then the caller must not act on them."""
        self._size += self._write(b"".join(map(_packed, records)))

    def try_room(self) -> None:
        """Write something, and take it away; StorageError where that can't be."""
        self._write(_packed(_ROOM))
        self._is_torn = True
        self._cut()

    def replace(self, records: Iterable[tuple[object, ...]]) -> None:
        """Begin a new log with these records, and no others."""
        data = b"".join(map(_packed, records))
        fresh = self._path.with_suffix(".new")
        self._kept = self._size  # if there is none, it is worth trying again when the log is twice as long
        try:
            file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._failure(error) from error
        try:
            _write(file, data, 0)
            os.fsync(file)
            fresh.rename(self._path)
        except OSError as error:
            os.close(file)
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise self._failure(error) from error
        os.close(self._file)
        self._file = file
        self._size = self._kept = len(data)
        self._is_torn = False
        try:
            sync_folder(self._path.parent)
        except OSError as error:
            raise self._failure(error) from error

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._file >= 0:
            os.close(self._file)
            os.close(self._lock)
            self._file = -1

    def _write(self, data: bytes) -> int:
        """Write behind the last record; the bytes."""
        self._cut()
        try:
            self._is_torn = True
            _write(self._file, data, self._size)
            if self._fsync:
                os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(StorageError):
                self._cut()
            raise self._failure(error) from error
        self._is_torn = False
        return len(data)

    def _cut(self) -> None:
        if self._is_torn:
            try:
                os.ftruncate(self._file, self._size)
            except OSError as error:
                raise self._failure(error) from error
            self._is_torn = False

    def _failure(self, error: OSError) -> StorageError:
        return StorageError(
            f"the manager of the remote shuffle service can't keep its state in {self._path}: {error}. See that the"
            " disk has room, is sound and may be written"
        )


def read_records(path: Path) -> list[tuple[Any, ...]]:
    """The records of a log, which may have a manager. StorageError for damage."""
    return _read(path)[0]


def _read(path: Path, size: int | None = None) -> tuple[list[tuple[Any, ...]], int]:
    """The records of all bytes, or of so many, and the bytes that they take."""
    data = memoryview(path.read_bytes())[:size]
    found: list[tuple[Any, ...]] = []
    begin = 0
    while len(data) - begin >= _HEAD.size:
        length, checksum = _HEAD.unpack_from(data, begin)
        end = begin + _HEAD.size + length
        body = data[begin + _HEAD.size : end]
        if len(body) < length and not _has_record(data, begin + 1):
            break
        if not any(data[begin:]):
            break  # a loss of power has left zeros where nothing was written yet
        if xxhash.xxh3_64_intdigest(body) != checksum:
            if end == len(data):
                break
            raise StorageError(f"{path} is damaged at byte {begin}: move it away, and nothing is remembered")
        found.append(tuple(msgpack.unpackb(body, raw=False, use_list=True)))
        begin = end
    return found, begin


def _has_record(data: memoryview, begin: int) -> bool:
    """Tell whether a whole record lies anywhere after `begin`: then the end was not cut, and a length is damaged."""
    for at in range(begin, len(data) - _HEAD.size):
        length, checksum = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + length
        if length and end <= len(data) and xxhash.xxh3_64_intdigest(data[at + _HEAD.size : end]) == checksum:
            return True
    return False


def _packed(record: tuple[object, ...]) -> bytes:
    body: bytes = msgpack.packb(record, use_bin_type=True)
    return _HEAD.pack(len(body), xxhash.xxh3_64_intdigest(body)) + body


def _write(file: int, data: bytes, offset: int) -> None:
    left = memoryview(data)
    while left:
        written = os.pwrite(file, left, offset)
        left, offset = left[written:], offset + written
