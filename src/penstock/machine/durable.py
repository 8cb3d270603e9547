# SPDX-License-Identifier: Apache-2.0
"""Files and folders of a local file system that are there after a loss of power, and folders that swap their names.

Limits: `swapped` needs Linux and a file system that can do it (ext4, xfs, btrfs, tmpfs; not NFS). A file system that
says that it can't make a folder durable is believed; any other error is raised.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

_HERE = -100
_EXCHANGE = 2
_NO_FOLDERS = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EISDIR)
"""The errors of file systems that know no `fsync` of a folder."""
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)


def sync_file(path: str | Path) -> None:
    """Wait until a file's bytes are on the disk, and for nothing else: a pipe in its place is an OSError."""
    _sync(path, os.O_RDONLY | os.O_NONBLOCK)


def sync_folder(path: str | Path) -> None:
    """Wait until the names in a folder are on the disk; raises OSError where they may not be."""
    try:
        _sync(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno not in _NO_FOLDERS:
            raise


def swapped(one: str | Path, other: str | Path) -> bool:
    """Let two folders change names in one step that no process sees half done; False where that is not possible."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))


def _sync(path: str | Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
