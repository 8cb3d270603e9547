# SPDX-License-Identifier: Apache-2.0
"""Result partitions: their life, their queues, who may read them, and the file of the simplest blocking one."""

from penstock.partition.lifecycle import (
    IllegalPartitionEventError,
    PartitionEvent,
    PartitionLifecycle,
    PartitionState,
    as_markdown,
)
from penstock.partition.registry import (
    PartitionRegistry,
    ReadablePartition,
    RegistryStatistics,
    WaitingRequest,
    job_of,
)
from penstock.partition.result_file import FileOrigin, ResultFileReader, ResultFileSummary, ResultFileWriter
from penstock.partition.result_partition import PartitionCallbacks, PartitionStatistics, PipelinedPartition
from penstock.partition.subpartition import (
    PipelinedSubpartition,
    PipelinedView,
    SubpartitionState,
    SubpartitionStatistics,
)
from penstock.partition.view import BufferOrEvent, DataListener, SubpartitionView

__all__ = [
    "BufferOrEvent",
    "DataListener",
    "FileOrigin",
    "IllegalPartitionEventError",
    "PartitionCallbacks",
    "PartitionEvent",
    "PartitionLifecycle",
    "PartitionRegistry",
    "PartitionState",
    "PartitionStatistics",
    "PipelinedPartition",
    "PipelinedSubpartition",
    "PipelinedView",
    "ReadablePartition",
    "RegistryStatistics",
    "ResultFileReader",
    "ResultFileSummary",
    "ResultFileWriter",
    "SubpartitionState",
    "SubpartitionStatistics",
    "SubpartitionView",
    "WaitingRequest",
    "as_markdown",
    "job_of",
]
