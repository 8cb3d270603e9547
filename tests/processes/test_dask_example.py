# SPDX-License-Identifier: Apache-2.0
"""The example of Dask, as a user runs it, in an environment with Dask and without PySpark."""

from __future__ import annotations

from pathlib import Path

import pytest

from bare_environment import BareEnvironment
from source import ROOT

pytestmark = pytest.mark.processes


def test_a_dask_bag_goes_through_the_host_service(tmp_path: Path) -> None:
    """All events arrive at the step after, each sensor at one task, and the program's own service ends with it."""
    environment = BareEnvironment(tmp_path / "environment", "dask")
    ran = environment.run(str(ROOT / "examples" / "dask_exchange.py"))
    assert ran.returncode == 0, ran.stderr
    assert "200000 events of 100 sensors went through the service, 2 partitions are kept" in ran.stdout
