# SPDX-License-Identifier: Apache-2.0
"""Conversion between official, stock and our own checkpoints."""
