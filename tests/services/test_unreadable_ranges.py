# SPDX-License-Identifier: Apache-2.0
"""A gate whose only channel can't be read says why, whichever service it is of, and never that it has ended."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import PartitionError
from penstock.services.objects.environment import ObjectEnvironment
from penstock.services.remote.environment import RemoteEnvironment
from penstock.settings import Settings
from penstock.shuffle import (
    AttemptId,
    ChannelDescriptor,
    InputGateDescriptor,
    OwnerContext,
    ShuffleDescriptor,
    ShuffleEnvironmentContext,
)
from penstock.shuffle.ids import DatasetId, PartitionId
from penstock.shuffle.kinds import PartitionKind
from penstock.shuffle.metrics import MetricGroup
from penstock.testing.memory_host import MemoryHost

PARTITION = PartitionId(DatasetId("job", 1), 0, 0)
SCHEMA = pa.schema([("k", pa.int64())])


@pytest.mark.parametrize("service", ["objects", "remote"])
def test_a_gate_whose_only_channel_is_none_does_not_end(service: str, tmp_path: Path) -> None:
    """Of four subpartitions the tenth is asked for: each poll raises it, and a caller that asks first polls."""
    settings = Settings.from_conf(
        {
            "spark.penstock.objects.uri": str(tmp_path),
            "spark.penstock.remote.manager": "127.0.0.1:1",
            "spark.penstock.access.user": "u",
        }
    )
    context = ShuffleEnvironmentContext("app", b"a secret of an application", settings, MemoryHost("a"))
    environment = (ObjectEnvironment if service == "objects" else RemoteEnvironment)(context)
    source = ShuffleDescriptor(PARTITION, service, PartitionKind.BLOCKING_SORT_MERGE, location="4/4")
    owner = OwnerContext(AttemptId("job", 2, 0, 0), "reader", MetricGroup("reader"))
    gates = environment.create_input_gates(owner, [InputGateDescriptor(1, SCHEMA, (ChannelDescriptor(source, 9),))])
    (gate,) = gates
    gate.setup()
    assert not gate.is_ended
    for _ in range(2):
        with pytest.raises(PartitionError, match="can't be read: subpartitions 9 to 9 were asked for"):
            gate.poll()
    gate.close()
    environment.close()
