# SPDX-License-Identifier: Apache-2.0
"""Pre-training: corpora, tokenizers, packing, masking, objectives and their Trainer."""
