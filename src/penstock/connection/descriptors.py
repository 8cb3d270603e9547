# SPDX-License-Identifier: Apache-2.0
"""The descriptors that a service may have: files and connections, of which each user gets a share (`budgets`)."""

from __future__ import annotations

import logging
import resource

from penstock.errors import SettingError

log = logging.getLogger("penstock.connection")

_LEAST_DESCRIPTORS, _FEW_DESCRIPTORS = 256, 4096


def own_descriptors() -> int:
    """The files and connections that this process may have; SettingError where these are too few to serve."""
    few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if few < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most < _LEAST_DESCRIPTORS:
        raise SettingError(
            f"this process may have {most} files and connections, and needs {_LEAST_DESCRIPTORS:,}: set LimitNOFILE"
            " (ulimit -n) to 65536"
        )
    if most < _FEW_DESCRIPTORS:
        log.warning("%d files and connections at a time are few for many tasks: set LimitNOFILE to 65536", most)
    return most
