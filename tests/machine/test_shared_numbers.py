# SPDX-License-Identifier: Apache-2.0
"""Numbers of a process that was killed, as another one reads them."""

from __future__ import annotations

import os
import signal

import pytest

from penstock.machine.shared_numbers import NumbersOfAnother, SharedNumbers


def test_a_killed_writer_leaves_its_last_commit() -> None:
    """All of what it committed and nothing of what it had begun; the names come with the numbers."""
    told, tell = os.pipe()
    pid = os.fork()
    if not pid:
        numbers = SharedNumbers(("one", "two"))
        numbers.values[0], numbers.values[1] = 1, -2
        numbers.commit()
        numbers.values[0] = 9
        os.write(tell, bytes((numbers.descriptor,)))
        signal.pause()
    descriptor = os.read(told, 1)[0]
    reader = NumbersOfAnother(pid, descriptor)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert reader.read() == {"one": 1, "two": -2}
    reader.close()
    reader.close()
    for end in (told, tell):
        os.close(end)


def test_what_is_not_there_is_an_error_of_the_system() -> None:
    """A descriptor that nobody has open; both ends are closed as often as anybody likes."""
    numbers = SharedNumbers(("one",))
    descriptor = numbers.descriptor
    numbers.close()
    numbers.close()
    with pytest.raises(OSError, match="No such file"):
        NumbersOfAnother(os.getpid(), descriptor)
