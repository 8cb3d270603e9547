# SPDX-License-Identifier: Apache-2.0
"""The errors of stored checkpoints."""

from __future__ import annotations

from penstock.errors import FailureKind, PenstockError


class CheckpointError(PenstockError):
    """A checkpoint could not be taken, stored or read."""


class CorruptCheckpointError(CheckpointError):
    """A stored checkpoint is damaged or incomplete; the message names the file."""

    failure = FailureKind.UNRESTORABLE


class FencedError(CheckpointError):
    """Another driver has taken the checkpoint location over; this one may not commit any more."""


class AwayError(CheckpointError, OSError):
    """A location does not show what is there: its file system is away, or lists a part. It passes, as OSErrors do."""


class UncertainCheckpointError(CheckpointError):
    """It is unknown whether a checkpoint is complete: the query may go on neither from it nor from one before it."""


class NewerFormatError(CheckpointError):
    """A later version of Penstock has written this; nothing is wrong with it."""
