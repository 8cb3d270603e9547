# SPDX-License-Identifier: Apache-2.0
"""The `spark_ess` service: blocking partitions are files that Spark's own external shuffle service gives to readers.

So they outlive executors, in any cluster that runs that service (standalone Workers, YARN's NodeManagers), which
stays as it is. Nothing but the service is re-exported: drivers need its master, tasks its environment.
"""

from penstock.services.spark_ess.service import SparkEssShuffleService

__all__ = ["SparkEssShuffleService"]
