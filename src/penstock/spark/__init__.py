# SPDX-License-Identifier: Apache-2.0
"""Runs Penstock on Spark: the only room that imports pyspark, which is an extra of the package."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("pyspark") is None:
    from penstock.errors import SettingError

    raise SettingError(
        "PySpark is not installed here: pip install 'penstock[spark]' brings one, or start Python as your Spark does"
        " (spark-submit, pyspark). `penstock.client` and `penstock service` need none"
    )
