# SPDX-License-Identifier: Apache-2.0
"""Runs of the fine-tuning scripts on made files: a tiny model, the flags, and the one line of a refused run."""

import json

import pytest

from hf_deberta_ext import DebertaExtForMaskedLM

__all__ = ["read_json", "refused", "run", "save_model", "write_lines"]


def save_model(folder, tokenizer, config):
    """The folder of a masked language model with random weights and its tokenizer."""
    DebertaExtForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run(script, model, folder, *flags, **values):
    """Metrics of a run of two steps; a value of a flag may be a list."""
    values = dict(
        model_name_or_path=model, output_dir=folder, per_device_train_batch_size=4, max_steps=2, learning_rate=5e-3,
        report_to="none", disable_tqdm="true", save_strategy="no",
    ) | values  # fmt: skip
    pairs = [(f"--{name}", *(value if isinstance(value, list) else [value])) for name, value in values.items()]
    return script.main([str(word) for pair in pairs for word in pair] + [*flags])


def refused(capsys, script, model, folder, *flags, **values):
    """The line with which a run ends that is refused before it writes anything."""
    with pytest.raises(SystemExit) as ended:
        run(script, model, folder, *flags, **values)
    lines = [line for line in capsys.readouterr().err.splitlines() if ": error: " in line]
    assert ended.value.code == 2 and len(lines) == 1 and not folder.exists()
    return lines[0]


def write_lines(file, rows):
    """A .jsonl file."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def read_json(file):
    return json.loads(file.read_text(encoding="utf-8"))
