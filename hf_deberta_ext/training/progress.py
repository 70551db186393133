# SPDX-License-Identifier: Apache-2.0
"""Progress of a run: one bar with the time left for what takes long, and nothing for what does not."""

import functools

from huggingface_hub.utils import enable_progress_bars
from tqdm.auto import tqdm
from transformers import ProgressCallback
from transformers.trainer_utils import has_length
from transformers.utils import logging

__all__ = ["SECONDS", "RunProgress", "hide_short_bars"]

# What takes less has no bar.
SECONDS = 3


def hide_short_bars():
    """Let bars of `datasets` wait for `SECONDS`, and hide those of transformers for each file that it reads or writes."""
    from datasets.utils import tqdm as datasets_tqdm

    datasets_tqdm.__init__ = functools.partialmethod(datasets_tqdm.__init__, delay=SECONDS)
    logging.disable_progress_bar()
    # It hides those of downloads, too.
    enable_progress_bars()


class RunProgress(ProgressCallback):
    """Trainer's bar with the last loss in it; of what is logged, metrics of evaluations alone are printed."""

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        if state.is_world_process_zero and has_length(eval_dataloader):
            if self.prediction_bar is None:
                self.prediction_bar = tqdm(total=len(eval_dataloader), leave=False, delay=SECONDS, dynamic_ncols=True)
            self.prediction_bar.update(1)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs and self.training_bar is not None:
            self.training_bar.set_postfix(loss=f"{logs['loss']:.4g}")
        elif "train_runtime" not in logs:
            if self.prediction_bar is not None:
                # What is printed would draw it once more.
                self.prediction_bar.close()
                self.prediction_bar = None
            super().on_log(args, state, control, logs=logs, **kwargs)
