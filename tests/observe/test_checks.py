# SPDX-License-Identifier: Apache-2.0
"""The doctor's findings about a machine, its workers and Spark's settings: facts, levels and remedies."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from penstock.observe import host_check
from penstock.observe.cluster_check import judge_conf, judge_workers
from penstock.observe.finding import Finding, Level

GOOD: dict[str, object] = {
    "host": "a",
    "python": "3.11.7",
    "packages": {"penstock": "1", "pyspark": "4.3.0", "pyarrow": "26", "numpy": "2"},
    "cores": 2,
    "shared": "memfd",
    "memory": 8 << 30,
    "files": 65536,
    "address": -1,
    "disk": {"/tmp": 50 << 30},
    "path": 60,
    "loopback": True,
    "clock": 1000.0,
}
NEEDS = host_check.Needs(256 << 20, 256 << 20)


def judged(**changed: object) -> list[Finding]:
    """The findings that are not fine of a machine like the good one but for this."""
    found = host_check.judge({**GOOD, **changed}, NEEDS)
    return [finding for finding in found if finding.level is not Level.FINE]


def test_pyspark_without_metadata_has_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers get PySpark from Spark as a folder without metadata: it is there all the same."""

    class Given:
        __version__ = "4.3.0"

    def version(name: str) -> str:
        raise host_check.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(host_check.metadata, "version", version)
    monkeypatch.setitem(sys.modules, "pyspark", Given)  # type: ignore[arg-type]
    packages = host_check.facts()["packages"]
    assert isinstance(packages, dict)
    assert (packages["pyspark"], packages["numpy"]) == ("4.3.0", np.__version__)


def test_a_good_machine_is_fine() -> None:
    """Nothing to do; every finding says what is."""
    assert judged() == []
    assert all(finding.what and not finding.advice for finding in host_check.judge(GOOD, NEEDS))


@pytest.mark.parametrize(
    ("changed", "level", "words"),
    [
        ({"python": "3.10.1"}, Level.WRONG, "3.11, 3.12 and 3.13"),
        ({"memory": 1 << 20}, Level.WRONG, "spark.penstock.network.memory asks for 256 MB"),
        ({"shared": "files"}, Level.DOUBTFUL, "memfd"),
        ({"files": 256}, Level.DOUBTFUL, "ulimit -n"),
        ({"address": 1 << 30}, Level.DOUBTFUL, "spark.executor.pyspark.memory"),
        ({"disk": {"/x": 1 << 20}}, Level.WRONG, "spark.penstock.blocking.directories"),
        ({"disk": {"/x": 900 << 20}}, Level.DOUBTFUL, "little"),
        ({"disk": {"/x": -1}}, Level.WRONG, "name another folder"),
        ({"loopback": False}, Level.WRONG, "127.0.0.1"),
        ({"path": 120}, Level.DOUBTFUL, "TMPDIR"),
    ],
)
def test_each_thing_that_is_wrong_says_what_to_do(changed: dict[str, object], level: Level, words: str) -> None:
    """One finding, no more, with its advice."""
    (finding,) = judged(**changed)
    assert finding.level is level
    assert words in finding.advice
    assert finding.advice in finding.sentence()


def test_this_machine_can_be_looked_at() -> None:
    """The facts are plain values that a worker can send, and all of them can be judged."""
    facts = host_check.facts()
    assert json.loads(json.dumps(facts)) == facts
    assert len(host_check.judge(facts, NEEDS)) >= 6


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ({"spark.speculation": "true"}, "pipelined"),
        ({"spark.dynamicAllocation.enabled": "TRUE"}, "executors go with the data"),
        ({"spark.python.worker.killOnIdleTimeout": "true"}, "slower stage"),
        ({"spark.io.encryption.enabled": "true"}, "plain text"),
    ],
)
def test_settings_that_do_not_fit(conf: dict[str, str], words: str) -> None:
    """Each is wrong, by its key, with what to set."""
    wrong = [finding for finding in judge_conf(conf, "local[2]", 0) if finding.level is Level.WRONG]
    assert [finding.what for finding in wrong] == [f"{next(iter(conf))}=true"]
    assert words in wrong[0].advice


def test_the_way_to_sparks_shuffle_service_is_encrypted_by_its_engine_alone() -> None:
    """Spark's other ways to encrypt it are wrong, and TLS is there also where the engine is on."""
    ess = {"spark.penstock.shuffle.service": "spark_ess"}
    engine, tls, sasl = (
        {key: "true"}
        for key in (
            "spark.network.crypto.enabled",
            "spark.ssl.rpc.enabled",
            "spark.authenticate.enableSaslEncryption",
        )
    )

    def wrong(conf: dict[str, str]) -> set[str]:
        return {each.what for each in judge_conf({**ess, **conf}, "local[2]", 0) if each.level is Level.WRONG}

    assert not wrong(engine)
    assert not wrong({**engine, **sasl})
    assert wrong(sasl) == {"spark.authenticate.enableSaslEncryption=true"}
    assert "spark.ssl.rpc.enabled=true" in wrong({**engine, **tls})
    assert "spark.network.crypto.enabled=true" in wrong({**engine, "spark.penstock.tls.mode": "never"})


def test_memory_beside_the_heap() -> None:
    """If containers are limited, the pool and the workers must fit the overhead; local has no such limit."""
    quiet = {"spark.python.daemon.module": "penstock.daemon", "spark.executor.cores": "4"}

    def found(**conf: str) -> Finding:
        told = judge_conf({**quiet, **{key.replace("_", "."): v for key, v in conf.items()}}, "yarn", 256 << 20)
        (finding,) = (each for each in told if each.subject == "memory overhead")
        return finding

    assert "spark.executor.memoryOverhead to 1,408m" in found().advice
    assert found(spark_executor_memoryOverhead="2g").level is Level.FINE
    assert found(spark_executor_memory="64g").level is Level.FINE
    (fine,) = judge_conf(quiet, "local[2]", 256 << 20)
    assert fine.level is Level.FINE


@pytest.mark.parametrize("service", ["local", "spark_ess", "external", "remote", "my_package:Mine"])
def test_a_cluster_hears_what_its_service_keeps_and_what_is_encrypted(service: str) -> None:
    """One line for each, on a cluster only; plain text is a doubt."""
    conf = {"spark.penstock.shuffle.service": service, "spark.penstock.tls.mode": "never"}
    told = {finding.subject: finding for finding in judge_conf(conf, "spark://h:7077", 0)}
    assert told["shuffle service"].what.startswith(f"{service}: ")
    assert told["connections"].level is Level.DOUBTFUL
    sealed = {finding.subject: finding for finding in judge_conf({}, "spark://h:7077", 0)}
    assert "a certificate that the driver makes" in sealed["connections"].what
    assert "connections" not in {finding.subject for finding in judge_conf({}, "local[2]", 0)}


def test_workers_are_compared_with_the_driver() -> None:
    """Versions and Python by name, clocks by seconds; a host once, and none at all is wrong."""
    other = {**GOOD, "host": "b", "python": "3.12.1", "packages": {**dict(GOOD["packages"]), "pyarrow": "20"}}  # type: ignore[call-overload]
    late = {**GOOD, "host": "c", "clock": 1060.0}
    found = judge_workers(GOOD, [GOOD, {**GOOD}, other, late])
    assert [finding.level for finding in found] == [Level.FINE, Level.WRONG, Level.DOUBTFUL]
    assert found[1].what == "Python 3.12, not 3.11; pyarrow 20, not 26"
    assert "60 s off" in found[2].what
    assert judge_workers(GOOD, [])[0].level is Level.WRONG
