# SPDX-License-Identifier: Apache-2.0
"""Progress bars: one for a training, none for short work."""

from datasets import Dataset
from datasets.utils import tqdm
from toy_task import run
from transformers.utils import logging

from hf_deberta_ext.training.progress import hide_short_bars


def test_short_work_shows_the_training_alone(folder_of, tmp_path, capfd, monkeypatch):
    """Each file that was read or written, and each tokenising, had a bar; each log had a line of raw numbers."""
    monkeypatch.setattr(tqdm, "__init__", tqdm.__init__)
    shown = logging.is_progress_bar_enabled()
    hide_short_bars()
    wrapped = vars(tqdm)["__init__"]
    hide_short_bars()
    # Once in a process, not for each of its command lines.
    assert vars(tqdm)["__init__"] is wrapped
    try:
        Dataset.from_dict({"x": [1, 2]}).map(lambda row: row, desc="short")
        run(
            folder_of("ours"), tmp_path / "run", "--do_train", "--do_eval", disable_tqdm="false", eval_strategy="steps",
            eval_steps=2,
        )  # fmt: skip
    finally:
        (logging.enable_progress_bar if shown else logging.disable_progress_bar)()
    printed = capfd.readouterr()
    bars = {
        line.partition("%|")[0].strip(" 0123456789") for line in printed.err.replace("\r", "\n").splitlines() if "%|" in line
    }
    assert bars == {""} and "4/4" in printed.err and "loss=" in printed.err
    logged = [line for line in printed.out.splitlines() if line.startswith("{")]
    assert len(logged) == 2 and all("eval_accuracy" in line for line in logged)
    assert f"{tmp_path / 'run'} holds the model, its tokenizer and its card; the .py files load it" in printed.out
