# SPDX-License-Identifier: Apache-2.0
"""A task that is a process of its own, as a program: it writes a partition or reads one, and prints how it went."""

from __future__ import annotations

import os
import signal
import subprocess

from local_harness import LocalHarness, wait_for_end

TASK = """
import json, resource, sys
import pyarrow as pa
from penstock.attachment.attachment import attach
from penstock.attachment.launch import EnvironmentLaunch
from penstock.services.local.service import LocalShuffleService
from penstock.settings import Settings
from penstock.shuffle import (
    AttemptId,
    ChannelDescriptor,
    DatasetId,
    EndOfPartition,
    InputGateDescriptor,
    MetricGroup,
    OwnerContext,
    PartitionDescriptor,
    PartitionId,
    PartitionKind,
    ResultPartitionDescriptor,
    ShuffleDescriptor,
    ShuffleEnvironmentContext,
)
from penstock.shuffle.splits import Split
from penstock.task.blocking import BlockingInput, BlockingWriter
role, application, secret, host, environment, address, label, subpartitions, limit, conf = sys.argv[1:]
settings = Settings.from_conf(json.loads(conf))
task = attach(EnvironmentLaunch(application, bytes.fromhex(secret), "", settings.to_conf(), host))
context = ShuffleEnvironmentContext(application, bytes.fromhex(secret), settings, task)
local = LocalShuffleService().create_shuffle_environment(context)
schema = pa.schema([("n", pa.int64())])
kind, subpartitions = PartitionKind.from_label(label), int(subpartitions)
shuffle = ShuffleDescriptor(PartitionId(DatasetId("job", 0), 0, 1), "local", kind, environment, address)
if role == "reader":
    owner = OwnerContext(AttemptId("job", 1, 0, 2), "reader", MetricGroup("r"))
    channels = (ChannelDescriptor(shuffle, 0, subpartitions),)
    (gate,) = local.create_input_gates(owner, [InputGateDescriptor(0, schema, channels)])
    gate.setup()
    rows = BlockingInput([gate], task)
    while (received := rows.next()) is not None:
        if isinstance(received.event, EndOfPartition):
            print("rows", received.event.rows, flush=True)
    gate.close()
else:
    owner = OwnerContext(AttemptId("job", 0, 0, 1), "writer", MetricGroup("w"))
    partition = PartitionDescriptor(DatasetId("job", 0), 0, kind, subpartitions)
    (made,) = local.create_result_partition_writers(owner, [ResultPartitionDescriptor(partition, shuffle, schema)])
    writer = BlockingWriter(made, task, owner.metrics)
    writer.setup()
    if int(limit):
        import signal
        sys.dont_write_bytecode = True  # an import would leave a compiled module behind that is cut off
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    batch = pa.RecordBatch.from_arrays([pa.array(range(1000), pa.int64())], schema=schema)
    try:
        for number in range(int(role)):
            writer.write(Split.whole(batch, number % subpartitions))
        if role == "2000":
            print("begun", flush=True)
            sys.stdin.read()
        writer.finish()
        print("finished", flush=True)
    except Exception as error:
        print("error", type(error).__name__, str(error), flush=True)
    writer.close()
task.close()
"""


def line(process: subprocess.Popen[str]) -> str:
    """The next line a task prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def kill(harness: LocalHarness, host: str) -> None:
    """End an environment process with SIGKILL, and nothing else."""
    ended = os.pidfd_open(harness.pid(host))
    os.kill(harness.pid(host), signal.SIGKILL)
    wait_for_end(ended)
