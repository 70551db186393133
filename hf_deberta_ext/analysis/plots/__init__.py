# SPDX-License-Identifier: Apache-2.0
"""Figures: curves of Trainer runs, scores, the similarity of word embeddings, and what a model makes of a text.

Every function writes to `path`, a path or a list of them, and returns it: the suffix decides the format (.png, .svg, .pdf),
and several paths get the same figure. Without matplotlib they raise ImportError. Colours can be told apart by colour-blind
readers, and neither pyplot's state nor matplotlib's settings are changed.
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
