# SPDX-License-Identifier: Apache-2.0
"""Publishing on the Hub: a push that looks before it sends, what it checks, and model cards."""

from .changes import FileChange, PushReport
from .folder_checks import check_folder
from .model_card import card_problems, write_model_card
from .push import push
from .transfer import PushError

__all__ = ["FileChange", "PushError", "PushReport", "card_problems", "check_folder", "push", "write_model_card"]
