# SPDX-License-Identifier: Apache-2.0
"""What models can do in the package and not as remote code: read official checkpoints, join them, watch over adapters."""
