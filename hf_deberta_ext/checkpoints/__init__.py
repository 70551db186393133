# SPDX-License-Identifier: Apache-2.0
"""Model features that remote code (`trust_remote_code`) lacks: official checkpoints, joining of two models, adapters."""
