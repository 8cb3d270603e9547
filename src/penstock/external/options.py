# SPDX-License-Identifier: Apache-2.0
"""The options of a host service, and the port that its clients assume if no setting names one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from penstock.external.accounts import KeptQuotas

PORT = 7447
"""The port, unless another one is set, on either side."""
SOCKET_NAME = "service.sock"


@dataclass(frozen=True, slots=True)
class HostServiceOptions:
    """The options of one service. Sizes in bytes, times in seconds.

    Files lie in `folders`, the index in the first. `quota` is of each application, `memory` of each user, `reserve`
    of each file system; 0 is no quota.
    """

    folders: tuple[Path, ...]
    host: str = "0.0.0.0"  # noqa: S104 - readers of all hosts come here, and prove who they are
    port: int = PORT
    at: Path | None = None
    """The Unix socket, if it is not in the first folder."""
    quota: int = 0
    reserve: int = 1 << 30
    lease: float = 1800.0
    kept_lease: float = 7 * 86400.0
    memory: int = 64 << 20
    tls: str = "auto"
    """`auto`: TLS for all but peers on loopback; `always`: for these too; `never`: rows travel in plain text."""
    certificate: str = ""
    key: str = ""
    metrics_port: int = 0
    metrics_host: str = "127.0.0.1"
    """The address of the metrics; with port 0 there are none."""
    kept: KeptQuotas = field(default_factory=KeptQuotas)

    @property
    def socket_path(self) -> Path:
        """The path of the Unix socket."""
        return self.at or self.folders[0] / SOCKET_NAME
