# SPDX-License-Identifier: Apache-2.0
"""Settings under `spark.penstock.`: one frozen dataclass per concern, validated once, unknown keys refused."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

from penstock.errors import SettingError
from penstock.settings.concerns import (
    AccelerationSettings,
    AccessSettings,
    BlockingSettings,
    DriverSettings,
    EnvironmentSettings,
    EssSettings,
    ExternalSettings,
    JobSettings,
    NetworkSettings,
    ObjectsSettings,
    ObserveSettings,
    RemoteSettings,
    RestartSettings,
    SecuritySettings,
    ShuffleSettings,
    StreamingSettings,
    TaskSettings,
    TlsSettings,
)
from penstock.settings.values import parse_bool, parse_count, parse_seconds, parse_size

PREFIX = "spark.penstock."
FLOW_CONTROLS = ("credit", "tcp", "throttle")
"""The policies of the network room, by name."""
TLS_MODES = ("auto", "always", "never")
PLACED = ("paying", "everything")
"""What of an unchanged program is placed."""
Mode = Literal["auto", "pipelined", "blocking", "blocking_hash", "hybrid", "hybrid_selective"]
MODES: tuple[Mode, ...] = get_args(Mode)
"""The modes a user may write; `penstock.shuffle.kinds` says which kind each is."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one job."""

    shuffle: ShuffleSettings = field(default_factory=ShuffleSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    blocking: BlockingSettings = field(default_factory=BlockingSettings)
    ess: EssSettings = field(default_factory=EssSettings)
    external: ExternalSettings = field(default_factory=ExternalSettings)
    remote: RemoteSettings = field(default_factory=RemoteSettings)
    objects: ObjectsSettings = field(default_factory=ObjectsSettings)
    environment: EnvironmentSettings = field(default_factory=EnvironmentSettings)
    driver: DriverSettings = field(default_factory=DriverSettings)
    job: JobSettings = field(default_factory=JobSettings)
    task: TaskSettings = field(default_factory=TaskSettings)
    restart: RestartSettings = field(default_factory=RestartSettings)
    streaming: StreamingSettings = field(default_factory=StreamingSettings)
    security: SecuritySettings = field(default_factory=SecuritySettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    access: AccessSettings = field(default_factory=AccessSettings)
    acceleration: AccelerationSettings = field(default_factory=AccelerationSettings)
    observe: ObserveSettings = field(default_factory=ObserveSettings)

    @classmethod
    def from_conf(cls, conf: Mapping[str, str]) -> Settings:
        """Settings out of Spark's conf (other keys are ignored); raises SettingError naming key and remedy."""
        values: dict[str, dict[str, object]] = {}
        for key, text in conf.items():
            if not key.startswith(PREFIX):
                continue
            concern, name, parse = _find(key)
            try:
                values.setdefault(concern, {})[name] = parse(text)
            except ValueError as error:
                raise SettingError(f"{key}={text!r} is not valid: it takes {error}") from None
        parts = {part.name: _CONCERNS[part.name](**values.get(part.name, {})) for part in fields(cls)}
        settings = cls(**parts)
        _validate(settings)
        return settings

    def to_conf(self) -> dict[str, str]:
        """The inverse of `from_conf`, for handing settings to another process."""
        conf = {}
        for concern in fields(self):
            part = getattr(self, concern.name)
            for item in fields(part):
                value = getattr(part, item.name)
                text = str(value).lower() if isinstance(value, bool) else str(value)
                conf[f"{PREFIX}{concern.name}.{_camel(item.name)}"] = text
        return conf

    def told(self) -> dict[str, str]:
        """Those that are not as they are by default, for displays of a job; secrets are none of them."""
        usual, hidden = type(self)().to_conf(), set()
        for concern in fields(self):
            shown = fields(getattr(self, concern.name))
            hidden |= {f"{PREFIX}{concern.name}.{_camel(item.name)}" for item in shown if not item.repr}
        return {key: value for key, value in self.to_conf().items() if value != usual[key] and key not in hidden}


_CONCERNS = {
    "shuffle": ShuffleSettings,
    "network": NetworkSettings,
    "blocking": BlockingSettings,
    "ess": EssSettings,
    "external": ExternalSettings,
    "remote": RemoteSettings,
    "objects": ObjectsSettings,
    "environment": EnvironmentSettings,
    "driver": DriverSettings,
    "job": JobSettings,
    "task": TaskSettings,
    "restart": RestartSettings,
    "streaming": StreamingSettings,
    "security": SecuritySettings,
    "tls": TlsSettings,
    "access": AccessSettings,
    "acceleration": AccelerationSettings,
    "observe": ObserveSettings,
}
_SIZES = {
    "memory",
    "segment_size",
    "socket_buffer",
    "sort_buffer",
    "reserve",
    "read_memory",
    "target_bytes",
    "group_memory",
    "push_window",
    "read_window",
}
_TIMES = {
    "flush_timeout",
    "start_timeout",
    "lease_timeout",
    "retry_timeout",
    "request_timeout",
    "slots_timeout",
    "result_lease",
    "delay",
    "max_delay",
    "reset_after",
    "checkpoint_interval",
    "checkpoint_timeout",
    "min_pause",
    "buffer_timeout",
    "in_flight_time",
    "watermark_interval",
    "idle_timeout",
    "aligned_checkpoint_timeout",
    "otlp_interval",
}


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.title() for part in tail)


def _parser(name: str, default: object) -> Callable[[str], object]:
    if name in _SIZES:
        return parse_size
    if name in _TIMES:
        return parse_seconds
    if isinstance(default, bool):
        return parse_bool
    if isinstance(default, int):
        return parse_count
    return str


def _known() -> dict[str, tuple[str, str, Callable[[str], object]]]:
    known = {}
    for concern, kind in _CONCERNS.items():
        instance = kind()
        for item in fields(instance):
            key = f"{PREFIX}{concern}.{_camel(item.name)}"
            known[key] = (concern, item.name, _parser(item.name, getattr(instance, item.name)))
    return known


KEYS = _known()
"""Every key Penstock reads, with its concern, field and parser."""


def _find(key: str) -> tuple[str, str, Callable[[str], object]]:
    if key in KEYS:
        return KEYS[key]
    close = difflib.get_close_matches(key, KEYS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(KEYS))}"
    raise SettingError(f"unknown setting {key}: {hint}")


def _validate(settings: Settings) -> None:
    network = settings.network
    checks = [
        (
            settings.shuffle.mode in MODES,
            "shuffle.mode:",
            f"unknown mode {settings.shuffle.mode!r}: use one of {', '.join(MODES)}",
        ),
        (
            4096 <= network.segment_size <= 64 << 20 and network.segment_size % 4096 == 0,
            "network.segmentSize",
            "must be a multiple of 4096 between 4k and 64m",
        ),
        (
            network.memory_on(0) >= 8 * network.segment_size,
            "network.memory",
            f"must hold at least 8 segments (spark.penstock.network.segmentSize): {8 * network.segment_size} bytes",
        ),
        (network.flow_control in FLOW_CONTROLS, "network.flowControl", f"must be one of {', '.join(FLOW_CONTROLS)}"),
        (
            network.flow_control == "credit" or not settings.streaming.unaligned,
            "streaming.unaligned",
            "is for network.flowControl=credit: elsewhere rows wait in sockets, where no barrier overtakes them",
        ),
        (network.throttle_queue > 1, "network.throttleQueue", "must be at least 2"),
        (
            settings.blocking.compression in ("none", "lz4", "zstd"),
            "blocking.compression",
            "must be none, lz4 or zstd",
        ),
        (settings.blocking.sort_buffer >= 1 << 20, "blocking.sortBuffer", "must be at least 1m"),
        (settings.blocking.read_memory >= 1 << 20, "blocking.readMemory", "must be at least 1m"),
        (settings.blocking.max_subpartitions > 0, "blocking.maxSubpartitions", "must be positive"),
        (settings.blocking.target_bytes > 0, "blocking.targetBytes", "must be positive"),
        (settings.environment.scope in ("host", "executor"), "environment.scope", "must be host or executor"),
        (settings.environment.lease_timeout > 0, "environment.leaseTimeout", "must be positive"),
        (settings.ess.port < 1 << 16, "ess.port", "must be below 65536"),
        (settings.ess.engine_version < 3, "ess.engineVersion", "must be 1 or 2, or 0: as Spark's conf has it"),
        (settings.ess.retry_timeout > 0, "ess.retryTimeout", "must be positive"),
        (settings.ess.request_timeout > 0, "ess.requestTimeout", "must be positive"),
        (settings.remote.retry_timeout > 0, "remote.retryTimeout", "must be positive"),
        (settings.objects.request_timeout > 0, "objects.requestTimeout", "must be positive"),
        (settings.remote.request_timeout > 0, "remote.requestTimeout", "must be positive"),
        (settings.remote.push_window >= 2 << 20, "remote.pushWindow", "must be at least 2m"),
        (settings.remote.fallback in ("refuse", "local"), "remote.fallback", "must be refuse or local"),
        (settings.remote.read_window >= 2 << 20, "remote.readWindow", "must be at least 2m"),
        (settings.environment.port < 1 << 16, "environment.port", "must be below 65536"),
        (settings.driver.port < 1 << 16, "driver.port", "must be below 65536"),
        (settings.observe.metrics_port < 1 << 16, "observe.metricsPort", "must be below 65536"),
        (settings.observe.page_port < 1 << 16, "observe.pagePort", "must be below 65536"),
        (
            len(settings.observe.page_token) not in range(1, 16),
            "observe.pageToken",
            "must have 16 characters or more",
        ),
        (settings.observe.otlp_interval > 0, "observe.otlpInterval", "must be positive"),
        (settings.task.group_memory > 0, "task.groupMemory", "must be positive"),
        (settings.tls.mode in TLS_MODES, "tls.mode", f"must be one of {', '.join(TLS_MODES)}"),
        (bool(settings.tls.certificate) or not settings.tls.key, "tls.key", "needs spark.penstock.tls.certificate"),
        (settings.acceleration.placed in PLACED, "acceleration.placed", f"must be one of {', '.join(PLACED)}"),
        (settings.job.slots_timeout > 0, "job.slotsTimeout", "must be positive"),
    ]
    for holds, key, rule in [*checks, *_restart_checks(settings.restart), *_streaming_checks(settings.streaming)]:
        if not holds:
            raise SettingError(f"{PREFIX}{key} {rule}")


def _restart_checks(restart: RestartSettings) -> list[tuple[bool, str, str]]:
    strategies = ("none", "fixed", "exponential")
    return [
        (restart.strategy in strategies, "restart.strategy", f"must be one of {', '.join(strategies)}"),
        (restart.delay >= 0, "restart.delay", "must not be negative"),
        (
            restart.delay > 0 or restart.strategy != "exponential",
            "restart.delay",
            "must be positive with the exponential strategy: it is the first wait, which is doubled",
        ),
        (
            restart.max_delay >= restart.delay or restart.strategy != "exponential",
            "restart.maxDelay",
            "must not be below spark.penstock.restart.delay",
        ),
        (restart.reset_after > 0, "restart.resetAfter", "must be positive"),
    ]


def _streaming_checks(streaming: StreamingSettings) -> list[tuple[bool, str, str]]:
    kinds = ("exactly_once", "at_least_once")
    recoveries = ("exact", "approximate")
    ways = ("checkpoint", "continuous")
    stores = ("memory", "files")
    return [
        (streaming.checkpoint_interval >= 0, "streaming.checkpointInterval", "must not be negative"),
        (streaming.checkpoint_timeout > 0, "streaming.checkpointTimeout", "must be positive"),
        (streaming.min_pause >= 0, "streaming.minPause", "must not be negative"),
        (streaming.in_flight_time >= 0, "streaming.inFlightTime", "must not be negative"),
        (streaming.watermark_interval > 0, "streaming.watermarkInterval", "must be positive"),
        (streaming.idle_timeout >= 0, "streaming.idleTimeout", "must not be negative"),
        (streaming.max_concurrent_checkpoints > 0, "streaming.maxConcurrentCheckpoints", "must be positive"),
        (streaming.retained_checkpoints > 0, "streaming.retainedCheckpoints", "must be positive"),
        (streaming.state_store in stores, "streaming.stateStore", f"must be one of {', '.join(stores)}"),
        (streaming.consistency in kinds, "streaming.consistency", f"must be one of {', '.join(kinds)}"),
        (streaming.recovery in recoveries, "streaming.recovery", f"must be one of {', '.join(recoveries)}"),
        (
            streaming.recovery == "exact" or streaming.consistency == "at_least_once",
            "streaming.recovery",
            "may be approximate with streaming.consistency=at_least_once only: a task that fails loses rows",
        ),
        (
            not streaming.unaligned or streaming.consistency == "exactly_once",
            "streaming.unaligned",
            "is for streaming.consistency=exactly_once: where rows may come twice no barrier has to wait",
        ),
        (
            not streaming.unaligned or streaming.max_concurrent_checkpoints == 1,
            "streaming.unaligned",
            "goes with streaming.maxConcurrentCheckpoints=1: the rows in flight would be kept for each of several",
        ),
        (
            streaming.aligned_checkpoint_timeout >= 0,
            "streaming.alignedCheckpointTimeout",
            "must not be negative",
        ),
        (
            streaming.unaligned or not streaming.aligned_checkpoint_timeout,
            "streaming.alignedCheckpointTimeout",
            "is for streaming.unaligned=true: other checkpoints stay aligned",
        ),
        (
            streaming.persist_in_flight in ways,
            "streaming.persistInFlight",
            f"must be one of {', '.join(ways)}",
        ),
        (
            streaming.unaligned or streaming.recovery == "approximate" or streaming.persist_in_flight == "checkpoint",
            "streaming.persistInFlight",
            "may be continuous with streaming.unaligned=true or streaming.recovery=approximate only: they use logs",
        ),
        (
            streaming.checkpoint_interval > 0 or streaming.persist_in_flight == "checkpoint",
            "streaming.persistInFlight",
            "may be continuous with a streaming.checkpointInterval only: without checkpoints the logs grow for ever",
        ),
    ]
