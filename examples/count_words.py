# SPDX-License-Identifier: Apache-2.0
"""Words of text files, counted through an exchange on Spark: `python examples/count_words.py --demo`, or PATHs.

The package beside this file has what the tasks run. Spark's workers cannot import it, so it travels with the
functions (`register_pickle_by_value`): this works on a cluster, too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pyspark import cloudpickle

import wordcount
from penstock.cli import run_command
from wordcount.command import WordcountOptions, run_wordcount


def main(arguments: Sequence[str] | None = None) -> int:
    """Count and report; the exit code."""
    return run_command(parser(), arguments)


def parser() -> argparse.ArgumentParser:
    """The whole grammar."""
    parser = argparse.ArgumentParser(prog="count_words.py", description="Count words of text files on Spark.")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="text files, and folders of them")
    parser.add_argument("--demo", action="store_true", help="the text and source files of this Python")
    parser.add_argument("--partitions", type=int, metavar="N", help="consumers of the exchange")
    parser.add_argument("--top", type=int, default=20, metavar="K", help="how many words to show (20)")
    parser.add_argument("--verify", action="store_true", help="count again in plain Python, and compare")
    parser.add_argument("--compare", action="store_true", help="also time Spark's JVM on the same text")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=_run, parser=parser)
    return parser


def _run(options: argparse.Namespace) -> int:
    if options.demo == bool(options.paths):
        options.parser.error("give paths, or --demo" if not options.paths else "give paths or --demo, not both")
    if options.top < 0 or (options.partitions is not None and options.partitions < 1):
        options.parser.error("--top is a number from 0 on, --partitions one from 1 on")
    cloudpickle.register_pickle_by_value(wordcount)
    return run_wordcount(
        WordcountOptions(
            tuple(options.paths),
            options.partitions,
            options.top,
            options.verify,
            options.json,
            options.demo,
            options.compare,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
