# SPDX-License-Identifier: Apache-2.0
"""The meaning of a cluster's settings and of its workers for Penstock. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from penstock.observe.finding import Finding
from penstock.observe.host_check import Facts

_SKEW_SECONDS = 5.0
_COMPARED = ("penstock", "pyspark", "pyarrow")
_SERVICE = "spark.penstock.shuffle.service"
ENVIRONMENT_BYTES = 128 << 20
"""An environment process beside the pool: 109 MB at most, measured on two executors with 20 million rows."""
WORKER_BYTES = 256 << 20
"""A Python worker: 157 MB with a function that holds nothing, measured likewise, and some for a function."""
_SURVIVES = {
    "local": "rows go with the environment process that made them: for executors that stay",
    "spark_ess": "rows outlive executors, and go with their host; blocking exchanges only",
    "external": "rows outlive executors, and go with their host; blocking exchanges only",
    "remote": "rows outlive executors and their hosts, and go with the worker that has them; blocking exchanges only",
}
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)b?", re.IGNORECASE)
_UNITS = {"": 1 << 20, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_KILLERS = ("spark.python.worker.killOnIdleTimeout", "spark.sql.execution.pyspark.udf.killOnIdleTimeout")
_ENCRYPTED_FILES = "spark.io.encryption.enabled"
_ENGINE = "spark.network.crypto.enabled"
_ENCRYPTED_WAYS = (_ENGINE, "spark.authenticate.enableSaslEncryption", "spark.ssl.enabled", "spark.ssl.rpc.enabled")


def judge_conf(conf: Mapping[str, str], master: str, network_memory: int) -> list[Finding]:
    """Spark's settings that do not fit, and one line where all do."""
    found = [finding for finding in _clashes(conf) if finding is not None]
    if not master.startswith("local["):
        found += [_overhead(conf, network_memory), _service(conf), _encryption(conf)]
    if not master.startswith("local[") and conf.get("spark.python.daemon.module") != "penstock.daemon":
        found.append(
            Finding.of(
                "start of workers",
                "each Python worker imports everything for itself",
                doubt="set spark.python.daemon.module=penstock.daemon before the session is built",
            )
        )
    return found or [Finding.fine("Spark's settings", "nothing that does not fit")]


def judge_workers(driver: Facts, workers: Sequence[Facts]) -> list[Finding]:
    """The workers' Python, packages and clocks beside the driver's; one finding for each host that differs."""
    if not workers:
        return [Finding.of("workers", "none has answered", wrong="see the cluster manager: are there executors?")]
    found = []
    for host, facts in {str(worker["host"]): worker for worker in workers}.items():
        differing = [f"{name} {theirs}, not {ours}" for name, ours, theirs in _differences(driver, facts)]
        skew = abs(float(str(facts["clock"])) - float(str(facts.get("asked", driver["clock"]))))
        if differing:
            advice = "install the driver's versions there, or point spark.pyspark.python to a Python that has them"
            found.append(Finding.of(f"worker {host}", "; ".join(differing), wrong=advice))
        elif skew > _SKEW_SECONDS:
            found.append(
                Finding.of(f"worker {host}", f"its clock is {skew:.0f} s off", doubt="traces will be hard to read")
            )
        else:
            found.append(
                Finding.fine(f"worker {host}", f"Python {facts['python']}, the driver's packages, its clock")
            )
    return found


def _differences(driver: Facts, worker: Facts) -> list[tuple[str, str, str]]:
    ours, theirs = dict(driver["packages"]), dict(worker["packages"])  # type: ignore[call-overload]
    pairs = [(name, ours[name], theirs.get(name, "missing")) for name in _COMPARED]
    mine, other = (".".join(str(facts["python"]).split(".")[:2]) for facts in (driver, worker))
    return [pair for pair in [("Python", mine, other), *pairs] if pair[1] != pair[2]]


def _clashes(conf: Mapping[str, str]) -> list[Finding | None]:
    found = [
        _set(
            conf, "spark.speculation", "second attempts of running tasks break pipelined exchanges: set it to false"
        ),
        _dynamic_allocation(conf),
        *(_set(conf, key, "workers that wait for a slower stage are killed: set it to false") for key in _KILLERS),
    ]
    if conf.get("spark.penstock.security.acceptPlainText", "false").lower() != "true":
        accepts = "see spark.penstock.security.acceptPlainText"
        found.append(_set(conf, _ENCRYPTED_FILES, f"Penstock's files are in plain text: {accepts}"))
        if conf.get("spark.penstock.tls.mode") == "never" or (
            conf.get(_SERVICE) == "spark_ess" and not _speaks(conf)
        ):
            found += [_set(conf, key, f"Penstock sends rows in plain text: {accepts}") for key in _ENCRYPTED_WAYS]
    return found


def _speaks(conf: Mapping[str, str]) -> bool:
    """Tell whether rows travel to Spark's shuffle service encrypted: by its engine, which TLS comes before."""
    return _is_on(conf, _ENGINE) and not _is_on(conf, "spark.ssl.rpc.enabled")


def _dynamic_allocation(conf: Mapping[str, str]) -> Finding | None:
    if conf.get(_SERVICE, "local") != "local":
        return None
    advice = f"executors go with the data they hold: set it to false, or {_SERVICE}=spark_ess"
    return _set(conf, "spark.dynamicAllocation.enabled", advice)


def _set(conf: Mapping[str, str], key: str, advice: str) -> Finding | None:
    return Finding.of("Spark's settings", f"{key}=true", wrong=advice) if _is_on(conf, key) else None


def _is_on(conf: Mapping[str, str], key: str) -> bool:
    return conf.get(key, "false").strip().lower() == "true"


def _service(conf: Mapping[str, str]) -> Finding:
    """The meaning of the service for what is lost when something goes."""
    name = conf.get(_SERVICE, "local")
    return Finding.fine(
        "shuffle service", f"{name}: {_SURVIVES.get(name, 'a plug-in, which says itself what it keeps')}"
    )


def _encryption(conf: Mapping[str, str]) -> Finding:
    """The protection of connections between hosts, of ours and of Spark's, in which the secret travels."""
    if conf.get("spark.penstock.tls.mode", "auto") == "never":
        return Finding.of(
            "connections", "in plain text", doubt="set spark.penstock.tls.mode=auto, but on a safe network"
        )
    files = conf.get("spark.penstock.tls.certificate", "")
    what = f"TLS 1.3 off loopback, with {files or 'a certificate that the driver makes'}"
    return Finding.fine("connections", what)


def _overhead(conf: Mapping[str, str], network_memory: int) -> Finding:
    """Python, its Arrow batches and the shared pool live beside the JVM's heap, in the container's overhead."""
    heap = _size(conf.get("spark.executor.memory", "1g"))
    given = conf.get("spark.executor.memoryOverhead")
    factor = float(conf.get("spark.executor.memoryOverheadFactor", "0.1"))
    overhead = _size(given) if given else max(384 << 20, int(heap * factor))
    workers = int(conf.get("spark.executor.cores", "1"))
    needed = network_memory + ENVIRONMENT_BYTES + workers * WORKER_BYTES
    what = f"{overhead >> 20:,} MB beside each executor's heap"
    advice = (
        f"set spark.executor.memoryOverhead to {needed >> 20:,}m or more: {network_memory >> 20:,} MB of the pool,"
        f" {ENVIRONMENT_BYTES >> 20} MB for an environment process and {WORKER_BYTES >> 20} MB for each of {workers}"
        " workers, more if functions hold more (where containers are limited)"
    )
    return Finding.of("memory overhead", what, doubt=advice if overhead < needed else "")


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    return int(match[1]) * _UNITS[match[2].lower()] if match else 0
