# SPDX-License-Identifier: Apache-2.0
"""Result partitions: their life, their queues, who may read them, and the files of the blocking ones."""

from penstock.partition.directories import Directories, DirectorySpace
from penstock.partition.file_input import FileOrigin
from penstock.partition.file_output import FileOptions
from penstock.partition.lifecycle import PartitionEvent, PartitionLifecycle, PartitionState
from penstock.partition.registry import (
    PartitionRegistry,
    ReadablePartition,
    RegistryStatistics,
    WaitingRequest,
    job_of,
)
from penstock.partition.result_file import ResultFileReader, ResultFileSummary, ResultFileWriter
from penstock.partition.result_partition import PartitionCallbacks, PipelinedPartition
from penstock.partition.sort_merge_reader import SortMergeReader
from penstock.partition.sort_merge_writer import SortMergePaths, SortMergeWriter
from penstock.partition.subpartition import (
    PipelinedSubpartition,
    PipelinedView,
    SubpartitionState,
)

__all__ = [
    "Directories",
    "DirectorySpace",
    "FileOptions",
    "FileOrigin",
    "PartitionCallbacks",
    "PartitionEvent",
    "PartitionLifecycle",
    "PartitionRegistry",
    "PartitionState",
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
    "WaitingRequest",
    "job_of",
]
