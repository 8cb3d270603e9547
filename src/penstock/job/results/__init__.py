# SPDX-License-Identifier: Apache-2.0
"""What stands behind the lazy DataFrames: results that are made when somebody opens them, and made again."""
