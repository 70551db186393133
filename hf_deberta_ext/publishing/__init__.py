# SPDX-License-Identifier: Apache-2.0
"""Publishing on the Hub: push with checks before it, and model cards."""

from .card import write_model_card
from .card_checks import card_problems
from .folder_checks import check_folder
from .hub_commit import FileChange
from .hub_requests import PushError
from .push import PushReport, push

__all__ = ["FileChange", "PushError", "PushReport", "card_problems", "check_folder", "push", "write_model_card"]
