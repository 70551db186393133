# SPDX-License-Identifier: Apache-2.0
"""Remote-code files: a flat folder; every file but this one is copied into a saved checkpoint, byte for byte."""
