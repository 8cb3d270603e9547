# SPDX-License-Identifier: Apache-2.0
"""All metrics of the engine: name, kind, unit, meaning. `docs/metrics.md` is made from this table.

A metric that has a `figure` is exported where a report has that figure; the others are computed from several. Times
are counters of seconds: their rate is the share of time that Flink calls `...TimeMsPerSecond`. Services declare more
(`penstock.shuffle.Metric`).
"""

from __future__ import annotations

from penstock.shuffle.metrics import PEAK_RESIDENT, RESIDENT, TASK_LABELS, WATERMARK, Metric, MetricKind

COUNTER, GAUGE = MetricKind.COUNTER, MetricKind.GAUGE
_TASK = TASK_LABELS
_ENVIRONMENT = ("environment",)
_JOB = ("job",)
_CHANNEL = (*_TASK, "gate", "channel")


def _task(name: str, kind: MetricKind, text: str, figure: str, peer: str = "") -> Metric:
    return Metric(name, kind, text, _TASK, figure, peer)


def _host(name: str, kind: MetricKind, text: str, figure: str, peer: str = "") -> Metric:
    return Metric(name, kind, text, _ENVIRONMENT, figure, peer)


def _job(name: str, kind: MetricKind, text: str, figure: str, peer: str = "") -> Metric:
    return Metric(name, kind, text, _JOB, figure, peer)


def _channel(name: str, text: str, figure: str, peer: str = "") -> Metric:
    return Metric(name, GAUGE, text, _CHANNEL, figure, peer)


def _part(name: str, text: str, figure: str, peer: str = "") -> Metric:
    return Metric(name, GAUGE, text, ("job", "task"), figure, peer)


TASKS = (
    _task("penstock_task_in_records_total", COUNTER, "Rows that the task has read.", "rows_in", "numRecordsIn"),
    _task("penstock_task_out_records_total", COUNTER, "Rows that the task has given.", "rows_out", "numRecordsOut"),
    _task("penstock_task_in_bytes_total", COUNTER, "Bytes of the rows read, as Arrow.", "bytes_in", "numBytesIn"),
    _task("penstock_task_out_bytes_total", COUNTER, "Bytes of the rows given, as Arrow.", "bytes_out", "numBytesOut"),
    _task("penstock_task_in_batches_total", COUNTER, "Batches that the task has read.", "batches_in"),
    _task(
        "penstock_task_out_batches_total", COUNTER, "Batches that the task has given.", "batches_out", "numBuffersOut"
    ),
    _task("penstock_task_seconds_total", COUNTER, "Time since the task began.", "seconds"),
    _task(
        "penstock_task_idle_seconds_total",
        COUNTER,
        "Time spent waiting for input.",
        "idle_seconds",
        "idleTimeMsPerSecond",
    ),
    _task(
        "penstock_task_back_pressured_seconds_total",
        COUNTER,
        "Time spent back-pressured: waiting for space at the output.",
        "back_pressured_seconds",
        "backPressuredTimeMsPerSecond",
    ),
    _task(
        "penstock_task_storing_seconds_total",
        COUNTER,
        "Time spent waiting for the log of rows in flight.",
        "storing_seconds",
    ),
    _task("penstock_task_checkpoints_total", COUNTER, "Snapshots that the task has taken.", "checkpoints"),
    _task("penstock_task_spilled_bytes_total", COUNTER, "Bytes that its operators have spilled.", "spilled_bytes"),
    _task(
        "penstock_task_in_local_bytes_total",
        COUNTER,
        "Bytes received from partitions of the same environment.",
        "bytes_in_local",
        "numBytesInLocal",
    ),
    _task(
        "penstock_task_in_remote_bytes_total",
        COUNTER,
        "Bytes received from other environments.",
        "bytes_in_remote",
        "numBytesInRemote",
    ),
    _task(
        "penstock_task_in_queue_buffers",
        GAUGE,
        "Buffers that have come from other environments and wait for the task.",
        "in_queue",
        "inputQueueLength",
    ),
    _task(
        "penstock_task_in_pool_usage_ratio",
        GAUGE,
        "Share of the floating buffers of its gates that is in use.",
        "in_pool_usage",
        "inPoolUsage",
    ),
    _task(
        "penstock_task_in_floating_buffers",
        GAUGE,
        "Floating buffers of its gates that are in use.",
        "in_floating",
        "inputFloatingBuffersUsage",
    ),
    _task(
        "penstock_task_out_pool_usage_ratio",
        GAUGE,
        "Share of its writers' buffers that is in use.",
        "out_pool_usage",
        "outPoolUsage",
    ),
    _task(
        "penstock_task_out_queue_buffers",
        GAUGE,
        "Buffers of its partitions that are written and not yet read.",
        "out_queue",
        "outputQueueLength",
    ),
    _task(
        "penstock_task_late_records_total",
        COUNTER,
        "Rows that came too late for what they belong to.",
        "rows_late",
        "numLateRecordsDropped",
    ),
    _task("penstock_task_resident_bytes", GAUGE, "Memory of the process that the task runs in.", RESIDENT),
    _task("penstock_task_peak_resident_bytes", GAUGE, "The most of it while the task ran.", PEAK_RESIDENT),
    _task("penstock_task_state_rows", GAUGE, "Rows, or keys, of the task's state.", "state_rows"),
    _task("penstock_task_state_bytes", GAUGE, "Bytes of the task's state, in memory or mapped files.", "state_bytes"),
    _task(
        "penstock_task_watermark_seconds",
        GAUGE,
        "How far event time is at the task, in seconds since 1970.",
        WATERMARK,
        "currentInputWatermark",
    ),
    _task(
        "penstock_task_dropped_in_flight_records_total",
        COUNTER,
        "Rows in flight of a checkpoint that were dropped, as was asked.",
        "rows_dropped_in_flight",
    ),
    _task(
        "penstock_task_source_outstanding_files",
        GAUGE,
        "Files that its source knows of and has not read.",
        "files_outstanding",
    ),
    _task(
        "penstock_task_source_outstanding_bytes",
        GAUGE,
        "Bytes of these files that are not read.",
        "bytes_outstanding",
        "pendingBytes",
    ),
)
BUSY = Metric(
    "penstock_task_busy_seconds_total", COUNTER, "Time in which the task worked.", _TASK, peer="busyTimeMsPerSecond"
)
SHARES = {
    "busy": _task(
        "penstock_task_busy_ratio", GAUGE, "Share of the last seconds spent working.", "", "busyTimeMsPerSecond"
    ),
    "idle": _task(
        "penstock_task_idle_ratio",
        GAUGE,
        "Share of the last seconds spent waiting for input.",
        "",
        "idleTimeMsPerSecond",
    ),
    "back_pressured": _task(
        "penstock_task_back_pressured_ratio",
        GAUGE,
        "Share of the last seconds spent back-pressured: waiting for space at the output.",
        "",
        "backPressuredTimeMsPerSecond",
    ),
}
"""Known to the JobMaster alone, which sees one heartbeat after the other."""
OPERATOR = Metric(
    "penstock_task_operator_seconds_total", COUNTER, "Time spent in one operator of the task.", (*_TASK, "operator")
)
SERVICE_FIGURE = Metric(
    "penstock_task_service_figure",
    GAUGE,
    "A figure of the shuffle service's own, without a declared name.",
    (*_TASK, "figure"),
)


def _use(name: str, text: str, label: str, figure: str) -> Metric:
    return Metric(name, COUNTER, text, (*_ENVIRONMENT, label), figure)


USES = {
    "disk": (
        _use("penstock_disk_read_bytes_total", "Bytes of files that came from a disk.", "disk", "read_bytes"),
        _use("penstock_disk_read_seconds_total", "Time that somebody waited for them.", "disk", "read_seconds"),
        _use("penstock_disk_write_bytes_total", "Bytes of files that a disk took.", "disk", "write_bytes"),
        _use("penstock_disk_write_seconds_total", "Time that somebody waited for it.", "disk", "write_seconds"),
    ),
    "worker": (
        _use("penstock_worker_seconds_total", "Time since a worker began what it does.", "worker", "seconds"),
        _use("penstock_worker_busy_seconds_total", "Time in which it worked.", "worker", "busy_seconds"),
    ),
    "user": (
        _use("penstock_user_bytes_total", "Bytes that a process has moved for a user.", "user", "bytes"),
        _use(
            "penstock_user_waiting_seconds_total",
            "Time that a user's tasks waited for it.",
            "user",
            "waiting_seconds",
        ),
    ),
}
"""Of each disk, worker and user of an environment, by kind; a disk goes by where it is mounted."""

ENVIRONMENTS = (
    _host(
        "penstock_environment_segments",
        GAUGE,
        "Segments of the network memory.",
        "segments_total",
        "TotalMemorySegments",
    ),
    _host(
        "penstock_environment_used_segments",
        GAUGE,
        "Segments that are in use.",
        "segments_in_use",
        "UsedMemorySegments",
    ),
    _host(
        "penstock_environment_guaranteed_segments",
        GAUGE,
        "Segments promised to open gates and writers.",
        "segments_guaranteed",
        "RequestedMemoryUsage",
    ),
    _host("penstock_environment_memory_bytes", GAUGE, "The network memory.", "memory_bytes", "TotalMemory"),
    _host(
        "penstock_environment_used_memory_bytes",
        GAUGE,
        "The network memory that is in use.",
        "memory_in_use_bytes",
        "UsedMemory",
    ),
    _host("penstock_environment_resident_bytes", GAUGE, "Memory of its process.", RESIDENT),
    _host("penstock_environment_peak_resident_bytes", GAUGE, "The most of it since it began.", PEAK_RESIDENT),
    _host(
        "penstock_environment_hybrid_segments",
        GAUGE,
        "Segments that hold data of hybrid partitions.",
        "hybrid_segments",
    ),
    _host(
        "penstock_environment_hybrid_spilled_bytes_total",
        COUNTER,
        "Bytes of hybrid partitions that were stored.",
        "hybrid_spilled_bytes",
    ),
    _host(
        "penstock_environment_read_memory_bytes",
        GAUGE,
        "Memory in use for reading ahead from files.",
        "read_bytes_held",
    ),
    _host("penstock_environment_tasks", GAUGE, "Tasks that are attached.", "tasks"),
    _host("penstock_environment_connections", GAUGE, "Open connections to other environments.", "connections"),
    _host(
        "penstock_environment_opened_connections_total",
        COUNTER,
        "Connections that it has opened.",
        "connections_opened",
    ),
    _host(
        "penstock_environment_accepted_connections_total",
        COUNTER,
        "Connections that it has accepted.",
        "connections_accepted",
    ),
    _host(
        "penstock_environment_in_remote_bytes_total",
        COUNTER,
        "Bytes received from other environments.",
        "remote_bytes_in",
        "numBytesInRemote",
    ),
    _host(
        "penstock_environment_out_remote_bytes_total",
        COUNTER,
        "Bytes sent to other environments.",
        "remote_bytes_out",
    ),
)
_KINDS = (*_ENVIRONMENT, "service", "kind", "state")
PARTITIONS = Metric("penstock_environment_partitions", GAUGE, "Partitions, by service, kind and state.", _KINDS)
PARTITION_BYTES = Metric(
    "penstock_environment_partition_bytes",
    GAUGE,
    "Bytes that partitions hold in memory or files, by service, kind and state.",
    _KINDS,
)
CHANNELS = (
    _channel("penstock_channel_credits", "Buffers that the sender may still send.", "credit"),
    _channel("penstock_channel_backlog_buffers", "Buffers that wait at the sender, as it said last.", "backlog"),
    _channel(
        "penstock_channel_exclusive_buffers",
        "Buffers that belong to the channel.",
        "exclusive",
        "inputExclusiveBuffersUsage",
    ),
    _channel(
        "penstock_channel_floating_buffers",
        "Buffers of its gate that it has now.",
        "floating",
        "inputFloatingBuffersUsage",
    ),
    _channel(
        "penstock_channel_queue_buffers", "Buffers that have come and wait for the task.", "queue", "inputQueueLength"
    ),
)
"""With `spark.penstock.observe.detailedMetrics` only: there may be many channels."""

JOBS = (
    _job("penstock_job_seconds", GAUGE, "Time since the job was submitted.", "seconds"),
    _job("penstock_job_restarts_total", COUNTER, "Restarts of the job.", "restarts", "numRestarts"),
    _job(
        "penstock_job_restarts_alone_total",
        COUNTER,
        "Restarts of tasks alone, with recovery=approximate.",
        "restarts_alone",
    ),
    _job("penstock_job_lost_rows", GAUGE, "Rows that were under way to and from such tasks.", "rows_lost"),
    _job("penstock_job_uncounted_channels", GAUGE, "Channels of which it is not known yet how many.", "links_open"),
    _job(
        "penstock_job_completed_checkpoints_total",
        COUNTER,
        "Checkpoints that are complete.",
        "completed",
        "numberOfCompletedCheckpoints",
    ),
    _job(
        "penstock_job_failed_checkpoints_total",
        COUNTER,
        "Checkpoints that have failed.",
        "failed",
        "numberOfFailedCheckpoints",
    ),
    _job(
        "penstock_job_last_checkpoint_id",
        GAUGE,
        "The number of the last complete checkpoint.",
        "last",
        "lastCompletedCheckpointId",
    ),
    _job(
        "penstock_job_last_checkpoint_seconds",
        GAUGE,
        "The duration of the last complete checkpoint.",
        "last_seconds",
        "lastCheckpointDuration",
    ),
    _job(
        "penstock_job_last_checkpoint_bytes",
        GAUGE,
        "The size of the last complete checkpoint.",
        "last_bytes",
        "lastCheckpointSize",
    ),
    _job(
        "penstock_job_last_checkpoint_in_flight_bytes",
        GAUGE,
        "Of these bytes those of rows in flight.",
        "last_in_flight_bytes",
    ),
)
JOB_INFO = Metric("penstock_job_info", GAUGE, "A job that runs: its name and its state.", (*_JOB, "name", "state"))
STAGE_INFO = Metric(
    "penstock_stage_info",
    GAUGE,
    "A stage of a job that runs: its name in explain, progress and logs.",
    ("job", "stage", "name"),
)
STAGE_TASKS = Metric("penstock_stage_tasks", GAUGE, "Tasks of a stage, by state.", ("job", "stage", "state"))
PARTS = (
    _part(
        "penstock_checkpoint_start_delay_seconds",
        "Time from the checkpoint's begin to the task's first barrier: Flink's start delay.",
        "start_seconds",
        "checkpointStartDelayNanos",
    ),
    _part(
        "penstock_checkpoint_alignment_seconds",
        "Time between the first and the last barrier.",
        "align_seconds",
        "checkpointAlignmentTime",
    ),
    _part("penstock_checkpoint_sync_seconds", "Time to take the snapshot.", "freeze_seconds"),
    _part("penstock_checkpoint_async_seconds", "Time to store it.", "store_seconds"),
    _part("penstock_checkpoint_bytes", "Size of the task's part.", "bytes"),
    _part("penstock_checkpoint_in_flight_bytes", "Of these bytes those of rows in flight.", "in_flight_bytes"),
)
"""Each task's part of the last checkpoint that is complete."""

ENVIRONMENT_INFO = Metric(
    "penstock_environment_info",
    GAUGE,
    "An environment that is attached; `metrics` is the address of its own endpoint, empty for none.",
    (*_ENVIRONMENT, "host", "pid", "metrics"),
)
ENDED_JOBS = Metric("penstock_driver_ended_jobs_total", COUNTER, "Jobs that have ended.", ("outcome",))

GROUPS: dict[str, tuple[Metric, ...]] = {
    "Tasks": (*TASKS, BUSY, *SHARES.values(), OPERATOR, SERVICE_FIGURE),
    "Channels (detailed)": CHANNELS,
    "Environments": (*ENVIRONMENTS, PARTITIONS, PARTITION_BYTES, ENVIRONMENT_INFO),
    "Disks, workers and users of environments": tuple(metric for kind in USES.values() for metric in kind),
    "Jobs and stages": (*JOBS, JOB_INFO, STAGE_INFO, STAGE_TASKS, ENDED_JOBS),
    "Checkpoints": PARTS,
}
"""Every metric, by what it is of."""
