# SPDX-License-Identifier: Apache-2.0
"""Figures: curves of Trainer runs, scores, the similarity of word embeddings, and what a model makes of a text.

The ending of a path decides the format (.png, .svg, .pdf); several paths get the same figure. Colours can be told apart by
colour-blind readers, and neither pyplot's state nor matplotlib's settings are changed.
"""

from .attention import plot_attention, plot_position_profile
from .curves import metric_label, plot_curves
from .scores import plot_comparison, plot_embedding_similarity, plot_minimal_pairs
from .tokens import plot_replacement_probabilities, readable_tokens

__all__ = [
    "metric_label",
    "plot_attention",
    "plot_comparison",
    "plot_curves",
    "plot_embedding_similarity",
    "plot_minimal_pairs",
    "plot_position_profile",
    "plot_replacement_probabilities",
    "readable_tokens",
]
