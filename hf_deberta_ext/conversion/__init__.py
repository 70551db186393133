# SPDX-License-Identifier: Apache-2.0
"""Conversion between checkpoints of Microsoft, of transformers and of this package."""
