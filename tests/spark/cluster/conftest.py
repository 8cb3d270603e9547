# SPDX-License-Identifier: Apache-2.0
"""The files of this folder share a cluster: two executors, each with an environment process of its own."""

from __future__ import annotations

from typing import Any

import pytest

from sessions import CLUSTER, Sessions


@pytest.fixture
def cluster(sessions: Sessions) -> Any:
    """A session on the cluster; all executors are there."""
    return sessions.of(CLUSTER)
