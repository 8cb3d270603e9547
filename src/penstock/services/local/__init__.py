# SPDX-License-Identifier: Apache-2.0
"""The `local` service: data stays with the environment process of its producer's host, and dies with it."""

from penstock.services.local.attachment import Attachment, attach
from penstock.services.local.launch import EnvironmentLaunch
from penstock.services.local.service import LocalShuffleService

__all__ = ["Attachment", "EnvironmentLaunch", "LocalShuffleService", "attach"]
