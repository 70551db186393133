# SPDX-License-Identifier: Apache-2.0
"""Features of models that remote code does not have: reading and joining official checkpoints, checking adapters."""
