# SPDX-License-Identifier: Apache-2.0
"""The `local` service: data stays with the environment process of its producer's host, and dies with it.

Nothing but the service is re-exported: drivers need its master, tasks its environment.
"""

from penstock.services.local.service import LocalShuffleService

__all__ = ["LocalShuffleService"]
