# SPDX-License-Identifier: Apache-2.0
"""The command line: `python -m penstock_lab`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.cli import run_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Watch flow control; the exit code."""
    return run_command(parser(), arguments)


def parser() -> argparse.ArgumentParser:
    """The whole grammar."""
    text = "One stopped or slowed consumer under credit, TCP's window and Storm's throttle: figures, and a report."
    lab = argparse.ArgumentParser(
        prog="penstock_lab", description=text, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    lab.add_argument("--out", default="lab-report", metavar="DIR", help="the folder of the report")
    lab.add_argument("--schemes", default="credit,tcp,throttle", metavar="NAMES", help="flow controls to run")
    lab.add_argument("--scenarios", default="A,B", metavar="NAMES", help="A: one is stopped; B: one is slowed")
    lab.add_argument("--seconds", type=float, default=6.0, metavar="S", help="measured in each run")
    lab.add_argument("--rate", type=float, default=1000.0, metavar="N", help="batches per second, for each consumer")
    lab.add_argument("--slowdown", type=float, default=10.0, metavar="N", help="the slow consumer takes 1/N")
    lab.add_argument("--segment", default="16k", metavar="SIZE", help="of a buffer, which one batch fills")
    lab.add_argument("--socket-buffer", default="128k", metavar="SIZE", help="of each socket, in each direction")
    lab.add_argument("--exclusive", type=int, default=2, metavar="N", help="buffers of each channel")
    lab.add_argument("--floating", type=int, default=8, metavar="N", help="buffers of each gate")
    lab.add_argument("--queue", type=int, default=64, metavar="N", help="buffers of a gate under throttle")
    lab.add_argument(
        "--coordinator",
        default="",
        metavar="NAME",
        help="of throttle, as module:attribute@address",
    )
    lab.add_argument("--json", action="store_true", help="print the JSON instead of tables")
    lab.set_defaults(run=_lab, parser=lab)
    return lab


def _lab(options: argparse.Namespace) -> int:
    from penstock_lab.command import run_backpressure
    from penstock_lab.options import lab_options

    return run_backpressure(lab_options(vars(options)), Path(options.out), json=options.json)


if __name__ == "__main__":
    sys.exit(main())
