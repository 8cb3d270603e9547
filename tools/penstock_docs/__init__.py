# SPDX-License-Identifier: Apache-2.0
"""The parts of the pages that a command makes."""
