# SPDX-License-Identifier: Apache-2.0
"""A standalone cluster of Spark on loopback: a Master and one Worker, each in a process of its own.

The Worker has Spark's shuffle service in it, as `spark.shuffle.service.enabled` makes it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil
import pyspark

from ess_process import free_port, java_command
from penstock.testing import DEADLINE
from penstock.testing.waiting import wait_until
from underway import below

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"


class StandaloneCluster:
    """The cluster; `worker` may be killed and started again, which takes its executors along."""

    def __init__(self, folder: Path, cores: int) -> None:
        self.folder = folder
        self.local = folder / "local"
        self.local.mkdir(parents=True)
        self.shuffle_port = free_port()
        port = free_port()
        self.url = f"spark://127.0.0.1:{port}"
        self._cores = cores
        self._logs: dict[str, Path] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        master = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        self._start("master", _MASTER, [], master, "I have been elected leader")
        self.start_worker()

    def start_worker(self) -> None:
        """Start the Worker, and wait until the Master knows it."""
        conf = {
            "spark.shuffle.service.enabled": "true",
            "spark.shuffle.service.port": str(self.shuffle_port),
            "spark.local.dir": str(self.local),
            "spark.worker.cleanup.enabled": "true",
        }
        options = [f"-D{key}={value}" for key, value in conf.items()]
        where = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", str(self._cores), "--memory", "2g"]
        arguments = [*where, "--work-dir", str(self.folder / "work"), self.url]
        self._start("worker", _WORKER, options, arguments, "Successfully registered with master")

    def kill_worker(self) -> None:
        """Kill the Worker, and the shuffle service in it; its executors end by themselves."""
        worker = self._processes.pop("worker")
        executors = below(worker.pid)
        worker.kill()
        worker.wait(DEADLINE)
        psutil.wait_procs(executors, DEADLINE)

    def executors(self) -> list[psutil.Process]:
        """The executors' Java processes."""
        return below(self._processes["worker"].pid, "CoarseGrainedExecutorBackend")

    def close(self) -> None:
        """End all of it; idempotent."""
        for name in ("worker", "master"):
            process = self._processes.pop(name, None)
            if process is None:
                continue
            children = below(process.pid)
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(DEADLINE)
            for child in children:
                if child.is_running():
                    child.kill()
            psutil.wait_procs(children, DEADLINE)

    def _start(self, name: str, main: str, options: Sequence[str], arguments: Sequence[str], word: str) -> None:
        log = self._logs[name] = self.folder / f"{name}-{len(self._logs)}.log"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("SPARK_")}
        environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(Path(pyspark.__file__).parent)}
        environment["SPARK_SCALA_VERSION"] = "2.13"  # as Spark's start scripts set it; any value will do
        environment["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        with log.open("wb") as output:
            self._processes[name] = subprocess.Popen(
                [*java_command(), "-Dspark.log.level=INFO", *options, main, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                cwd=self.folder,
            )

        def is_up() -> bool:
            assert self._processes[name].poll() is None, log.read_text()[-3000:]
            return word in log.read_text(errors="replace")

        wait_until(is_up, f"the {name} to say {word!r}: {log}")
