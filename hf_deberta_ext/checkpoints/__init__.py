# SPDX-License-Identifier: Apache-2.0
"""Features that models have in this package, but not in remote code (`trust_remote_code`).

Examples: load checkpoints of Microsoft or of transformers' DeBERTa classes, join two models, save heads with adapters."""
