# SPDX-License-Identifier: Apache-2.0
"""A side of a join that has ended without a row, while another one is being read."""

from __future__ import annotations


class EmptySideError(Exception):
    """A needed side has no rows, so the join gives none. Never leaves a task."""
