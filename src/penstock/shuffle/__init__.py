# SPDX-License-Identifier: Apache-2.0
"""The plug-in interface: what a shuffle service must provide, and the words all rooms share.

Everything a third-party service needs to know is here: identities, partition kinds, descriptors and the protocols of
master and environment. Settings and errors have rooms of their own, and this one imports nothing else.
"""

from penstock.shuffle.capabilities import Capabilities
from penstock.shuffle.descriptors import (
    ChannelDescriptor,
    InputGateDescriptor,
    PartitionDescriptor,
    ProducerDescriptor,
    ResultPartitionDescriptor,
    ShuffleDescriptor,
)
from penstock.shuffle.endpoints import EventKind, InputGate, Intake, PartitionEnd, Received, ResultPartitionWriter
from penstock.shuffle.events import EndOfData, EndOfPartition, EpochAhead, EpochEnd, Event, TaskEvent
from penstock.shuffle.host import HostDataPlane, HostPort, SharedSegments, TaskHost
from penstock.shuffle.ids import AttemptId, DatasetId, PartitionId
from penstock.shuffle.kinds import PartitionKind, mode_to_kind
from penstock.shuffle.metrics import Metric, MetricGroup, MetricKind, declared_metrics
from penstock.shuffle.registry import load_service, service_in_use
from penstock.shuffle.requests import Request
from penstock.shuffle.service import (
    ClientMaster,
    JobShuffleContext,
    NamedResults,
    OwnerContext,
    ShuffleEnvironment,
    ShuffleEnvironmentContext,
    ShuffleMaster,
    ShuffleMasterContext,
    ShuffleService,
)
from penstock.shuffle.sums import sum_of

__all__ = [
    "AttemptId",
    "Capabilities",
    "ChannelDescriptor",
    "ClientMaster",
    "DatasetId",
    "EndOfData",
    "EndOfPartition",
    "EpochAhead",
    "EpochEnd",
    "Event",
    "EventKind",
    "HostDataPlane",
    "HostPort",
    "InputGate",
    "InputGateDescriptor",
    "Intake",
    "JobShuffleContext",
    "Metric",
    "MetricGroup",
    "MetricKind",
    "NamedResults",
    "OwnerContext",
    "PartitionDescriptor",
    "PartitionEnd",
    "PartitionId",
    "PartitionKind",
    "ProducerDescriptor",
    "Received",
    "Request",
    "ResultPartitionDescriptor",
    "ResultPartitionWriter",
    "SharedSegments",
    "ShuffleDescriptor",
    "ShuffleEnvironment",
    "ShuffleEnvironmentContext",
    "ShuffleMaster",
    "ShuffleMasterContext",
    "ShuffleService",
    "TaskEvent",
    "TaskHost",
    "declared_metrics",
    "load_service",
    "mode_to_kind",
    "service_in_use",
    "sum_of",
]
