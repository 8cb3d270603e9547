# SPDX-License-Identifier: Apache-2.0
"""Both examples of plug-ins keep the promises of blocking partitions, and need no environment process for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from folder_harness import FolderHarness, FolderShuffleService, SqliteShuffleService
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


class TestSqliteService(ShuffleServiceConformance):
    """The same of the one that keeps partitions in SQLite."""

    kinds = SqliteShuffleService.capabilities.kinds

    @pytest.fixture
    def service(
        self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[FolderHarness]:
        """A service whose folder is empty after the test."""
        monkeypatch.setenv("SQLITE_SHUFFLE", str(tmp_path))
        harness = FolderHarness(request.node.name.replace("/", "-"), SqliteShuffleService)
        yield harness
        harness.close()
        assert not listed(tmp_path)
