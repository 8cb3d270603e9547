# SPDX-License-Identifier: Apache-2.0
"""The results behind the lazy DataFrames: they are made when somebody opens them, and made again."""
