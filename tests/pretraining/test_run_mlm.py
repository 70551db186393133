# SPDX-License-Identifier: Apache-2.0
"""Test examples/run_mlm.py end to end: output files, exact resume, and early errors."""

import json
import re
import shutil

import mlm_script
import pytest
from left_by_kills import losses
from mlm_script import TINY, arguments, assert_refused, assert_same_weights, copy_checkpoint, parted
from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline

from hf_deberta_ext.commands import main
from hf_deberta_ext.pretraining import train_tokenizer
from hf_deberta_ext.pretraining.trainer import TargetTrainer

text = mlm_script.text


@pytest.fixture(scope="module")
def finished(run_mlm, text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "three"
    flags = dict(packing="segment_pair", masking="span", sop_weight=1, sbo_weight=1, eval_strategy="steps", eval_steps=2)
    run_mlm.main(arguments(text, folder, **flags))
    return folder


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("objective", ["mlm", "rtd"])
def test_the_command_is_the_script(objective, text, tmp_path, capsys):
    argv = ["pretrain", objective, *arguments(text, tmp_path / "run", max_steps=1)]
    assert main(argv) == 0
    assert (tmp_path / "run" / "README.md").is_file()
    assert main(argv) == 2 and "is not empty" in capsys.readouterr().err
    assert main(["pretrain", objective, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: deberta-ext pretrain {objective} --train_data FILES")


def test_run_leaves_a_model_that_fills_masks_tokenizer_card_curves_and_metrics(finished):
    names = ("model.safetensors", "tokenizer.json", "modeling_deberta_ext.py", "run_arguments.json", "trainer_state.json")
    for name in names:
        assert (finished / name).is_file(), name
    assert (finished / "curves.png").read_bytes()[:4] == b"\x89PNG"
    results = json.loads((finished / "all_results.json").read_text(encoding="utf-8"))
    assert results["eval_mlm_targets"] > 0 and results["eval_sop_accuracy"] >= 0 and results["eval_sbo_perplexity"] > 1
    report = json.loads((finished / "run_report.json").read_text(encoding="utf-8"))
    packed = report["packing"]["train"]
    assert packed["tokens"] == packed["packed_tokens"] and packed["documents"] == 110
    assert report["tokenizer"]["vocabulary"] == 300
    history = json.loads((finished / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    assert history[-1]["eval_mlm_loss"] == results["eval_mlm_loss"]
    from huggingface_hub import ModelCard

    card = ModelCard.load(finished / "README.md")
    assert card.data.pipeline_tag == "fill-mask" and card.data.library_name == "transformers"
    assert {result.metric_type for result in card.data.eval_results} == {"perplexity", "accuracy"}
    for text in ("sentence order prediction (weight 1)", "span boundary objective", "curves.png", "segment_pair, 32 tokens"):
        assert text in card.text, text
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(finished), AutoTokenizer.from_pretrained(finished)
    assert len(pipeline("fill-mask", model=model, tokenizer=tokenizer)("The cat [MASK] the dog here.")) == 5


def test_a_run_that_diverged_says_so_everywhere_with_short_numbers(run_mlm, text, tmp_path, capsys):
    """Report divergence: a run with a held-out loss of 182,135 printed a perplexity of 300 digits, without a warning."""
    run_mlm.main(arguments(text, tmp_path / "run", learning_rate=50, max_steps=12, warmup_steps=0, save_strategy="no"))
    printed, card = capsys.readouterr().out, (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert "training diverged" in printed.strip().splitlines()[-1] and "> **Warning.** The training diverged" in card
    assert "| > 1e6 |" in printed and "| > 1e6 |" in card
    assert not re.search(r"\d{12}", printed.replace(str(tmp_path), "") + card)
    results, report = (json.loads((tmp_path / "run" / f"{name}.json").read_text()) for name in ("all_results", "run_report"))
    assert results["eval_mlm_perplexity"] == 1e6 and "its loss is" in report["card"]["diverged"]


@pytest.mark.parametrize(
    "flags",
    [
        dict(packing="best_fit", masking="ngram"),
        dict(packing="sentence_pair", nsp_weight=1, masking="ngram", masking_policy="official"),
        dict(train_tokenizer="unigram", vocab_size=90, lowercase="true", gradient_accumulation_steps=2),
        dict(config_overrides=TINY + ",emd_layers=1,emd_input=hidden", attn_implementation="eager", bf16="true"),
        dict(streaming="true", shuffle_buffer=20, dataloader_num_workers=2, max_train_samples=30),
        dict(documents="line", text_column="words"),
    ],
    ids=["best_fit", "nsp", "unigram", "bf16", "streaming", "jsonl"],
)
def test_flags_work_together(flags, run_mlm, text, tmp_path):
    if "text_column" in flags:
        lines = [json.dumps({"words": line}) for line in text.read_text(encoding="utf-8").split("\n\n")]
        (tmp_path / "corpus").mkdir()
        (tmp_path / "corpus" / "part.jsonl").write_text("\n".join(lines), encoding="utf-8")
        flags = flags | dict(train_data=tmp_path / "corpus")
    metrics = run_mlm.main(arguments(text, tmp_path / "run", **flags))
    assert 0 < metrics["eval_mlm_loss"] < 8


def test_training_continues_from_a_checkpoint_with_its_head_and_decoder(finished, run_mlm, text, tmp_path):
    flags = dict(packing="segment_pair", masking="span", sop_weight=1, sbo_weight=1, learning_rate=0.0)
    metrics = run_mlm.main(arguments(text, tmp_path / "run", model=finished, **flags))
    before = json.loads((finished / "eval_results.json").read_text(encoding="utf-8"))
    for name in ("mlm", "sop", "sbo"):
        assert metrics[f"eval_{name}_loss"] == pytest.approx(before[f"eval_{name}_loss"], rel=1e-5)
    assert f"trained further from {finished.name}" in (tmp_path / "run" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "flags",
    [
        dict(streaming="true", shuffle_buffer=20, dataloader_num_workers=2),
        pytest.param(dict(streaming="true", masking_duplicates=2), marks=pytest.mark.slow),
        dict(packing="best_fit", masking="span", sbo_weight=1),
        dict(masking_rate=0.3, final_masking_rate=0.15, z_loss=1e-4, dataloader_num_workers=2),
    ],
    ids=["stream", "static masks of a stream", "packed documents", "falling rate"],
)
def test_run_resumed_in_a_later_epoch_ends_with_the_same_weights(flags, run_mlm, text, tmp_path):
    flags = flags | dict(max_steps=32, save_steps=24, per_device_train_batch_size=32, learning_rate=1e-3)
    flags |= dict(train_data=parted(text, tmp_path / "text"), validation_documents=2) if "streaming" in flags else {}
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    run_mlm.main(arguments(text, whole, **flags))
    copy_checkpoint(whole, resumed, 24)
    run_mlm.main(arguments(text, resumed, **flags, resume_from_checkpoint="last"))
    if "streaming" not in flags:
        examples = json.loads((whole / "run_report.json").read_text(encoding="utf-8"))["packing"]["train"]["examples"]
        assert examples < 24 * 32
    assert_same_weights(whole, resumed)
    assert losses(whole / "trainer_state.json") == losses(resumed / "trainer_state.json")


@pytest.mark.parametrize(
    "flags, message",
    [
        (dict(max_length=128), "--max_length must be at most 64, the rows of the model's absolute position table, got 128"),
        (dict(packing="segment_pair"), "pass --nsp_weight or --sop_weight"),
        (dict(sop_weight=1), "--sop_weight needs pairs, got --packing full_sentences"),
        (dict(eval_strategy="steps", metric_for_best_model="sop_loss"),
         "--metric_for_best_model must be one of eval_loss, eval_mlm_loss"),
        (dict(num_proc=2, streaming="true"), "--num_proc only works for data that is packed before training"),
        (dict(streaming="true", validation_documents=500), "--validation_documents 500 leaves no document"),
        (dict(documents="file", packing="segment_pair", nsp_weight=1, validation_data="{text}"), "from 1 documents"),
        (dict(streaming="true", max_steps=-1), "--streaming needs --max_steps"),
        (dict(text_column="content"), "text.txt is plain text without columns: remove --text_column content"),
        (dict(train_tokenizer=None, vocab_size=None), "a new model needs a tokenizer"),
        (dict(lowercase="true"), "--lowercase requires --train_tokenizer unigram"),
        (dict(model="{finished}", tokenizer="{folder}/larger"), "but the model only has 300 rows"),
        (dict(model="{finished}", train_tokenizer="unigram"), "needs its own tokenizer; remove --train_tokenizer"),
        (dict(model="{finished}", config_overrides="hidden_size=64"), "with --config_overrides hid"),
        (dict(model="{folder}/damaged"), "damaged/model.safetensors is truncated or corrupt"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_before_anything_is_trained(flags, message, finished, run_mlm, text, tmp_path, monkeypatch):
    monkeypatch.setattr(TargetTrainer, "training_step", None)
    if "larger" in flags.get("tokenizer", ""):
        train_tokenizer("byte-level-bpe", [text.read_text(encoding="utf-8")], 350).save_pretrained(tmp_path / "larger")
    if "damaged" in flags.get("model", ""):
        damaged = shutil.copytree(finished, tmp_path / "damaged") / "model.safetensors"
        damaged.write_bytes(damaged.read_bytes()[:5000])
    places = dict(folder=tmp_path, text=text, finished=finished)
    flags = {name: value and str(value).format(**places) for name, value in flags.items()}
    assert_refused(run_mlm, message, arguments(text, tmp_path / "run", **flags))
    assert not (tmp_path / "run" / "model.safetensors").exists()
