# SPDX-License-Identifier: Apache-2.0
"""`python -m penstock_torture`: random jobs, and random harm done to them, from a seed.

Every case has one of two endings that are right: the right rows, or a clear error where harm was done. Wrong rows,
an error without harm, a case that does not end, and anything that is left at the end are failures. Case n of seed s
is the same job with the same harm in every run; only when the harm strikes depends on the machine. Beside these there
are the kill grid (`grid`), which kills in every phase of one job, and the TPC-H example with a kill in each run.
"""

from penstock_torture.command import TortureOptions, torture

__all__ = ["TortureOptions", "torture"]
