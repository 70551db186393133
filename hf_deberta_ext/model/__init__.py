# SPDX-License-Identifier: Apache-2.0
"""The flat folder that travels to the Hub: every file beside this one is copied into a saved checkpoint, byte for byte."""
