# SPDX-License-Identifier: Apache-2.0
"""A slow disk for a process of Python: each read and write at a place of a file sleeps before it."""

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
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_PROGRAM.format(seconds=seconds))
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))}
