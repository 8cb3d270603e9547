# SPDX-License-Identifier: Apache-2.0
"""The example of a plug-in keeps the promises of blocking partitions, and needs no environment process for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from folder_harness import FolderHarness, FolderShuffleService
from penstock.testing.conformance import ShuffleServiceConformance
from underway import listed


class TestFolderService(ShuffleServiceConformance):
    """The one kind that it carries."""

    kinds = FolderShuffleService.capabilities.kinds

    @pytest.fixture
    def service(
        self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[FolderHarness]:
        """A service whose folder is empty after the test."""
        monkeypatch.setenv("FOLDER_SHUFFLE", str(tmp_path))
        harness = FolderHarness(request.node.name.replace("/", "-"))
        yield harness
        harness.close()
        assert not listed(tmp_path)
