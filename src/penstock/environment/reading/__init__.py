# SPDX-License-Identifier: Apache-2.0
"""Files read for readers on other hosts: their order, their memory, their chunks."""
