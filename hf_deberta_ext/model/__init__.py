# SPDX-License-Identifier: Apache-2.0
"""The model in four files, which are copied unchanged into every saved checkpoint."""
