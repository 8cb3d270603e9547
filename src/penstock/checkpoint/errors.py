# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with stored checkpoints."""

from __future__ import annotations

from penstock.shuffle.errors import PenstockError


class CheckpointError(PenstockError):
    """A checkpoint could not be taken, stored or read."""


class CorruptCheckpointError(CheckpointError):
    """A stored checkpoint is damaged or incomplete; the message names the file."""


class FencedError(CheckpointError):
    """Another driver has taken the checkpoint location over; this one may not commit any more."""
