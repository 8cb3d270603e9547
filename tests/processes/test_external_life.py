# SPDX-License-Identifier: Apache-2.0
"""The life of the host service `external`, as an operator sees it: started, started twice, ended."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from ess_process import free_port
from external_process import ExternalProcess
from penstock.cli import parser
from penstock.external.keys import ApplicationKey
from penstock.external.requests import BeginPartition
from penstock.services.external.host_line import HostLine
from penstock.shuffle import DatasetId, PartitionId
from penstock.testing import DEADLINE
from source import ROOT

pytestmark = pytest.mark.processes


def test_a_folder_has_one_service_and_a_service_ends_well(tmp_path: Path) -> None:
    """A second one is told who has the folder; the first ends at once when it is told to, and leaves no socket."""
    service = ExternalProcess(tmp_path / "s")
    try:
        second = subprocess.run(service.command(), capture_output=True, text=True, timeout=DEADLINE)
        assert second.returncode == 2
        assert f"another host service uses {service.folder} (process {service.pid})" in second.stderr
        assert "--dir" in second.stderr
        assert service.listens()
        secret = ("catalogue.db", "lock", "data")
        assert not any(stat.S_IMODE((service.folder / name).stat().st_mode) & 0o077 for name in secret)
        assert service.stop() == 0
        assert not service.socket.exists()
    finally:
        service.close()


def test_metrics_tell_applications_and_disks_apart(tmp_path: Path) -> None:
    """A scraper reads how much each application has, by its title and user, and how much each disk has left."""
    port = free_port()
    service = ExternalProcess(tmp_path / "s", "--metrics-port", str(port))
    line = HostLine(str(service.socket), ApplicationKey.of("measured", b"the secret of it"), 5.0, lambda: None)
    try:
        _, *lent = line.begin(BeginPartition(PartitionId(DatasetId("job", 0), 0, 0), 1))
        for descriptor in lent:
            os.close(descriptor)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE) as answer:
            text = answer.read().decode()
        whose = f'application="measured",user="{os.getuid()}"'
        assert f"penstock_external_stored_bytes{{{whose}}} 6.7108864e+07" in text
        assert (
            f'penstock_external_partitions{{application="measured",state="writing",user="{os.getuid()}"}} 1.0' in text
        )
        assert f'penstock_external_disk_free_bytes{{folder="{service.folder}"}}' in text
    finally:
        line.close()
        service.close()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not there")
def test_the_unit_passes_systemd(tmp_path: Path) -> None:
    """`systemd-analyze verify` finds nothing wrong but that the program is not installed here."""
    unit = tmp_path / "penstock-external.service"
    text = (ROOT / "examples" / "external" / unit.name).read_text()
    unit.write_text(text.replace("/opt/penstock/bin/penstock", sys.executable))
    found = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=DEADLINE)
    assert "penstock-external" not in found.stderr
    assert found.returncode == 0, found.stderr


@pytest.mark.skipif(shutil.which("kubernetes-validate") is None, reason="kubernetes-validate is not there")
def test_the_manifest_passes_kubernetes() -> None:
    """`kubernetes-validate --strict` finds nothing wrong."""
    manifest = ROOT / "examples" / "external" / "daemonset.yaml"
    command = ["kubernetes-validate", "--strict", str(manifest)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("name", ["penstock-external.service", "daemonset.yaml"])
def test_the_commands_of_the_examples_are_understood(name: str) -> None:
    """Each option that the examples give is one of the command."""
    text = (ROOT / "examples" / "external" / name).read_text()
    known = vars(parser().parse_args(["service", "external", "--dir", "folder"]))
    wanted = [word for word in re.findall(r"--([a-z-]+)", text) if word not in ("system", "now")]
    assert {"dir", "port", "quota"} <= set(wanted)
    assert all(word.replace("-", "_") in known for word in wanted), wanted
