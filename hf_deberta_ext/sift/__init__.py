# SPDX-License-Identifier: Apache-2.0
"""SiFT, scale-invariant fine-tuning (DeBERTa, He et al. 2021, section 5.2), for any transformers model."""

from .perturbation import PRESETS, Sift, SiftOptions, SiftOutput, embedding_norm
from .trainer import SiftArguments, SiftTrainer

__all__ = ["PRESETS", "Sift", "SiftArguments", "SiftOptions", "SiftOutput", "SiftTrainer", "embedding_norm"]
