# SPDX-License-Identifier: Apache-2.0
"""Finds a plug-in by its entry-point name or by `module:attribute`: a shuffle service, a transport."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import cast

from penstock.errors import SettingError
from penstock.settings import Settings
from penstock.shuffle.service import ShuffleService

GROUP = "penstock.shuffle_services"


@cache
def load_service(name: str) -> ShuffleService:
    """The service of this name, made once per process; raises SettingError naming what was found instead."""
    return cast("ShuffleService", plug_in("shuffle service", GROUP, name, "capabilities"))


def service_in_use(name: str, settings: Settings) -> tuple[str, str]:
    """The name of the service that serves now in place of this one, and why it is another one; else as it is.

    A service that needs others to run may have `stand_in`, which gives both.
    """
    stand_in = getattr(load_service(name), "stand_in", None)
    if stand_in is None:
        return name, ""
    found, why = stand_in(settings)
    return str(found), str(why)


def plug_in(kind: str, group: str, name: str, attribute: str) -> object:
    """A new plug-in of this name, which has this attribute; raises SettingError naming what was found instead."""
    from importlib.metadata import entry_points  # not above: processes that load none would pay for it

    found = {point.name: point.value for point in entry_points(group=group)}
    target = found.get(name, name)
    module_name, separator, factory = target.partition(":")
    if not separator:
        known = ", ".join(sorted(found)) or "none"
        raise SettingError(f"unknown {kind} {name!r}: installed are {known}; another one is named 'module:attribute'")
    try:
        plug_in = getattr(import_module(module_name), factory)()
        getattr(plug_in, attribute)
    except (ImportError, AttributeError, TypeError) as error:
        raise SettingError(f"{kind} {name!r} cannot be loaded from {target!r}: {error}") from error
    return plug_in
