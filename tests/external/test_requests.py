# SPDX-License-Identifier: Apache-2.0
"""The extents of a range on their way to a reader."""

from __future__ import annotations

import pytest

from penstock.external.requests import KeptExtent, pack_kept, read_kept


def test_each_flipped_bit_of_extents_is_seen() -> None:
    """The times that an extent is meant are nowhere else: a high bit of them would be rows without end."""
    extents = [KeptExtent(80, 1_049_216, 2**63 + 5, 1), KeptExtent(1_049_296, 512, 7, 2)]
    packed = pack_kept(extents)
    assert list(read_kept(packed)) == extents
    for bit in range(8 * len(packed)):
        flipped = bytearray(packed)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match="checksum"):
            read_kept(bytes(flipped))
    for length in range(len(packed)):
        with pytest.raises(ValueError, match="checksum"):
            read_kept(packed[:length])
    assert list(read_kept(pack_kept([]))) == []
