# SPDX-License-Identifier: Apache-2.0
"""Executors of a standalone cluster are killed with their containers, on hosts with nothing in common but a network.

Two Workers are in namespaces of their own for network and mounts (`two_hosts.py`). Between producing and consuming an
executor's JVM, its Python workers, its environment process and all files go, but those that the service's contract
keeps: on both hosts with `external`, `spark_ess` and `remote`, where dynamic allocation is on; on one with `local`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.testing import DEADLINE

pytestmark = [pytest.mark.spark, pytest.mark.thorough]

PROGRAM = Path(__file__).parents[1] / "support" / "two_hosts.py"
WALK = PROGRAM.with_name("walked_page.py")
NAMESPACES = ("unshare", "-rnmpf", "--mount-proc", "--kill-child")
ROWS = 400_000
SECONDS = 900
NEEDED = "PENSTOCK_NEEDS_NAMESPACES"


def lacking() -> str:
    """The reason for which this machine has no two hosts, or nothing."""
    missing = [tool for tool in ("unshare", "nsenter", "ip") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} of Debian's util-linux and iproute2 are missing"
    made = (*NAMESPACES, "sh", "-c", "ip link add hosts type bridge && ip link add near type veth peer name far")
    found = subprocess.run(
        made, check=False, capture_output=True, text=True, timeout=DEADLINE, stdin=subprocess.DEVNULL
    )
    return f"this user gets no namespaces with a network: {found.stderr.strip()}" if found.returncode else ""


def run(folder: Path, program: Path, *words: str) -> dict[str, object]:
    """The outcome of a program, which takes all that it has started along; the test is skipped without two hosts."""
    if reason := lacking():
        assert NEEDED not in os.environ, reason
        pytest.skip(reason)
    shared, log = folder / "shared", folder / "program.log"
    shared.mkdir()
    command = [*NAMESPACES, sys.executable, str(program), *words, str(shared)]
    environment = {**os.environ, "PYTHONPATH": str(PROGRAM.parent)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=output, env=environment
        )
        try:
            said, _ = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
            process.wait(DEADLINE)
    assert process.returncode == 0, log.read_text()[-3000:]
    outcome = json.loads(said.splitlines()[-1])
    assert isinstance(outcome, dict)
    return outcome


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("service", ["external", "spark_ess", "remote", "local"])
def test_a_lost_container_takes_no_rows_along_that_a_service_keeps(service: str, tmp_path: Path) -> None:
    """No producer runs again, and all bytes come through the service; with `local` the lost host's run again."""
    outcome = run(tmp_path, PROGRAM, service)
    assert outcome["rows"] == ROWS, outcome
    produced, killed, served = outcome["produced"], outcome["killed"], outcome["served"]
    assert isinstance(produced, dict)
    assert isinstance(killed, list)
    assert isinstance(served, int)
    assert set(produced) == {"a", "b"}, "both hosts have produced"
    assert min(killed) >= 3, "a JVM, Python workers and an environment"
    if service == "local":
        assert outcome["again"] == produced["a"]
    else:
        assert len(killed) == 2
        assert outcome["again"] == 0
        assert served >= 2 * ROWS * 8, "those of the exchange, and those of the result"


@pytest.mark.timeout(SECONDS + 60)
def test_the_page_of_two_hosts_is_true(tmp_path: Path) -> None:
    """It leads from nothing to a job through each service, whose ports speak TLS with its own certificates."""
    outcome = run(tmp_path, WALK)
    assert outcome == {"said": ["stations: 1000"] * 4, "tls": ["TLSv1.3"] * 3}
