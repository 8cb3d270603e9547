# SPDX-License-Identifier: Apache-2.0
"""Finds a shuffle service by its entry-point name or by `module:attribute`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import cast

from penstock.shuffle.errors import SettingError
from penstock.shuffle.service import ShuffleService

GROUP = "penstock.shuffle_services"


@cache
def load_service(name: str) -> ShuffleService:
    """The service of this name, made once per process; raises SettingError naming what was found instead."""
    from importlib.metadata import entry_points  # not above: processes that load none would pay for it

    found = {point.name: point.value for point in entry_points(group=GROUP)}
    target = found.get(name, name)
    module_name, separator, attribute = target.partition(":")
    if not separator:
        known = ", ".join(sorted(found)) or "none"
        raise SettingError(
            f"unknown shuffle service {name!r}: installed are {known}; another one is named 'module:attribute'"
        )
    try:
        factory = getattr(import_module(module_name), attribute)
        service = cast("ShuffleService", factory())
        _ = service.capabilities
    except (ImportError, AttributeError, TypeError) as error:
        raise SettingError(f"shuffle service {name!r} cannot be loaded from {target!r}: {error}") from error
    return service
