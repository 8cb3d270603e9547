# SPDX-License-Identifier: Apache-2.0
"""Sessions that begin with what they would load: `SparkSession.builder.config(map=penstock.preloading())`."""

from __future__ import annotations

import warnings
from typing import Any


def preloading() -> dict[str, Any]:
    """Settings for `SparkSession.builder.config(map=)`: the session begins with what its first job would load.

    Spark's Python workers come from a daemon that has imported PyArrow, PySpark and Penstock, which must be installed
    where they run. The driver's Java maps the archive of Spark's classes that `penstock preload` has written; where
    there is none for this Java and this Spark a PenstockWarning says so. Java options of your own
    (`spark.driver.extraJavaOptions`) go after ours, with a space between.
    """
    from penstock.spark.class_archive import archive_path, java_options
    from penstock.spark.hints import PenstockWarning

    conf = {"spark.python.daemon.module": "penstock.daemon"}
    archive = archive_path()
    if archive.exists():
        conf["spark.driver.extraJavaOptions"] = java_options(archive)
    else:
        said = f"{archive} has no archive of this Spark's classes for this Java yet: run penstock preload once"
        warnings.warn(said, PenstockWarning, stacklevel=2)
    return conf
