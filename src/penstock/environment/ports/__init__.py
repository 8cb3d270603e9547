# SPDX-License-Identifier: Apache-2.0
"""A task's open ends on the environment's side: input gates and writers."""
