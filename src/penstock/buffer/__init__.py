# SPDX-License-Identifier: Apache-2.0
"""Network memory: segments, the pools that share them out, reference counts, and the builder that fills them.

Everything but the segment memory and the builder lives in the environment process, on one thread, and handles indices
only. The modules that encode batches (`arrow`, `fixed_payload`) are not re-exported: an environment has no use for
Arrow.
"""

from penstock.buffer.builder import BufferBuilder
from penstock.buffer.data_types import BufferSlice, DataType
from penstock.buffer.local_pool import Listener, LocalBufferPool, LocalPoolStatistics, PoolLimits
from penstock.buffer.network_pool import NetworkBufferPool, NetworkPoolStatistics
from penstock.buffer.segments import SegmentMemory
from penstock.buffer.slices import Held, Holdings, SegmentOwner, SegmentReferences

__all__ = [
    "BufferBuilder",
    "BufferSlice",
    "DataType",
    "Held",
    "Holdings",
    "Listener",
    "LocalBufferPool",
    "LocalPoolStatistics",
    "NetworkBufferPool",
    "NetworkPoolStatistics",
    "PoolLimits",
    "SegmentMemory",
    "SegmentOwner",
    "SegmentReferences",
]
