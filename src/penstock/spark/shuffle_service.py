# SPDX-License-Identifier: Apache-2.0
"""Spark's external shuffle service as the application's own conf describes it, for the service `spark_ess`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from pyspark import SparkContext

from penstock.settings import Settings

_APPLICATION, _PORT, _AUTHENTICATE = "spark.app.id", "spark.shuffle.service.port", "spark.authenticate"


def with_shuffle_service(context: SparkContext, conf: Mapping[str, str], settings: Settings) -> Settings:
    """The settings, and in them, where they say nothing, what Spark's conf says of its shuffle service.

    The secret is the one that Spark itself has, however it came by it: of the conf, a file, or made by YARN.
    """
    ess = settings.ess
    told: dict[str, object] = {}
    if not ess.application:
        told["application"] = conf.get(_APPLICATION, "")
    if not ess.port and conf.get(_PORT, "").isdecimal():
        told["port"] = int(conf[_PORT])
    if not ess.secret and conf.get(_AUTHENTICATE, "false").strip().lower() == "true":
        told["secret"] = _secret(context)
    return dataclasses.replace(settings, ess=dataclasses.replace(ess, **told))  # type: ignore[arg-type]


def _secret(context: SparkContext) -> str:
    jvm = context._jvm  # noqa: SLF001 - PySpark has no way of its own
    assert jvm is not None  # noqa: S101 - a context that runs has one
    return str(jvm.org.apache.spark.SparkEnv.get().securityManager().getSecretKey() or "")
