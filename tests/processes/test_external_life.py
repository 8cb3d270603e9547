# SPDX-License-Identifier: Apache-2.0
"""The life of the host service `external`, as an operator sees it: started, started twice, ended."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from external_process import ExternalProcess

pytestmark = pytest.mark.processes


def test_a_folder_has_one_service_and_a_service_ends_well(tmp_path: Path) -> None:
    """A second one is told who has the folder; the first ends at once when it is told to, and leaves no socket."""
    service = ExternalProcess(tmp_path / "s")
    try:
        second = subprocess.run(service.command(), capture_output=True, text=True, timeout=60)
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
