# SPDX-License-Identifier: Apache-2.0
"""Spark's external shuffle service as the application's own conf describes it, for the service `spark_ess`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from pyspark import SparkContext

from penstock.errors import SettingError
from penstock.settings import Settings

_APPLICATION, _PORT, _AUTHENTICATE = "spark.app.id", "spark.shuffle.service.port", "spark.authenticate"
_CRYPTO, _CIPHER, _VERSION = (f"spark.network.crypto.{name}" for name in ("enabled", "cipher", "authEngineVersion"))
_SPARKS_CIPHER = "AES/CTR/NoPadding"
_TLS, _SASL = "spark.ssl.rpc.enabled", "spark.authenticate.enableSaslEncryption"


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
    if not ess.secret and is_true(conf, _AUTHENTICATE):
        told["secret"] = _secret(context)
    if not ess.cipher:
        cipher = cipher_of(conf)
        told["cipher"] = "" if settings.security.accept_plain_text and cipher in (_TLS, _SASL) else cipher
    if not ess.engine_version:
        told["engine_version"] = _version(conf)
    return dataclasses.replace(settings, ess=dataclasses.replace(ess, **told))  # type: ignore[arg-type]


def cipher_of(conf: Mapping[str, str]) -> str:
    """The cipher by which Spark's conf has its shuffle encrypted, or an empty string.

    TLS comes before the engine, and the engine before SASL, as in Spark. One of the two that are not spoken is named
    by its switch.
    """
    if is_true(conf, _TLS):
        return _TLS
    if is_true(conf, _CRYPTO):
        return conf.get(_CIPHER, "").strip() or _SPARKS_CIPHER
    return _SASL if is_true(conf, _SASL) else ""


def is_true(conf: Mapping[str, str], key: str) -> bool:
    """Tell whether a switch of Spark's is on."""
    return conf.get(key, "false").strip().lower() == "true"


def _version(conf: Mapping[str, str]) -> int:
    text = conf.get(_VERSION, "1").strip()
    if not text.isdecimal():
        raise SettingError(f"{_VERSION}={text!r} is no number: it is 1 or 2")
    return int(text)


def _secret(context: SparkContext) -> str:
    """The secret, from a manager of it like the one that Spark's context has.

    Py4J can't look at the class of Spark's environment, which has that one: it names classes of a library that the
    package does not bring.
    """
    jvm, scala = context._jvm, context._jsc.sc()  # noqa: SLF001 - PySpark has no way of its own
    assert jvm is not None  # noqa: S101 - a context that runs has one
    managers = jvm.org.apache.spark.SecurityManager
    rest = [getattr(managers, f"$lessinit$greater$default${number}")() for number in (2, 3)]
    return str(managers(scala.conf(), *rest).getSecretKey() or "")
