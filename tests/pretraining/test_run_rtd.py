# SPDX-License-Identifier: Apache-2.0
"""Test examples/run_rtd.py end to end: output files, initial checkpoints, and early errors."""

import mlm_script as mlm
import pytest
import torch
from microsoft_checkpoints import microsoft, write
from safetensors.torch import load_file
from toy_task import read
from transformers import AutoTokenizer

from hf_deberta_ext import DebertaExtForMaskedLM, DebertaExtForPreTraining, DebertaExtForReplacedTokenDetection
from hf_deberta_ext.pretraining import train_tokenizer
from hf_deberta_ext.pretraining.trainer import TargetTrainer

PARTS = ("discriminator", "generator")
# The synthetic sentences of run_mlm's tests.
text, arguments = mlm.text, mlm.arguments


@pytest.fixture(scope="module")
def finished(run_rtd, text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "joint"
    run_rtd.main(arguments(text, folder, learning_rate=1e-3, eval_strategy="steps", eval_steps=2, save_strategy="no"))
    return folder


def test_run_leaves_three_models_with_tokenizers_cards_curves_and_metrics(finished):
    for folder in (finished, finished / "discriminator", finished / "generator"):
        for name in ("model.safetensors", "config.json", "tokenizer.json", "modeling_deberta_ext.py", "README.md"):
            assert (folder / name).is_file(), folder / name
    assert (finished / "curves.png").read_bytes()[:4] == b"\x89PNG"
    metrics = read(finished, "all_results.json")
    assert metrics["eval_generator_targets"] > 0 and metrics["eval_discriminator_targets"] > 0
    assert 0 < metrics["eval_replaced_share"] < 0.16 and metrics["eval_generator_perplexity"] > 1
    assert {"eval_discriminator_precision", "eval_discriminator_recall", "eval_discriminator_similarity"} <= {*metrics}
    report = read(finished, "run_report.json")
    assert report["packing"]["train"]["documents"] == 110 and report["tokenizer"]["vocabulary"] == 300
    history = read(finished, "trainer_state.json")["log_history"]
    logged = [entry for entry in history if "generator_loss" in entry]
    assert len(logged) == 4 and sum("eval_loss" in entry for entry in history) == 3
    names = {"loss", "discriminator_loss", "generator_accuracy", "replaced_share", "grad_norm"}
    assert all(names <= {*entry} for entry in logged)


@pytest.mark.parametrize(
    "flags",
    [
        dict(embedding_sharing="es", generator_layers=2, temperature=2, packing="best_fit", attn_implementation="eager"),
        dict(embedding_sharing="nes", generator_overrides="hidden_size=16,emd_layers=1", stepping="decoupled",
             discriminator_learning_rate=1e-3, masking_duplicates=2),
        dict(embedding_sharing="all", rtd_lambda=10, loss_without_special_tokens="true", bf16="true"),
        dict(stepping="decoupled", streaming="true", shuffle_buffer=20, gradient_accumulation_steps=2),
        dict(masking="ngram", mask_share=0.8, gradient_checkpointing="true", dataloader_num_workers=1),
    ],
    ids=["es", "nes", "all", "streaming", "ngram"],
)  # fmt: skip
def test_flags_work_together(flags, run_rtd, text, tmp_path):
    flags = dict(max_steps=2, save_strategy="no") | flags
    metrics = run_rtd.main(arguments(text, tmp_path / "run", **flags))
    assert 0 < metrics["eval_generator_loss"] < 8 and 0 < metrics["eval_discriminator_loss"] < 2
    config = DebertaExtForPreTraining.from_pretrained(tmp_path / "run").config
    own = config.generator_config()
    assert config.embedding_sharing == flags.get("embedding_sharing", "gdes")
    assert config.rtd_lambda == flags.get("rtd_lambda", 50) and config.rtd_temperature == flags.get("temperature", 1)
    assert config.rtd_special_tokens == ("loss_without_special_tokens" not in flags)
    layers = 2 if config.embedding_sharing in ("es", "all") else 1
    assert (own.num_hidden_layers, own.hidden_size) == (layers, 16 if config.embedding_sharing == "nes" else 32)


def test_training_continues_from_a_joint_model_or_its_parts(finished, run_rtd, text, tmp_path):
    """Compare losses at learning rate 0 with the checkpoint's; held-out masks and replacements are the same."""
    still = dict(learning_rate=0.0, max_steps=1, save_strategy="no")
    parts = dict(model=finished / "discriminator", generator_model=finished / "generator")
    before = read(finished, "all_results.json")
    for name, start in dict(joint=dict(model=finished), parts=parts).items():
        metrics = run_rtd.main(arguments(text, tmp_path / name, **start, **still))
        for part in PARTS:
            assert metrics[f"eval_{part}_loss"] == pytest.approx(before[f"eval_{part}_loss"], rel=1e-5), name
        card = (tmp_path / name / "README.md").read_text(encoding="utf-8")
        # The name of a half of a joint model includes its folder.
        base = "joint/discriminator" if name == "parts" else start["model"].name
        assert f"trained further from {base}" in card
        assert ("| generator initialised from | joint/generator |" in card) == (name == "parts")


def test_official_pair_keeps_both_tables(run_rtd, text, tmp_path, caplog):
    """Keep the tables of Microsoft's layout, which have more rows than the tokenizer has tokens, at learning rate 0."""
    folder = tmp_path / "official"
    folder.mkdir()
    table = "deberta.embeddings.word_embeddings.weight"
    random = torch.Generator().manual_seed(1)
    pair = []
    for head, seed in (("rtd", 0), ("lm", 1)):
        weights = microsoft("v3", heads=(head,), seed=seed)
        weights[table] = torch.randn(300, 32, generator=random)
        pair.append(weights)
    pair[1]["lm_predictions.lm_head.bias"] = torch.randn(300, generator=random)
    pair[1] = {name: weight for name, weight in pair[1].items() if "layer.1." not in name}
    write(folder, "v3", pair[0], vocab_size=300)
    torch.save(pair[1], folder / "pytorch_model.generator.bin")
    train_tokenizer("byte-level-bpe", [text.read_text(encoding="utf-8")], 290).save_pretrained(folder)
    flags = dict(
        model=folder, config_overrides="hidden_dropout_prob=0", learning_rate=0.0, max_steps=1, stepping="decoupled"
    )
    run_rtd.main(arguments(text, tmp_path / "run", **flags))
    assert caplog.text.count("official is a DeBERTa checkpoint in Microsoft's own files: it is trained as") == 1
    discriminator = DebertaExtForReplacedTokenDetection.from_pretrained(tmp_path / "run" / "discriminator").state_dict()
    generator = DebertaExtForMaskedLM.from_pretrained(tmp_path / "run" / "generator").state_dict()
    torch.testing.assert_close(discriminator[table], pair[0][table], rtol=0, atol=1e-6)
    for weights, trained, left in ((pair[0], discriminator, table), (pair[1], generator, "")):
        assert {name for name in weights if "position_embeddings" not in name} <= {*trained}
        for name in weights.keys() - {left, "deberta.embeddings.position_embeddings.weight"}:
            assert torch.equal(trained[name], weights[name]), name
    assert DebertaExtForPreTraining.from_pretrained(tmp_path / "run").config.special_token_ids[-10:] == [*range(290, 300)]


@pytest.mark.parametrize("start", ["joint", "pair", *PARTS])
def test_any_checkpoint_of_half_precision_is_trained_in_float32(start, finished, run_rtd, text, tmp_path):
    """Start from a joint model, a pair, only a discriminator, or a masked language model, whose head the generator keeps."""
    joint = DebertaExtForPreTraining.from_pretrained(finished).half()
    models = dict(joint=joint, discriminator=joint.export_discriminator(), generator=joint.export_generator())
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
        AutoTokenizer.from_pretrained(finished).save_pretrained(tmp_path / name)
    flags = dict(model=tmp_path / start, config_overrides="hidden_dropout_prob=0.2")
    if start == "pair":
        flags = dict(model=tmp_path / "discriminator", generator_model=tmp_path / "generator")
    run_rtd.main(arguments(text, tmp_path / "run", **flags, learning_rate=0.0, max_steps=1, save_strategy="no"))
    weights = {part: load_file(tmp_path / "run" / part / "model.safetensors") for part in ("", *PARTS)}
    assert {value.dtype for part in weights.values() for value in part.values()} == {torch.float32}
    if start in PARTS:
        table = models[start].get_input_embeddings().weight.float()
        for name in PARTS:
            trained = weights[name]["deberta.embeddings.word_embeddings.weight"]
            torch.testing.assert_close(trained, table, rtol=0, atol=1e-6)
    if start == "generator":
        head = "lm_predictions.lm_head.dense.weight"
        assert torch.equal(weights[start][head], models[start].state_dict()[head].float())


@pytest.mark.parametrize(
    "flags, message",
    [
        (dict(packing="segment_pair"), "--packing segment_pair makes pairs, which this model does not use"),
        (dict(generator_model="somewhere"), "--generator_model needs --model"),
        (dict(embedding_sharing="es", stepping="decoupled"), "embedding_sharing = 'es' needs joint steps"),
        (dict(recipe="official-xsmall-continue", preset=None), "needs its own tokenizer; remove --train_tokenizer"),
        (dict(model="{}", generator_layers=2), "is a joint model, whose generator and embedding_sharing cannot be changed"),
        (dict(model="{}/discriminator", generator_model="{}/generator", generator_layers=1),
         "generator sets the generator's layers; remove --generator_layers"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_before_anything_is_trained(flags, message, finished, run_rtd, text, tmp_path, monkeypatch):
    monkeypatch.setattr(TargetTrainer, "training_step", None)
    flags = {name: value and str(value).format(finished) for name, value in flags.items()}
    mlm.assert_refused(run_rtd, message, arguments(text, tmp_path / "run", **flags))
    assert not (tmp_path / "run" / "model.safetensors").exists()
