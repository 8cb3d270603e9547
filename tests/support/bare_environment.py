# SPDX-License-Identifier: Apache-2.0
"""A virtual environment without extras, out of what is installed here: nothing is downloaded.

It has the distributions that Penstock requires without any extra, and what these require: a link for each of their
files' folders, in the site-packages of a new environment that knows no other one. So PySpark is not there.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

from packaging.requirements import Requirement

from penstock.errors import DISTRIBUTION
from penstock.testing import DEADLINE
from source import ROOT


class BareEnvironment:
    """The environment in a folder; `also` names distributions that are there beside."""

    def __init__(self, folder: Path, *also: str) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.python = folder / "bin" / "python"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.packages = folder / "lib" / version / "site-packages"
        self.names = frozenset[str]()
        for name, distribution in required(DISTRIBUTION, *also).items():
            self.names |= {name}
            self._link(distribution)
        (self.packages / "penstock-source.pth").write_text(f"{ROOT / 'src'}\n")

    def environ(self, **more: str) -> dict[str, str]:
        """The variables of a process in it: nothing leads to other packages."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK"))}
        return {**kept, **more}

    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run its Python with these arguments."""
        command = [str(self.python), *arguments]
        return subprocess.run(command, env=self.environ(**more), capture_output=True, text=True, timeout=DEADLINE)

    def _link(self, distribution: importlib.metadata.Distribution) -> None:
        for top in {file.parts[0] for file in distribution.files or []}:
            source, target = Path(str(distribution.locate_file(top))), self.packages / top
            if (
                top not in ("..", "__pycache__")
                and source.suffix != ".pth"
                and source.exists()
                and not target.exists()
            ):
                target.symlink_to(source)


def required(*names: str) -> Mapping[str, importlib.metadata.Distribution]:
    """These distributions and all that they require, without extras."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = [Requirement(name) for name in names]
    while waiting:
        wanted = waiting.pop()
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if name in found:
            continue
        found[name] = importlib.metadata.distribution(wanted.name)
        requirements = map(Requirement, found[name].requires or [])
        waiting += [each for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found
