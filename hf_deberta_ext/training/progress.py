# SPDX-License-Identifier: Apache-2.0
"""Progress bars: those of libraries for what takes long alone."""

import functools
import sys

from huggingface_hub.utils import enable_progress_bars
from transformers.utils import logging

__all__ = ["SECONDS", "hide_short_bars"]

# What takes less has no bar.
SECONDS = 3


def hide_short_bars():
    """Let bars of `datasets` wait for `SECONDS`, and hide those of transformers for each file that it reads or writes."""
    # Trainer imports it; a preparation does without, and it takes 130 MB in the process that waits.
    if "datasets" in sys.modules:
        from datasets.utils import tqdm as datasets_tqdm

        # Several command lines of one process would wrap it again and again.
        if not isinstance(vars(datasets_tqdm).get("__init__"), functools.partialmethod):
            datasets_tqdm.__init__ = functools.partialmethod(datasets_tqdm.__init__, delay=SECONDS)
    logging.disable_progress_bar()
    # It hides those of downloads, too.
    enable_progress_bars()
