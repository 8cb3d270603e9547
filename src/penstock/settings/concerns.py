# SPDX-License-Identifier: Apache-2.0
"""The settings of each concern: one frozen dataclass for each, with its defaults."""

from __future__ import annotations

from dataclasses import dataclass, field

MACHINE_SHARE = 64
LEAST_MEMORY, MOST_MEMORY = 256 << 20, 4 << 30
"""Of a machine's memory an environment takes this part by default, within these bounds, in bytes."""


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

    `flow_control` is `credit`, or for comparison `tcp` or `throttle`, under which a slow task may hold up others.
    `socket_buffer` is the size of TCP's buffers (0: as the system has it). Under `throttle` a gate has
    `throttle_queue` buffers, and the JobMaster tells sources to pause, or what `throttle_coordinator` names, as
    `module:attribute@address`.
    """

    memory: int = 0
    segment_size: int = 512 << 10
    exclusive_buffers_per_channel: int = 2
    floating_buffers_per_gate: int = 8
    overdraft_buffers_per_gate: int = 5
    flush_timeout: float = 0.1
    completeness_check: bool = True
    transport: str = "tcp"
    flow_control: str = "credit"
    socket_buffer: int = 0
    throttle_queue: int = 64
    throttle_coordinator: str = ""

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
    `spark.authenticate`, `port` is `spark.shuffle.service.port`. `cipher` is `spark.network.crypto.cipher` where
    `spark.network.crypto.enabled` is true, or `none`; `engine_version` is `spark.network.crypto.authEngineVersion`.
    `directories` are separated by commas, and the service must be able to read them; else files lie beside those of
    the executors. A service that does not answer for `retry_timeout` is lost, with what it serves. A reader that
    comes before its producer has written anything waits for `request_timeout`. A service without `spark.authenticate`
    that others than this machine reach is refused, unless `accept_unauthenticated` says that the network is safe.
    """

    application: str = ""
    secret: str = field(default="", repr=False)
    port: int = 0
    cipher: str = ""
    engine_version: int = 0
    directories: str = ""
    retry_timeout: float = 60.0
    request_timeout: float = 60.0
    accept_unauthenticated: bool = False


@dataclass(frozen=True, slots=True)
class ExternalSettings:
    """The host service of Penstock's own, where `external` moves an edge's rows. Times in seconds.

    Every host has it at this `port`, and at this `socket`, a path, for its own tasks. One that gives nothing for
    `retry_timeout` is lost, with what it keeps. A reader that comes before its producer has written anything waits
    for `request_timeout`. With `lending` a reader on the service's own host is lent the files and reads them itself;
    without it, or where the socket is not, it fetches all rows from the port. A task tells its application's key to a
    service of root, of the task's own user, or of `user`: a name, or a number.
    """

    socket: str = "/var/lib/penstock/service.sock"
    port: int = 7447
    retry_timeout: float = 60.0
    request_timeout: float = 60.0
    lending: bool = True
    user: str = ""


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """The remote shuffle service, where `remote` moves an edge's rows. Sizes in bytes, times in seconds.

    `manager` is `host:port` of its manager. A manager or a worker that does not answer for `retry_timeout` is lost,
    with what it holds. A reader that comes before its producer has finished waits for `request_timeout`. A writer has
    `push_window` bytes under way to each worker, a gate fetches `read_window` ahead. If the manager can't be reached
    when a job is planned, `fallback` says what becomes of it: `refuse`, or `local`, which then stands in.
    """

    manager: str = ""
    retry_timeout: float = 60.0
    request_timeout: float = 60.0
    push_window: int = 8 << 20
    read_window: int = 16 << 20
    fallback: str = "refuse"


@dataclass(frozen=True, slots=True)
class ObjectsSettings:
    """The store of objects, where `objects` moves an edge's rows. Times in seconds.

    `uri` is a folder that all hosts reach, such as `s3://bucket/folder`. A reader that comes before its producer has
    finished waits for `request_timeout`.
    """

    uri: str = ""
    request_timeout: float = 60.0


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
    failure it starts over, and so does the count of `attempts`. `user_errors` is how often one subtask is tried again
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
    only when a caller asks), given up after `checkpoint_timeout`, and begun no sooner than `min_pause` after the end
    of the last one; `max_concurrent_checkpoints` may be under way. `tolerable_failed_checkpoints` may fail in a row
    before the query does. `retained_checkpoints` are kept. `consistency` is `exactly_once` or `at_least_once`. With
    `recovery` `exact` all tasks go on from the last checkpoint after a failure; with `approximate`, which needs
    `at_least_once`, those alone that failed, and the rows under way to and from them are lost and counted. Rows
    wait for at most `buffer_timeout` until they are sent; less than 0: until a segment is full. The bytes in flight
    over each exchange follow what its readers take, so that they take about `in_flight_time`; 0: they do not, and the
    segments of the exchange are all that bounds them.

    With `unaligned` barriers overtake the rows that wait, and these become part of the checkpoint; they do so when
    the checkpoint has been aligned for `aligned_checkpoint_timeout`, 0: from the start. `recover_without_in_flight`
    drops the rows in flight of the checkpoint that a query begins with: they are lost. `rescale_by_function` lets the
    function of `partitionCustom` deal out rows in flight to another number of tasks, instead of an error.
    `persist_in_flight` says when rows in flight are written: `checkpoint`, while a checkpoint is taken, or
    `continuous`, each row as it is given to its exchange. With `approximate` recovery and `continuous` a task that
    failed reads its rows again out of these logs, and loses none that was given to it.

    `state_store` says where tasks keep their state: in `memory`, or in `files` of the local disk that are mapped into
    it, for state larger than memory.

    `savepoint` is a savepoint's folder: where the location holds no checkpoint yet the query begins with that.

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
    recovery: str = "exact"
    buffer_timeout: float = 0.1
    in_flight_time: float = 1.0
    unaligned: bool = False
    aligned_checkpoint_timeout: float = 0.0
    recover_without_in_flight: bool = False
    rescale_by_function: bool = False
    persist_in_flight: str = "checkpoint"
    watermark_interval: float = 0.2
    idle_timeout: float = 60.0
    state_store: str = "memory"
    savepoint: str = ""


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """Risks that the user accepts knowingly.

    Files are in plain text, and so is what travels with `tls.mode=never`, or to Spark's shuffle service by another
    way than the engine of `spark.network.crypto.enabled`. So where Spark is told to encrypt these
    (`spark.io.encryption.enabled`; `spark.ssl.rpc.enabled` and the like) a job is refused, unless `accept_plain_text`
    says that the disks and the network are safe without.
    """

    accept_plain_text: bool = False


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Encryption between hosts: TLS 1.3 for every TCP connection of Penstock's own that leaves loopback.

    `mode` is `auto` (so), `always` (on loopback too) or `never` (rows travel in plain text). A driver makes a
    certificate for its application, which travels with the application's secret. Or `certificate` and `key` are PEM
    files at the same paths on all hosts, the key without a password, and may be one file; `authorities` is a PEM file
    of those that peers, and services of several applications, are checked by.
    """

    mode: str = "auto"
    certificate: str = ""
    key: str = ""
    authorities: str = ""


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """The user of services of several applications, and the file with this user's key, which the driver alone reads.

    Without a file the application has a secret that no such service knows. `user` may be left out where the file has
    one. `penstock key USER` makes a line of such a file.
    """

    user: str = ""
    key_file: str = ""


@dataclass(frozen=True, slots=True)
class AccelerationSettings:
    """The parts of an unchanged PySpark program that `penstock.accelerate` places.

    With `paying` those that gain by it: Python stages with an exchange before or between them. With `everything` all
    that can be placed, which is slower for some and meant for tests.
    """

    placed: str = "paying"


@dataclass(frozen=True, slots=True)
class ObserveSettings:
    """The display, the metrics, the page. `progress` draws running jobs, on a terminal or below a notebook's cell.

    Left out, it is off where `spark.ui.showConsoleProgress` is set to false.

    With `keep_output` each host keeps what functions print, and the logs of its environments, after the application's
    end: `penstock logs` shows them there.

    With `metrics` the driver and each environment serve Prometheus at `metrics_host`: at the first free one of 16
    ports from `metrics_port` on, at any free one where that is 0. Everybody who reaches that address can read them.
    `detailed_metrics` adds those of each channel between hosts. `otlp_url`, such as `http://host:4318/v1/metrics`, is
    a collector that gets the driver's metrics every `otlp_interval` (the extra `otel`). In the folder `event_log` of
    the driver's host each job writes its events as JSON lines: `penstock show` and `replay` show a job out of them.

    With `profile` each task looks a hundred times a second where in the user's functions it is: the page shows the
    functions of each stage by the time that they took, down to the line.

    With `page` the driver serves the web page at `page_host`, at the first free one of 16 ports from `page_port` on,
    at any free one where that is 0. Only who knows its token can read it: `page_token`, of 16 characters or more, or
    a new one for each application, in the address that the driver writes to standard error.
    """

    progress: bool = True
    keep_output: bool = True
    metrics: bool = False
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 0
    detailed_metrics: bool = False
    otlp_url: str = ""
    otlp_interval: float = 15.0
    event_log: str = ""
    profile: bool = False
    page: bool = False
    page_host: str = "127.0.0.1"
    page_port: int = 0
    page_token: str = field(default="", repr=False)
