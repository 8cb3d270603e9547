# SPDX-License-Identifier: Apache-2.0
"""The certificate by which a process is known over TLS, as a value that travels as the application's secret does."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate with its chain, its key, and the authorities that others are checked by (none: not). All PEM."""

    chain: bytes = b""
    key: bytes = field(default=b"", repr=False)
    authorities: bytes = b""

    def to_wire(self) -> tuple[bytes, bytes, bytes]:
        """Its parts, for another process of the same application."""
        return self.chain, self.key, self.authorities
