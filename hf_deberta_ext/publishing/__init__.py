# SPDX-License-Identifier: Apache-2.0
"""Publishing on the Hub: model cards, and a push of the files of a model."""

from .card import write_model_card
from .push import PushReport, push

__all__ = ["PushReport", "push", "write_model_card"]
