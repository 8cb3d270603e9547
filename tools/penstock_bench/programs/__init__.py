# SPDX-License-Identifier: Apache-2.0
"""Small programs as people write them, each in PySpark alone and with Penstock, with the rows they work on."""
