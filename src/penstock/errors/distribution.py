# SPDX-License-Identifier: Apache-2.0
"""The name that Penstock is installed by, its version, and the command that installs what one of its extras needs.

The package index has a `penstock` of another project, so the distribution has another name than the import.
"""

from __future__ import annotations

from typing import Final

DISTRIBUTION: Final = "penstock-spark"
VERSION = "0.2.0"


def how_to_install(extra: str) -> str:
    """The command: it names the extra's packages, and so holds however Penstock itself came here."""
    from importlib import metadata  # not above: only errors need it, and every process loads this room

    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # a folder on the path, such as --py-files
        lines = []
    packages = []
    for line in lines:
        package, _, marker = line.partition(";")
        if marker.replace('"', "'").strip() == f"extra == '{extra}'":
            packages.append(package.strip())
    named = packages or [f"{DISTRIBUTION}[{extra}]"]
    return f"pip install {' '.join(repr(name) for name in named)}"
