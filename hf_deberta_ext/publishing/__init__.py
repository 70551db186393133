# SPDX-License-Identifier: Apache-2.0
"""Publishing on the Hub: a push that looks before it sends, what it checks, and model cards."""

from .card import write_model_card
from .card_checks import card_problems
from .changes import FileChange, PushReport
from .folder_checks import check_folder
from .push import push
from .transfer import PushError

__all__ = ["FileChange", "PushError", "PushReport", "card_problems", "check_folder", "push", "write_model_card"]
