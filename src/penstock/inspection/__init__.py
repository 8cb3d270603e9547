# SPDX-License-Identifier: Apache-2.0
"""`penstock checkpoints`: what lies at a checkpoint location or in a savepoint, whether it is whole, and its end."""
