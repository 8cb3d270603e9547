# SPDX-License-Identifier: Apache-2.0
"""A slow disk for a process of Python, and one that fails, where it reads and writes at a place of a file."""

from __future__ import annotations

import os
from pathlib import Path

_PROGRAM = """
import os, time

def slow(call):
    def slowly(*arguments):
        time.sleep({seconds})
        return call(*arguments)
    return slowly

for name in ("pread", "preadv", "pwrite", "pwritev"):
    setattr(os, name, slow(getattr(os, name)))
"""


def slow_disk(folder: Path, seconds: float) -> dict[str, str]:
    """The environment of a process with a slow disk; the folder gets what that process imports when it starts."""
    return _environment(folder, _PROGRAM.format(seconds=seconds))


_FAILING = """
import errno, os

def failing(call):
    def called(file, *arguments):
        try:
            with open({flag!r}) as found:
                kind = found.read()
        except FileNotFoundError:
            return call(file, *arguments)
        if os.readlink(f"/proc/self/fd/{{file}}").endswith({name!r}):
            raise OSError(getattr(errno, kind), os.strerror(getattr(errno, kind)))
        return call(file, *arguments)
    return called

for name in ("pwrite", "ftruncate", "fsync"):
    setattr(os, name, failing(getattr(os, name)))
"""


def failing_disk(folder: Path, name: str, flag: Path) -> dict[str, str]:
    """The environment of a process that can't write files of this name while `flag` is there: it says the error."""
    return _environment(folder, _FAILING.format(name=name, flag=str(flag)))


def _environment(folder: Path, program: str) -> dict[str, str]:
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(program)
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))}
