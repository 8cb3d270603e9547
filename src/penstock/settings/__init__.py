# SPDX-License-Identifier: Apache-2.0
"""Settings under `spark.penstock.`: what they are, how they are written, and which values are refused."""

from penstock.settings.concerns import (
    LEAST_MEMORY,
    AccessSettings,
    BlockingSettings,
    DriverSettings,
    EnvironmentSettings,
    EssSettings,
    ExternalSettings,
    JobSettings,
    NetworkSettings,
    ObserveSettings,
    RemoteSettings,
    RestartSettings,
    SecuritySettings,
    ShuffleSettings,
    StreamingSettings,
    TaskSettings,
    TlsSettings,
)
from penstock.settings.settings import (
    KEYS,
    MODES,
    PREFIX,
    TLS_MODES,
    Settings,
)
from penstock.settings.values import (
    parse_bool,
    parse_count,
    parse_seconds,
    parse_size,
)

__all__ = [
    "KEYS",
    "LEAST_MEMORY",
    "MODES",
    "PREFIX",
    "TLS_MODES",
    "AccessSettings",
    "BlockingSettings",
    "DriverSettings",
    "EnvironmentSettings",
    "EssSettings",
    "ExternalSettings",
    "JobSettings",
    "NetworkSettings",
    "ObserveSettings",
    "RemoteSettings",
    "RestartSettings",
    "SecuritySettings",
    "Settings",
    "ShuffleSettings",
    "StreamingSettings",
    "TaskSettings",
    "TlsSettings",
    "parse_bool",
    "parse_count",
    "parse_seconds",
    "parse_size",
]
