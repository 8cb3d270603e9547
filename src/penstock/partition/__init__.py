# SPDX-License-Identifier: Apache-2.0
"""Result partitions: their life, their queues, who may read them, and the files of the blocking ones."""

from penstock.partition.directories import Directories, DirectorySpace
from penstock.partition.file_input import FileOrigin
from penstock.partition.file_output import FileOptions
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
from penstock.partition.result_file import ResultFileReader, ResultFileSummary, ResultFileWriter
from penstock.partition.result_partition import PartitionCallbacks, PartitionStatistics, PipelinedPartition
from penstock.partition.sort_merge_reader import SortMergeReader
from penstock.partition.sort_merge_writer import SortMergePaths, SortMergeWriter
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
    "Directories",
    "DirectorySpace",
    "FileOptions",
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
    "SortMergePaths",
    "SortMergeReader",
    "SortMergeWriter",
    "SubpartitionState",
    "SubpartitionStatistics",
    "SubpartitionView",
    "WaitingRequest",
    "as_markdown",
    "job_of",
]
