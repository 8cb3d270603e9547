# SPDX-License-Identifier: Apache-2.0
"""When a job is over, and what may be freed before."""
