# SPDX-License-Identifier: Apache-2.0
"""Ships with the product: the in-memory shuffle service, and the suite any shuffle service must pass.

Nothing here is imported by the product itself. `penstock.testing.conformance` needs pytest and is therefore not
re-exported: import it where the tests are.
"""

from penstock.testing.memory_service import MemoryShuffleService
from penstock.testing.waiting import DEADLINE, Running, Sequencer, VirtualClock, eventually, wait_until

__all__ = ["DEADLINE", "MemoryShuffleService", "Running", "Sequencer", "VirtualClock", "eventually", "wait_until"]
