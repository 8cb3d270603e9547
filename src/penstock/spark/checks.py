# SPDX-License-Identifier: Apache-2.0
"""The settings and Pythons that Penstock cannot run on, refused in one clear sentence before anything starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from penstock.errors import ControlError, PlanError, SettingError
from penstock.graph.job_graph import JobGraph
from penstock.settings import PREFIX, Settings
from penstock.shuffle import load_service
from penstock.spark.shuffle_service import cipher_of, is_true

_DIED = ("Python worker exited unexpectedly", "Python worker crashed", "PYTHON_WORKER_EXITED")
_MISSING = re.compile(r"No module named '([^']+)'")
_LOCAL = re.compile(r"local(?:\[(\d+|\*)\])?")
KILLERS = ("spark.python.worker.killOnIdleTimeout", "spark.sql.execution.pyspark.udf.killOnIdleTimeout")


_ENCRYPTION = re.compile(
    r"spark\.(io\.encryption|network\.crypto|authenticate\.enableSaslEncryption|ssl(\.\w+)?)(\.enabled)?"
)
_OF_FILES = "spark.io.encryption.enabled"
_WEB_PAGES = ("spark.ssl.ui.enabled", "spark.ssl.standalone.enabled", "spark.ssl.historyServer.enabled")
"""These encrypt pages for people to look at, which no row passes."""
ACCEPTS_PLAIN_TEXT = f"{PREFIX}security.acceptPlainText"
_ENGINE = ", or have its shuffle service encrypt by spark.network.crypto.enabled=true"


def refuse_connect(spark: Any) -> None:
    """Refuse a Spark Connect session, and what is no session."""
    module = type(spark).__module__
    if "connect" in module:
        raise SettingError(
            "Penstock needs a classic SparkSession: a Spark Connect client has no driver process for the JobMaster"
            " to live in. Run the program on the driver (spark-submit, or without .remote(...))"
        )
    if not module.startswith("pyspark.sql"):
        raise SettingError(f"a SparkSession is needed, not a {type(spark).__name__}")


def refuse_stopped(spark: Any) -> None:
    """Refuse a session that was stopped: what was read in it is read again in a new one."""
    if spark.sparkContext._jsc is None:  # noqa: SLF001 - how PySpark itself tells
        raise ControlError(
            "the SparkSession in which this stream was read was stopped: read it again in a new one, for"
            " spark.stop() ends all that was made with it"
        )


def refuse_conf(conf: Mapping[str, str], service: str) -> None:
    """Refuse settings of Spark under which pipelined stages would break."""
    if is_true(conf, "spark.speculation"):
        raise SettingError(
            "spark.speculation=true starts second attempts of running tasks, which a pipelined exchange"
            " cannot have: set spark.speculation=false"
        )
    for key in KILLERS:
        if is_true(conf, key):
            raise SettingError(
                f"{key}=true kills Python workers that wait for a slower stage (back-pressure): set it to false"
            )
    goes = not load_service(service).capabilities.outlives_executors
    if goes and is_true(conf, "spark.dynamicAllocation.enabled"):
        raise SettingError(
            f"spark.dynamicAllocation.enabled=true removes executors whose data the {service} shuffle service still"
            " holds: set it to false, or, where the cluster runs Spark's shuffle service, set"
            f" {PREFIX}shuffle.service=spark_ess, or where hosts run `penstock service external`, =external"
        )


def refuse_plain_text(conf: Mapping[str, str], settings: Settings) -> None:
    """Refuse a session that is told to encrypt what Penstock does not, unless that is accepted knowingly.

    Penstock's own connections are encrypted off loopback, unless they are told not to be; its files never are. Those
    to Spark's shuffle service are by the engine of `spark.network.crypto.enabled`, and by nothing else.
    """
    if settings.security.accept_plain_text:
        return
    is_ess = settings.shuffle.service == "spark_ess"
    is_encrypted = settings.tls.mode != "never" and (not is_ess or _has_cipher(conf, settings))
    wanted = sorted(
        key
        for key in conf
        if _ENCRYPTION.fullmatch(key)
        and key not in _WEB_PAGES
        and is_true(conf, key)
        and (key == _OF_FILES or not is_encrypted)
    )
    if wanted:
        raise SettingError(
            f"{wanted[0]}=true asks Spark to encrypt, and Penstock's"
            f" {'files are' if is_encrypted else 'own connections and files are'} in plain text:"
            f" leave this pipeline to Spark's exchanges{_ENGINE if is_ess and not is_encrypted else ''}, or, if the"
            f" network and the disks are safe without, set {ACCEPTS_PLAIN_TEXT}=true"
        )


def _has_cipher(conf: Mapping[str, str], settings: Settings) -> bool:
    """Tell whether what travels to Spark's shuffle service is encrypted."""
    return (settings.ess.cipher or cipher_of(conf)).upper().startswith("AES/")


def refuse_what_cannot_travel(graph: JobGraph) -> None:
    """Refuse a job whose functions or sources can't be sent to tasks, naming the first and why."""
    for vertex in graph.vertices:
        for operator in vertex.operators:
            _pickle(operator, operator.name)
        if vertex.source is not None:
            _pickle(vertex.source, f"the source {vertex.name}")
    for edge in graph.edges:
        _pickle(edge.exchange, f"the partition function of the exchange into {graph.vertex(edge.consumer).name}")


def _pickle(thing: object, name: str) -> None:
    from pyspark import cloudpickle

    try:
        cloudpickle.dumps(thing)
    except Exception as error:
        raise PlanError(
            f"{name} cannot be sent to tasks: {error} (make locks, connections, open files and sessions inside the"
            " function instead of using those of the driver)"
        ) from error


def python_hint(error: str) -> str:
    """The remedy when the workers run another Python than the driver, or an empty string."""
    if "No module named 'penstock" in error:
        return (
            " (Penstock is not installed where Spark's workers run: install it there, send it along with --archives,"
            " or set PYSPARK_PYTHON to a Python that has it before the session is built; see penstock doctor)"
        )
    if missing := _MISSING.search(error):
        return (
            f" (Spark's workers have no {missing[1]!r}: install it where they run, or send it along with --archives"
            " or --py-files; see penstock doctor)"
        )
    if "PYTHON_VERSION_MISMATCH" in error:
        return (
            " (Spark's workers do not run this Python: set the environment variable PYSPARK_PYTHON, or"
            " spark.pyspark.python, to an interpreter with Penstock before the session is built)"
        )
    return ""


def worker_hint(error: str, master: str) -> str:
    """The remedy when a Python worker died where Spark never runs a task again, or an empty string.

    `master` is Spark's; in plain `local[N]` a task has one attempt, and the tasks that read a DataFrame are Spark's.
    """
    died = any(word in error for word in _DIED)
    threads = _LOCAL.fullmatch(master)
    if not (died and threads):
        return ""
    count = threads[1] or "1"
    return (
        f" (a Python worker process was killed or crashed, and in {master} Spark never runs a task again: start Spark"
        f" with a number of attempts, such as local[{count},4], or on a cluster)"
    )
