# SPDX-License-Identifier: Apache-2.0
"""Write model cards, and publish models on the Hub."""

from .card import write_model_card
from .push import PushReport, push

__all__ = ["PushReport", "push", "write_model_card"]
