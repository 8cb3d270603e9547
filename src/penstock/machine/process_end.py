# SPDX-License-Identifier: Apache-2.0
"""How another process, of which this one is not the parent, has ended: its exit code or the signal that killed it.

The kernel tells it to holders of a descriptor of the process, from Linux 6.15 on, when its parent has heard of it.
"""

from __future__ import annotations

import fcntl
import os
import struct

_INFO = struct.Struct("=QQ11Ii")
"""The kernel's `pidfd_info`: what is asked or told, the control group, eleven ids, the status that `wait` gives."""
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_EXIT = 1 << 3


class NotTold(Exception):  # noqa: N818 - an answer, and nothing that went wrong
    """The kernel does not say how this process ended. `later`: it may when its parent has heard of it."""

    def __init__(self, *, later: bool) -> None:
        super().__init__(later)
        self.later = later


def exit_code_of(descriptor: int) -> int:
    """The exit code of a process that has ended, or the number of the signal that killed it, as a negative number.

    Raises NotTold.
    """
    asked = bytearray(_INFO.pack(_EXIT, *([0] * 12), 0))
    try:
        fcntl.ioctl(descriptor, _GET_INFO, asked)
    except OSError as error:  # an older kernel; or it has ended, and its parent has not asked for its end yet
        raise NotTold(later=False) from error
    told, *_, status = _INFO.unpack(asked)
    if not told & _EXIT:
        raise NotTold(later=True)
    return os.waitstatus_to_exitcode(status)
