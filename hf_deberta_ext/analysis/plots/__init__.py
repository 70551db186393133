# SPDX-License-Identifier: Apache-2.0
"""Figures: curves of Trainer runs, scores, similarity of word embeddings, attention and influence of tokens.

Every function writes the figure to `path`, a path or a list of paths, and returns `path`. The suffix of a path sets the
format (.png, .svg, .pdf). An ImportError is raised if matplotlib is not installed. Colour-blind readers can distinguish the
colours. The state of pyplot and the settings of matplotlib do not change.
"""

from .attention import plot_attention, plot_position_profile
from .curves import metric_label, plot_curves
from .scores import plot_comparison, plot_embedding_similarity, plot_minimal_pairs
from .tokens import plot_influence, plot_replacement_probabilities, readable_tokens

__all__ = [
    "metric_label",
    "plot_attention",
    "plot_comparison",
    "plot_curves",
    "plot_embedding_similarity",
    "plot_influence",
    "plot_minimal_pairs",
    "plot_position_profile",
    "plot_replacement_probabilities",
    "readable_tokens",
]
