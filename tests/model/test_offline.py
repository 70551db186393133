# SPDX-License-Identifier: Apache-2.0
"""Every training script on local files, without network and without the packages that download metrics."""

import json
import socket
import sys

import pytest
import torch
from scripts import module_of

from hf_deberta_ext import DebertaExtConfig, DebertaExtForMaskedLM
from hf_deberta_ext.pretraining import train_tokenizer

for package in ("accelerate", "datasets", "matplotlib", "sentencex"):
    pytest.importorskip(package)

TEXT = "Ada wrote the first program . Bob reads a long book in the garden . They like it ."
QUESTION = dict(id="q", question="who wrote it", context=TEXT, answers=dict(text=["Ada"], answer_start=[0]))
ROWS = {
    "run_glue": [dict(sentence="a fine book", label=1), dict(sentence="a poor book", label=0)],
    "run_superglue": [dict(question="is it long", passage=TEXT, label=n, idx=n) for n in (0, 1)],
    "run_squad": [QUESTION, QUESTION | dict(id="r")],
    "run_race": [dict(article=TEXT, question="Who ?", options=["Ada", "Bob"], answer=answer) for answer in "AB"],
    "run_ner": [dict(tokens=["Ada", "reads"], ner_tags=["B-PER", "O"]), dict(tokens=["Bob"], ner_tags=["B-PER"])],
}
MORE = {"run_superglue": ["--task_name", "boolq"], "run_race": ["--task_name", "race"]}
SHAPE = dict(
    hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, max_position_embeddings=64,
    position_buckets=8,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Create a tiny model with its tokenizer, and the files of each script."""
    folder = tmp_path_factory.mktemp("offline")
    tokenizer = train_tokenizer("unigram", [TEXT, "a fine or poor book ? is it long , who wrote it"] * 3, 60)
    torch.manual_seed(0)
    config = DebertaExtConfig(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **SHAPE)
    DebertaExtForMaskedLM(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    for name, rows in ROWS.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (folder / "text.txt").write_text("\n\n".join([TEXT] * 8), encoding="utf-8")
    return folder


@pytest.mark.parametrize("script", [*ROWS, "run_mlm", "run_rtd"])
def test_every_script_runs_without_network_and_metric_packages(script, folder, tmp_path, monkeypatch):
    for package in ("evaluate", "seqeval"):
        monkeypatch.setitem(sys.modules, package, None)

    asked = []

    def refuse(*args, **kwargs):
        # Recorded, because callers may catch the error.
        asked.append(args)
        raise OSError(f"the network was asked for: {args}")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    output, file = tmp_path / "run", str(folder / f"{script}.jsonl")
    argv = ["--model_name_or_path", str(folder / "model"), "--output_dir", str(output), "--max_steps", "1"]
    argv += ["--report_to", "none", "--disable_tqdm", "true", "--save_strategy", "no"]
    argv += ["--cache_dir", str(tmp_path / "cache")]
    if script in ROWS:
        argv += ["--do_train", "--do_eval", "--do_predict", "--train_file", file, "--validation_file", file]
        argv += ["--test_file", file, *MORE.get(script, [])]
    else:
        argv += ["--train_data", str(folder / "text.txt"), "--validation_documents", "2", "--max_length", "32"]
    module_of(script).main(argv)
    assert asked == []
    results = json.loads((output / "all_results.json").read_text(encoding="utf-8"))
    assert "eval_loss" in results or "eval_f1" in results or "eval_mlm_loss" in results
    assert (output / "model.safetensors").is_file() and (output / "README.md").is_file()
