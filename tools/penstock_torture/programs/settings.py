# SPDX-License-Identifier: Apache-2.0
"""The settings that programs run under: most under the usual one, a part under each of the others.

The seed says which. Programs whose sessions are alike share one, so that a run opens few.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from penstock_torture.cluster import CONF as CLUSTER_CONF
from penstock_torture.programs.program import Shape

Conf = tuple[tuple[str, str], ...]

_PLAIN: Conf = (
    ("spark.sql.codegen.wholeStage", "false"),
    ("spark.sql.codegen.factoryMode", "NO_CODEGEN"),
    ("spark.python.daemon.module", "penstock.daemon"),
)
"""Small queries write and compile no Java; workers begin with everything imported."""

_BREAKING = """\
def breaking(marker, once):
    def broken(batches):
        import os
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if half and not (once and os.path.exists(marker)):
                open(marker, "w").close()
                raise RuntimeError("the source breaks off")
            yield batch.slice(half)
    return broken"""

_WIDENING = """\
def widening(batches):
    for batch in batches:
        rows = pa.array(np.repeat(np.arange(batch.num_rows), 1700))
        text = pa.array(["x" * 1000, "y" * 1000]).take(pa.array(np.arange(len(rows)) % 2))
        yield batch.select(["id"]).take(rows).append_column("wide", text)"""

_PROFILE = """\
from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests
profile = ResourceProfileBuilder().require(TaskResourceRequests().cpus(2)).build"""


_USUAL = Shape()


@dataclass(frozen=True, slots=True)
class Setting:
    """`threads` programs at once; `lasting` is False where each program has a session of its own."""

    weight: int
    master: str = "local[4]"
    conf: Conf = _PLAIN
    shape: Shape = _USUAL
    threads: int = 1
    lasting: bool = True
    interrupt: bool = False
    accelerated: bool = False


def _breaking(*, once: bool) -> Shape:
    source = f"{{d}}.mapInArrow(breaking(folder + '/{{side}}-{{d}}', {once}), {{d}}.schema)"
    rows = (20, 60, 200, 1000)
    said = "the source breaks off"
    return Shape(rows, odd=0.0, partitions=(4,), prelude=_BREAKING, source=source, said=said)


_LARGE = Shape(
    (80,),
    odd=0.0,
    steps=2,
    prelude=_WIDENING,
    source="{d}.mapInArrow(widening, 'id long, wide string')",
    scratch_megabytes=64,
)
_HUGE = Shape(
    (1, 2),
    steps=0,
    source="""{d}.selectExpr("id", "repeat('x', 1000000) AS wide", "sequence(1, 2200) AS l")""",
    last=(
        "{s}.explode('l').select('id', 'length(wide) AS n', 'l')",
        "{d}.select('id', 'wide', F.explode('l').alias('l')).selectExpr('id', 'length(wide) AS n', 'l')",
    ),
)


_CLUSTER: Conf = (*_PLAIN, *((key, value) for key, value in CLUSTER_CONF.items() if key != "spark.master"))

SETTINGS: dict[str, Setting] = {
    "usual": Setting(50),
    "names": Setting(8, shape=Shape(odd=0.7, twins=True)),
    "generated": Setting(6, conf=()),
    "fresh-workers": Setting(5, conf=(*_PLAIN, ("spark.python.worker.reuse", "false"))),
    "tcp": Setting(5, conf=(*_PLAIN, ("spark.python.unix.domain.socket.enabled", "false"))),
    "two-cpus": Setting(4, "local[8]", (*_PLAIN, ("spark.task.cpus", "2"))),
    "one-failure": Setting(4, "local[4, 1]", (*_PLAIN, ("spark.task.maxFailures", "1"))),
    "threads": Setting(6, threads=6),
    "breaks": Setting(4, "local[4, 4]", shape=_breaking(once=False)),
    "breaks-once": Setting(4, "local[4, 4]", shape=_breaking(once=True)),
    "cluster": Setting(5, CLUSTER_CONF["spark.master"], _CLUSTER),
    "resources": Setting(
        2,
        CLUSTER_CONF["spark.master"],
        _CLUSTER,
        Shape(prelude=_PROFILE, last=("{s}.rebalance(1, mode='hybrid').withResources(profile)", "{d}")),
    ),
    "restarts": Setting(2, lasting=False),
    "interrupt": Setting(1, lasting=False, interrupt=True),
    "large": Setting(1, shape=_LARGE),
    "huge": Setting(0, shape=_HUGE),
    "accelerated": Setting(0, shape=Shape(odd=0.05), accelerated=True),
}
"""`accelerated` runs PySpark's text alone, with and without acceleration, and only when it is asked for.

`large` has batches of about 34 MB. `huge`, which runs only when it is asked for, makes 2.2 GB of one row."""


def setting_of(seed: int) -> str:
    """The setting of a seed."""
    weights = [setting.weight for setting in SETTINGS.values()]
    return random.Random(f"setting {seed}").choices(list(SETTINGS), weights)[0]  # noqa: S311 - nothing secret
