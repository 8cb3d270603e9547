# SPDX-License-Identifier: Apache-2.0
"""Numbers on the command lines of the tools."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """A whole number from one on."""
    value = natural(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 on")
    return value


def natural(text: str) -> int:
    """A whole number from zero on; underscores are fine."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number")
    return value
