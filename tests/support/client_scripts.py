# SPDX-License-Identifier: Apache-2.0
"""Programs of a client in a process of its own: they get where to connect as JSON, and say what they did."""

from __future__ import annotations

ROUND_TRIP = """
import importlib.util, json, pickle, sys
assert importlib.util.find_spec("pyspark") is None, "PySpark is here"
import pyarrow as pa
from penstock import client
where = json.loads(sys.argv[1])
schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
rows = pa.record_batch([pa.array(range(1000)), pa.array([str(n) for n in range(1000)])], schema=schema)
with client.connect(where.pop("address"), **where) as service:
    with service.write("round trip", schema, partitions=2) as writer:
        writer.write(rows.slice(0, 600), partition=0)
        writer.write(rows.slice(600), partition=1)
    table = service.read("round trip").read_all()
    with service.write_part(schema, subpartitions=4, keys=["id"]) as part:
        part.write(rows)
    found = [service.read_parts([part.finish()], number).read_all() for number in range(4)]
assert sorted(table["id"].to_pylist()) == list(range(1000))
assert sorted(n for each in found for n in each["id"].to_pylist()) == list(range(1000))
assert not [name for name in sys.modules if name.split(".")[0] in ("pyspark", "py4j", "pandas")]
print("ok", [each.num_rows for each in found])
"""

HALF_WRITTEN = """
import json, sys
import pyarrow as pa
from penstock import client
where = json.loads(sys.argv[1])
service = client.connect(where.pop("address"), **where)
writer = service.write_part(pa.schema([("id", pa.int64())]))
for _ in range(40):
    writer.write(pa.record_batch([pa.array(range(200_000), pa.int64())], ["id"]))
print("half", flush=True)
sys.stdin.read()
"""

JOINED = """
import pickle, sys
import pyarrow as pa
from penstock import client
access = pickle.loads(bytes.fromhex(sys.argv[1]))
with client.join(access) as service:
    with service.write_part(pa.schema([("id", pa.int64())])) as writer:
        writer.write(pa.record_batch([pa.array([1, 2, 3])], ["id"]))
    print(pickle.dumps(writer.finish()).hex())
"""

PACED = """
import json, sys
import pyarrow as pa
from penstock import client
where = json.loads(sys.argv[1])
schema = pa.schema([("id", pa.int64())])
rows = total = 0
with client.connect(where.pop("address"), **where) as service:
    with service.write_part(schema) as writer:
        for turn in range(64):
            writer.write(pa.record_batch([pa.array(range(turn << 16, (turn + 1) << 16), pa.int64())], schema=schema))
            print("writing", flush=True)
    for batch in service.read_parts([writer.finish()]):
        rows += batch.num_rows
        total += sum(batch.column(0).to_pylist())
        print("reading", flush=True)
assert (rows, total) == (64 << 16, sum(range(64 << 16))), (rows, total)
"""

COME_AND_GO = """
import json, sys
import pyarrow as pa
from penstock import client
where = json.loads(sys.argv[1])
address, times = where.pop("address"), where.pop("times", 1)
for _ in range(times):
    with client.connect(address, **where) as service:
        with service.write_part(pa.schema([("id", pa.int64())]), subpartitions=4, keys=["id"]) as writer:
            for turn in range(8):
                writer.write(pa.record_batch([pa.array(range(turn << 16, (turn + 1) << 16), pa.int64())], ["id"]))
        part = writer.finish()
        assert sum(service.read_parts([part], n).read_all().num_rows for n in range(4)) == 8 << 16
"""
