# SPDX-License-Identifier: Apache-2.0
"""Runs Penstock on Spark: the only room that imports pyspark, which is an extra of the package."""

from __future__ import annotations

import re
from importlib.util import find_spec

from penstock import errors

LOWEST = (4, 1)
"""The lowest version of PySpark that is tried."""

if find_spec("pyspark") is None:
    raise errors.SettingError(
        f"PySpark is not installed here: {errors.how_to_install('spark')} brings one, or start Python as your Spark"
        " does (spark-submit, pyspark). `penstock.client` and `penstock service` need none"
    )


def refuse_version(version: str) -> None:
    """Raise SettingError for a version of PySpark that lacks what Penstock is built on."""
    found = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if found < LOWEST:
        raise errors.SettingError(
            f"Penstock needs PySpark {LOWEST[0]}.{LOWEST[1]} or later, and PySpark {version} is installed here:"
            f" {errors.how_to_install('spark')}, with a Spark of the same version"
        )


def _pyspark_version() -> str:
    from pyspark.version import __version__

    return str(__version__)


refuse_version(_pyspark_version())
