# SPDX-License-Identifier: Apache-2.0
"""The time that something may take here and now."""

from __future__ import annotations

import os


def on_this_machine(seconds: float) -> float:
    """So many seconds of a quiet machine: processes that others keep waiting are slow for no fault of theirs."""
    return seconds * (1.0 + os.getloadavg()[0] / (os.cpu_count() or 1))
