# SPDX-License-Identifier: Apache-2.0
"""The look of a client at its host's service: is it there, of our version, and under which name readers get to it.

A task's environment has an address, by which readers find the service of its host. A client has none, so it looks
under which of some names the service answers at its port. It waits for disks and peers.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.connection.protection import services_protection
from penstock.connection.transport import join_host
from penstock.errors import PenstockError, SettingError
from penstock.external.keys import ApplicationKey
from penstock.external.requests import RenewLease
from penstock.services.external.client import call
from penstock.services.external.host_line import HostLine, HostSocket
from penstock.settings import Settings

_SECONDS = 5.0


def reached(key: ApplicationKey, settings: Settings, names: Sequence[str]) -> str:
    """The first of these names of this host at which its service answers.

    NoStorageError where there is no service, VersionError, SettingError where it answers under none of them.
    """
    external, protection = settings.external, services_protection(settings.tls)
    patience = min(external.retry_timeout, _SECONDS)
    HostLine(HostSocket(external.socket, external.user), key, patience, lambda: None).close()
    refusals = []
    for name in names:
        address = join_host(name, external.port)
        try:
            call(key, address, [RenewLease()], _SECONDS, protection)
        except (PenstockError, OSError) as error:
            refusals.append(f"{address}: {error}")
        else:
            return name
    raise SettingError(
        f"the host service at {external.socket} is there, and its port is not: {'; '.join(refusals)}. Set"
        " spark.penstock.external.port, and spark.penstock.environment.advertisedHost to this host's name"
    )
