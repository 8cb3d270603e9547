# SPDX-License-Identifier: Apache-2.0
"""A cluster of processes whose environments reach the JobMaster through a proxy that a test cuts."""

from __future__ import annotations

from pathlib import Path

from cuttable_proxy import CuttableProxy
from penstock.job.core.result import FinishedJob
from penstock.job.shell.master import JobHandle
from penstock_torture import gates as gated
from penstock_torture.gates import Gates
from penstock_torture.process_launcher import Nursery
from process_cluster import ProcessCluster


class CutCluster:
    """Two executors."""

    def __init__(self, nursery: Nursery, lease: str = "20s", service: str = "local") -> None:
        self.proxy: CuttableProxy
        conf = {"spark.penstock.environment.leaseTimeout": lease, "spark.penstock.shuffle.service": service}
        self.cluster = ProcessCluster(nursery, conf=conf, through=self._through)

    def reach(self, folder: Path, mode: str, phase: str) -> tuple[Gates, JobHandle]:
        """A job of this mode in this phase: its gates, and its handle."""
        gates = Gates(str(folder))
        handle = self.cluster.submit(gated.stream(gates, mode))

        def has_ended(place: str) -> bool:
            name = f"/v{'pc'.index(place[0])}.{place[1]}#"
            return any(name in entry for entry in self.cluster.trace(handle.job, "task_finished"))

        gates.reach(phase, mode, has_ended)
        return gates, handle

    def check(self, finished: FinishedJob, *, restarts: bool = False) -> None:
        """The rows are right, and tasks ran again only where they had to."""
        again = [name for _, name, _ in finished.result.trace if name in ("restart", "task_restarted")]
        assert bool(again) == restarts, again
        found = self.cluster.read(finished, gated.rows().schema)
        assert found.sort_by("id").equals(gated.rows().sort_by("id").combine_chunks())

    def close(self) -> None:
        """End everything."""
        self.proxy.mend()
        self.cluster.close()
        self.proxy.close()

    def _through(self, address: str) -> str:
        self.proxy = CuttableProxy(address)
        return self.proxy.address
