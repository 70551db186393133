# SPDX-License-Identifier: Apache-2.0
"""Abilities of models that remote code has not: read official checkpoints, join them, watch over adapters."""
