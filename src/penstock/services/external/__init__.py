# SPDX-License-Identifier: Apache-2.0
"""The `external` service: blocking partitions that the host service keeps (`penstock service external`).

So they outlive executors and their environments. Nothing but the service is re-exported: drivers need its master,
tasks its environment.
"""

from penstock.services.external.service import ExternalShuffleService

__all__ = ["ExternalShuffleService"]
