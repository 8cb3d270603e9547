# SPDX-License-Identifier: Apache-2.0
"""The processor seconds of a test count what its processes took, those that have ended too."""

from __future__ import annotations

import subprocess
import sys

from processor import Processor

ROUNDING = 0.05
"""Seconds: the kernel counts each process in hundredths, and sums of such floats differ in their last digit."""

BUSY = "import time\nwhile time.process_time() < 0.3: pass\n"


def test_own_ended_and_living_processes_count() -> None:
    """A child that has ended counts, one that waits counts, and no time is lost or counted twice at its end."""
    processor = Processor()
    before = processor.seconds()
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    ended = processor.seconds()
    assert ended - before >= 0.25
    with subprocess.Popen(
        [sys.executable, "-c", BUSY + "print(flush=True)\ninput()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        lives = processor.seconds()
        assert lives - ended >= 0.25
        child.communicate(b"\n")
    assert lives - ROUNDING <= processor.seconds() < lives + 1
