# SPDX-License-Identifier: Apache-2.0
"""A folder of one process, beside those of environment processes and swept like them.

It holds a lock while its process lives, so what a killed process left goes with the next sweep: when an environment
of this host starts or ends, or the next folder like this is made.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from penstock.link.rendezvous import Rendezvous, base_folder, sweep


class PrivateFolder:
    """Made at once, mode 0700; gone with `close`."""

    def __init__(self, prefix: str) -> None:
        sweep()
        self._place = Rendezvous(base_folder() / f"{prefix}-{secrets.token_hex(8)}")
        self._place.make()
        while (lock := self._place.take_lock()) is None:
            pass  # somebody's sweep looks at it this instant; `take_lock` makes it anew
        self._lock = lock

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._place.folder

    def close(self) -> None:
        """Remove it with all it holds; idempotent."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            self._place.remove()
            os.close(lock)
