# SPDX-License-Identifier: Apache-2.0
"""Settings under `spark.penstock.`: one frozen dataclass per concern, validated once, unknown keys refused."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

from penstock.shuffle.errors import SettingError
from penstock.shuffle.kinds import mode_to_kind

PREFIX = "spark.penstock."
MACHINE_SHARE = 64
LEAST_MEMORY, MOST_MEMORY = 256 << 20, 4 << 30
"""Of a machine's memory an environment takes this part by default, within these bounds, in bytes."""

_SIZE_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TIME_UNITS = {"ms": 0.001, "": 1.0, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TIME_WORDS = {"millisecond": "ms", "second": "s", "minute": "min", "hour": "h", "day": "d"}


def parse_size(text: str) -> int:
    """Bytes of a Spark size such as `64m`, `256KiB` or `1048576`."""
    match = re.fullmatch(r"\s*(\d+)\s*([bkmgt]?)(?:i?b)?\s*", text.lower())
    if match is None:
        raise ValueError("a size such as 64m, 256k or 1048576")
    return int(match[1]) * _SIZE_UNITS[match[2]]


def parse_seconds(text: str) -> float:
    """Seconds of a Spark duration such as `100ms`, `10s`, `5min` or `10 seconds`; a bare number is seconds."""
    match = re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    unit = "" if match is None else _TIME_WORDS.get(match[2].removesuffix("s"), match[2])
    if match is None or unit not in _TIME_UNITS:
        raise ValueError("a duration such as 100ms, 10s, 5min or 10 seconds")
    return float(match[1]) * _TIME_UNITS[unit]


def parse_bool(text: str) -> bool:
    """A Spark boolean."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise ValueError("true or false")


@dataclass(frozen=True, slots=True)
class ShuffleSettings:
    """Which service and which mode an edge has where it does not say so itself."""

    service: str = "local"
    mode: str = "auto"


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Buffers of one environment process and of its gates and partitions. Sizes in bytes, times in seconds.

    If `memory` is 0, an environment takes a 64th of its machine's memory (or of its container's limit), but at least
    256 MB and at most 4 GB. Of what it takes it touches what is used. `transport` is the name of the plug-in that
    connects environments, or its `module:attribute`.
    """

    memory: int = 0
    segment_size: int = 512 << 10
    exclusive_buffers_per_channel: int = 2
    floating_buffers_per_gate: int = 8
    overdraft_buffers_per_gate: int = 5
    flush_timeout: float = 0.1
    completeness_check: bool = True
    transport: str = "tcp"

    def memory_on(self, machine: int) -> int:
        """The network memory, in bytes, of an environment on a machine with so many bytes."""
        return self.memory or min(max(machine // MACHINE_SHARE, LEAST_MEMORY), MOST_MEMORY)


@dataclass(frozen=True, slots=True)
class EnvironmentSettings:
    """The environment process: one per `host` or per `executor`. Times in seconds.

    It listens for others at the address that its host has on the way to the driver, at any free port. `bind_address`
    is another address of the host, or a network such as `10.1.0.0/16` in which the host has one; from `port` on 16
    ports are tried. Others reach it under `advertised_host` where that is set; `hostname` is each host's own name.
    """

    scope: str = "host"
    bind_address: str = ""
    port: int = 0
    advertised_host: str = ""
    directory: str = ""
    start_timeout: float = 30.0
    lease_timeout: float = 60.0


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """The driver, where environments reach it: `spark.driver.host`, bound to `spark.driver.bindAddress`.

    `port` is any free one where it is 0.
    """

    port: int = 0


@dataclass(frozen=True, slots=True)
class BlockingSettings:
    """Blocking partitions: their files, and how many consumers they get. Sizes in bytes.

    `compression` is `none`, `lz4` or `zstd`. `sort_buffer` is what one sort-merge writer collects before it appends a
    region; up to `hash_max_subpartitions` subpartitions a partition gets a file for each instead. `directories` are
    separated by commas (empty: Spark's local directories), and `reserve` bytes are kept free in each. `read_memory`
    is what an environment reads ahead for readers on other hosts. If `numPartitions` is left out, there are
    `max_subpartitions` subpartitions and one consumer for about `target_bytes` of them.
    """

    compression: str = "none"
    sort_buffer: int = 32 << 20
    hash_max_subpartitions: int = 8
    directories: str = ""
    reserve: int = 256 << 20
    read_memory: int = 32 << 20
    max_subpartitions: int = 64
    target_bytes: int = 64 << 20


@dataclass(frozen=True, slots=True)
class EssSettings:
    """Spark's external shuffle service, where `spark_ess` moves an edge's rows. Times in seconds.

    Empty and 0 mean: as Spark's own conf has it. `application` is Spark's id of it, `secret` that of
    `spark.authenticate`, `port` is `spark.shuffle.service.port`. `directories` are separated by commas, and the
    service must be able to read them; else files lie beside those of the executors. A service that does not answer
    for `retry_timeout` is lost, with what it serves. A reader that comes before its producer has written anything
    waits for `request_timeout`. A service without `spark.authenticate` that others than this machine reach is
    refused, unless `accept_unauthenticated` says that the network is safe.
    """

    application: str = ""
    secret: str = field(default="", repr=False)
    port: int = 0
    directories: str = ""
    retry_timeout: float = 60.0
    request_timeout: float = 60.0
    accept_unauthenticated: bool = False


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """One task. `group_memory` is what it collects for groups, joins and sorts before it spills. Sizes in bytes."""

    group_memory: int = 256 << 20


@dataclass(frozen=True, slots=True)
class JobSettings:
    """The limits of a job's waits. Times in seconds."""

    slots_timeout: float = 60.0
    result_lease: float = 600.0


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """After a failure: how often a job restarts, and how soon. Times in seconds.

    `strategy` is `none`, `fixed` or `exponential`. Fixed: `attempts` restarts in a job, each `delay` after its
    failure. Exponential: the wait begins with `delay` and doubles up to `max_delay`; after `reset_after` without a
    failure it begins anew, and so does the count of `attempts`. `user_errors` is how often one subtask is tried again
    after an exception out of the user's code, which most often comes again.
    """

    strategy: str = "fixed"
    attempts: int = 3
    delay: float = 0.0
    max_delay: float = 60.0
    reset_after: float = 600.0
    user_errors: int = 0


@dataclass(frozen=True, slots=True)
class StreamingSettings:
    """Streaming queries; each is an option of `writeStream` too. Times in seconds.

    `checkpoint_location` is a folder of any file system that all hosts reach, one for each query; without one a query
    has a temporary folder, and no later query goes on from it. A checkpoint is taken every `checkpoint_interval` (0:
    only when somebody asks), given up after `checkpoint_timeout`, and begun no sooner than `min_pause` after the end
    of the last one; `max_concurrent_checkpoints` may be under way. `tolerable_failed_checkpoints` may fail in a row
    before the query does. `retained_checkpoints` are kept. `consistency` is `exactly_once` or `at_least_once`. Rows
    wait for at most `buffer_timeout` until they are sent; less than 0: until a segment is full. The bytes in flight
    over each exchange follow what its readers take, so that they take about `in_flight_time`; 0: they do not, and the
    segments of the exchange are all that bounds them.

    With `unaligned` barriers overtake the rows that wait, and these become part of the checkpoint; they do so when
    the checkpoint has been aligned for `aligned_checkpoint_timeout`, 0: from the start. `recover_without_in_flight`
    drops the rows in flight of the checkpoint that a query begins with: they are lost. `rescale_by_function` lets the
    function of `partitionCustom` deal out rows in flight to another number of tasks, instead of an error.
    `persist_in_flight` says when rows in flight are written: `checkpoint`, while a checkpoint is taken, or
    `continuous`, each row as it is given to its exchange.

    Tasks of `withWatermark` tell their consumers how far event time is each `watermark_interval`. One that has waited
    for rows for `idle_timeout` holds no watermark back until its next row; 0: it always does.
    """

    checkpoint_location: str = ""
    checkpoint_interval: float = 10.0
    checkpoint_timeout: float = 600.0
    min_pause: float = 0.0
    max_concurrent_checkpoints: int = 1
    tolerable_failed_checkpoints: int = 10
    retained_checkpoints: int = 2
    consistency: str = "exactly_once"
    buffer_timeout: float = 0.1
    in_flight_time: float = 1.0
    unaligned: bool = False
    aligned_checkpoint_timeout: float = 0.0
    recover_without_in_flight: bool = False
    rescale_by_function: bool = False
    persist_in_flight: str = "checkpoint"
    watermark_interval: float = 0.2
    idle_timeout: float = 60.0


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """Risks that the user accepts knowingly.

    Rows travel and lie in plain text. So where Spark is told to encrypt them (`spark.io.encryption.enabled`,
    `spark.network.crypto.enabled`, `spark.ssl.enabled` and the like) a job is refused, unless `accept_plain_text`
    says that the network and the disks are safe without.
    """

    accept_plain_text: bool = False


@dataclass(frozen=True, slots=True)
class ObserveSettings:
    """The display, and the metrics. `progress` draws the jobs that run, on a terminal or below a notebook's cell.

    It is off, too, where `spark.ui.showConsoleProgress` is set to false.

    With `metrics` the driver and each environment serve Prometheus at `metrics_host`: at the first free one of 16
    ports from `metrics_port` on, at any free one where that is 0. Everybody who reaches that address can read them.
    `detailed_metrics` adds those of each channel between hosts. `otlp_url`, such as `http://host:4318/v1/metrics`, is
    a collector that gets the driver's metrics every `otlp_interval` (the extra `otel`). In the folder `event_log` of
    the driver's host each job writes its events as JSON lines: `penstock replay` shows a finished job out of them.
    """

    progress: bool = True
    metrics: bool = False
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 0
    detailed_metrics: bool = False
    otlp_url: str = ""
    otlp_interval: float = 15.0
    event_log: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one job."""

    shuffle: ShuffleSettings = field(default_factory=ShuffleSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    blocking: BlockingSettings = field(default_factory=BlockingSettings)
    ess: EssSettings = field(default_factory=EssSettings)
    environment: EnvironmentSettings = field(default_factory=EnvironmentSettings)
    driver: DriverSettings = field(default_factory=DriverSettings)
    job: JobSettings = field(default_factory=JobSettings)
    task: TaskSettings = field(default_factory=TaskSettings)
    restart: RestartSettings = field(default_factory=RestartSettings)
    streaming: StreamingSettings = field(default_factory=StreamingSettings)
    security: SecuritySettings = field(default_factory=SecuritySettings)
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


_CONCERNS = {
    "shuffle": ShuffleSettings,
    "network": NetworkSettings,
    "blocking": BlockingSettings,
    "ess": EssSettings,
    "environment": EnvironmentSettings,
    "driver": DriverSettings,
    "job": JobSettings,
    "task": TaskSettings,
    "restart": RestartSettings,
    "streaming": StreamingSettings,
    "security": SecuritySettings,
    "observe": ObserveSettings,
}
_SIZES = {"memory", "segment_size", "sort_buffer", "reserve", "read_memory", "target_bytes", "group_memory"}
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
        return _parse_count
    return str


def _parse_count(text: str) -> int:
    if re.fullmatch(r"\d+", text.strip()) is None:
        raise ValueError("a whole number that is not negative")
    return int(text)


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
            4096 <= network.segment_size <= 64 << 20 and network.segment_size % 4096 == 0,
            "network.segmentSize",
            "must be a multiple of 4096 between 4k and 64m",
        ),
        (
            network.memory_on(0) >= 8 * network.segment_size,
            "network.memory",
            f"must hold at least 8 segments (spark.penstock.network.segmentSize): {8 * network.segment_size} bytes",
        ),
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
        (settings.ess.retry_timeout > 0, "ess.retryTimeout", "must be positive"),
        (settings.ess.request_timeout > 0, "ess.requestTimeout", "must be positive"),
        (settings.environment.port < 1 << 16, "environment.port", "must be below 65536"),
        (settings.driver.port < 1 << 16, "driver.port", "must be below 65536"),
        (settings.observe.metrics_port < 1 << 16, "observe.metricsPort", "must be below 65536"),
        (settings.observe.otlp_interval > 0, "observe.otlpInterval", "must be positive"),
        (settings.task.group_memory > 0, "task.groupMemory", "must be positive"),
        (settings.job.slots_timeout > 0, "job.slotsTimeout", "must be positive"),
    ]
    for holds, key, rule in [*checks, *_restart_checks(settings.restart), *_streaming_checks(settings.streaming)]:
        if not holds:
            raise SettingError(f"{PREFIX}{key} {rule}")
    try:
        mode_to_kind(settings.shuffle.mode)
    except SettingError as error:
        raise SettingError(f"{PREFIX}shuffle.mode: {error}") from None


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
    ways = ("checkpoint", "continuous")
    return [
        (streaming.checkpoint_interval >= 0, "streaming.checkpointInterval", "must not be negative"),
        (streaming.checkpoint_timeout > 0, "streaming.checkpointTimeout", "must be positive"),
        (streaming.min_pause >= 0, "streaming.minPause", "must not be negative"),
        (streaming.in_flight_time >= 0, "streaming.inFlightTime", "must not be negative"),
        (streaming.watermark_interval > 0, "streaming.watermarkInterval", "must be positive"),
        (streaming.idle_timeout >= 0, "streaming.idleTimeout", "must not be negative"),
        (streaming.max_concurrent_checkpoints > 0, "streaming.maxConcurrentCheckpoints", "must be positive"),
        (streaming.retained_checkpoints > 0, "streaming.retainedCheckpoints", "must be positive"),
        (streaming.consistency in kinds, "streaming.consistency", f"must be one of {', '.join(kinds)}"),
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
            streaming.unaligned or streaming.persist_in_flight == "checkpoint",
            "streaming.persistInFlight",
            "may be continuous with streaming.unaligned=true only: aligned checkpoints have no rows in flight",
        ),
        (
            streaming.checkpoint_interval > 0 or streaming.persist_in_flight == "checkpoint",
            "streaming.persistInFlight",
            "may be continuous with a streaming.checkpointInterval only: without checkpoints the logs grow for ever",
        ),
    ]
