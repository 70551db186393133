# SPDX-License-Identifier: Apache-2.0
"""Checkpoints from which a joint model starts (pairs, discriminators, masked language models), and its exports."""

import json

import pytest
import torch
import transformers
from every_head import AUTO_CLASSES
from microsoft_checkpoints import POSITIONS, WORDS, microsoft, official_pair, write
from rounding import equal_outputs
from tiny_constants import SHARING, SPECIAL
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining, DebertaV2Model

from hf_deberta_ext import DebertaExtForMaskedLM, DebertaExtForPreTraining, DebertaExtForReplacedTokenDetection
from hf_deberta_ext.conversion.deberta_v2 import save_as_deberta_v2

IDS = torch.arange(5, 25)[None]


@pytest.mark.parametrize("config", [True, False], ids=["generator_config", "half_depth"])
def test_official_pair_is_joined_with_the_difference_of_the_tables(config, tmp_path):
    folder, generator, discriminator = official_pair(tmp_path / "official", config=config)
    model = DebertaExtForPreTraining.from_checkpoints(folder, special_token_ids=SPECIAL)
    shared = model.discriminator.get_input_embeddings()
    torch.testing.assert_close(shared.delta.weight.data, discriminator[f"{WORDS}.weight"] - generator[f"{WORDS}.weight"])
    torch.testing.assert_close(shared.table(), discriminator[f"{WORDS}.weight"])
    alone = DebertaExtForReplacedTokenDetection.from_pretrained(folder)
    torch.testing.assert_close(model(IDS).discriminator_logits, alone(IDS).logits)
    state = model.generator.state_dict()
    for name, weight in generator.items():
        assert torch.equal(state[name], weight), name
    assert model.generator.config.num_hidden_layers == 1 and model.generator.config.emd_layers == 2
    assert not model.generator.loading_report.initialised and not model.discriminator.loading_report.initialised


def test_auto_class_and_from_pretrained_join_what_lies_in_the_folder(tmp_path):
    folder, generator, _ = official_pair(tmp_path / "official")
    model = DebertaExtForPreTraining.from_pretrained(folder)
    assert torch.equal(model.get_input_embeddings().weight, generator[f"{WORDS}.weight"])
    model.export_discriminator().save_pretrained(tmp_path / "ours")
    again = AutoModelForPreTraining.from_pretrained(tmp_path / "ours")
    assert type(again) is DebertaExtForPreTraining
    torch.testing.assert_close(again(IDS).discriminator_logits, model(IDS).discriminator_logits)


def test_discriminator_that_holds_only_its_deltas_is_made_whole_by_the_generator(tmp_path):
    """Test a checkpoint in the form of ViDeBERTa; it is refused without the generator."""
    folder, _, _ = official_pair(tmp_path / "deltas", whole_table=False)
    whole, _, _ = official_pair(tmp_path / "whole")
    model, expected = (DebertaExtForPreTraining.from_checkpoints(x) for x in (folder, whole))
    torch.testing.assert_close(model(IDS).discriminator_logits, expected(IDS).discriminator_logits)
    assert "was added to the generator's table" in " ".join(model.discriminator.loading_report.notes)
    (folder / "pytorch_model.generator.bin").unlink()
    with pytest.raises(ValueError, match="gradient-disentangled embedding sharing trains"):
        DebertaExtForPreTraining.from_checkpoints(folder)


def test_discriminator_alone_lends_its_tables_and_first_layers_or_to_another_width_the_tables(tmp_path):
    folder = write(tmp_path, "v3", microsoft("v3", heads=("rtd",)))
    model, info = DebertaExtForPreTraining.from_checkpoints(folder, output_loading_info=True)
    assert not model.discriminator.get_input_embeddings().delta.weight.any()
    alone = DebertaExtForReplacedTokenDetection.from_pretrained(folder)
    assert equal_outputs(model(IDS).discriminator_logits, alone(IDS).logits)
    ours, theirs = alone.state_dict(), model.generator.state_dict()
    shared = [name for name in theirs if name in ours]
    assert len(shared) > 20 and all(torch.equal(ours[name], theirs[name]) for name in shared)
    assert model.generator.config.num_hidden_layers == 1
    assert info["missing_keys"] and all(name.startswith("generator.lm_predictions") for name in info["missing_keys"])
    # A generator with small differences still copies the layers.
    fields = dict(generator={"layer_norm_eps": 1e-6, "masked_only": True})
    other = DebertaExtForPreTraining.from_checkpoints(folder, **fields).generator
    assert other.config.layer_norm_eps == 1e-6
    assert all(torch.equal(value, theirs[f"deberta.{name}"]) for name, value in other.deberta.state_dict().items())
    fields = dict(generator={"hidden_size": 16, "num_hidden_layers": 1})
    model, info = DebertaExtForPreTraining.from_checkpoints(folder, output_loading_info=True, **fields)
    assert torch.equal(model.get_input_embeddings().weight, alone.get_input_embeddings().weight)
    assert model.generator.config.hidden_size == 16
    assert f"generator.{WORDS}.weight" not in info["missing_keys"]
    assert "generator.deberta.encoder.rel_embeddings.weight" in info["missing_keys"]


@pytest.mark.parametrize(
    "fields",
    [
        dict(num_hidden_layers=3), dict(hidden_size=16, num_attention_heads=4, embedding_size=32),
        dict(hidden_size=16, num_attention_heads=2, intermediate_size=48, embedding_size=32),
    ],
    ids=["as_deep", "narrow_with_as_many_heads", "narrow_with_as_wide_a_feed_forward"],
)  # fmt: skip
def test_generator_keeps_its_own_shape_also_where_it_is_the_discriminators(fields, tiny_config, shake, tmp_path):
    shake(DebertaExtForMaskedLM(tiny_config())).save_pretrained(tmp_path / "d")
    own = shake(DebertaExtForMaskedLM(tiny_config(**(dict(num_hidden_layers=1) | fields))), seed=1)
    own.save_pretrained(tmp_path / "g")
    model = DebertaExtForPreTraining.from_checkpoints(tmp_path / "d", tmp_path / "g")
    torch.testing.assert_close(model.generator(IDS).logits, own(IDS).logits)
    model.save_pretrained(tmp_path / "joint")
    again = DebertaExtForPreTraining.from_pretrained(tmp_path / "joint")
    torch.testing.assert_close(again.generator(IDS).logits, own(IDS).logits)


@pytest.mark.parametrize("config", [True, False], ids=["generator_config", "none"])
def test_fields_of_the_generator_win_over_the_file_beside_the_discriminator(config, tmp_path):
    folder, generator, _ = official_pair(tmp_path / "official", config=config)
    fields = dict(hidden_dropout_prob=0.3, generator={"num_hidden_layers": 2, "attention_probs_dropout_prob": 0.4})
    model = DebertaExtForPreTraining.from_checkpoints(folder, **fields)
    own = model.generator.config
    assert (own.num_hidden_layers, own.attention_probs_dropout_prob, own.hidden_dropout_prob) == (2, 0.4, 0.3)
    assert model.discriminator.config.hidden_dropout_prob == 0.3
    assert model.discriminator.config.attention_probs_dropout_prob == 0.1
    # The file has one layer; the report says that the second is new.
    assert any(".layer.1." in name for name in model.generator.loading_report.initialised)
    assert torch.equal(model.get_input_embeddings().weight, generator[f"{WORDS}.weight"])


def test_arguments_beside_a_configuration_object(tiny_config, tmp_path):
    DebertaExtForMaskedLM(tiny_config()).save_pretrained(tmp_path)
    config = tiny_config()
    model = DebertaExtForPreTraining.from_checkpoints(
        tmp_path, config=config, rtd_lambda=7.0, generator={"num_hidden_layers": 2}, attn_implementation="eager"
    )
    assert model.config.rtd_lambda == 7.0 and model.generator.config.num_hidden_layers == 2
    assert config.rtd_lambda == 50.0 and config.generator is None
    assert model.discriminator.config._attn_implementation == model.generator.config._attn_implementation == "eager"


def test_half_precision_pair_is_joined_in_float32_and_cast_on_request(tmp_path):
    folder, generator, discriminator = official_pair(tmp_path / "official", deltas=False)
    for file, weights in (("pytorch_model.bin", discriminator), ("pytorch_model.generator.bin", generator)):
        torch.save({name: value.half() for name, value in weights.items()}, folder / file)
    model = DebertaExtForPreTraining.from_checkpoints(folder)
    assert model.dtype == torch.float32
    expected = discriminator[f"{WORDS}.weight"].half().float() - generator[f"{WORDS}.weight"].half().float()
    assert torch.equal(model.discriminator.get_input_embeddings().delta.weight.data, expected)
    assert DebertaExtForPreTraining.from_checkpoints(folder, dtype="bfloat16").dtype == torch.bfloat16


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("positions", [False, True], ids=["emd", "positions_in_the_input"])
def test_exports_compute_what_the_joint_model_does(sharing, positions, joint, masked, tmp_path):
    batch, _ = masked
    model = joint(sharing, position_biased_input=positions)
    expected = model(**batch, random_generator=torch.Generator().manual_seed(0))
    exports = dict(discriminator=model.export_discriminator(), generator=model.export_generator())
    for name, part in exports.items():
        part.save_pretrained(tmp_path / name)
        assert not {id(p) for p in part.parameters()} & {id(p) for p in model.parameters()}
        written = json.loads((tmp_path / name / "config.json").read_text())
        assert written["generator"] is None and written["special_token_ids"] is None
    discriminator = DebertaExtForReplacedTokenDetection.from_pretrained(tmp_path / "discriminator")
    generator = AutoModelForMaskedLM.from_pretrained(tmp_path / "generator")
    assert not [name for name in discriminator.state_dict() if "delta" in name]
    judged = discriminator(expected.corrupted_ids, batch["attention_mask"]).logits
    torch.testing.assert_close(judged, expected.discriminator_logits, atol=1e-5, rtol=1e-5)
    assert equal_outputs(generator(**batch, masked_only=True).logits, expected.generator_logits)
    # The generator's absolute positions, for further training of the discriminator with EMD.
    table = model.generator.state_dict()[f"{POSITIONS}.weight"]
    if not positions:
        assert torch.equal(discriminator.state_dict()[f"{POSITIONS}.weight"], table)


def test_every_task_head_starts_from_an_export(joint, tmp_path):
    model = joint().export_discriminator()
    model.save_pretrained(tmp_path)
    encoder = model.deberta.state_dict()
    for auto in {*AUTO_CLASSES} - {"AutoModelForPreTraining"}:
        loaded = getattr(transformers, auto).from_pretrained(tmp_path)
        got = loaded.base_model.state_dict()
        assert all(torch.equal(got[name], value) for name, value in encoder.items()), auto


def test_export_as_a_stock_folder(joint, tmp_path):
    model = joint().export_discriminator()
    notes = save_as_deberta_v2(model, tmp_path / "stock")
    assert "mask_predictions" in notes[0]
    stock = DebertaV2Model.from_pretrained(tmp_path / "stock")
    expected = model.deberta(IDS).last_hidden_state
    torch.testing.assert_close(stock(IDS).last_hidden_state, expected, atol=1e-5, rtol=1e-5)
    again = DebertaExtForReplacedTokenDetection.from_pretrained(tmp_path / "stock")
    torch.testing.assert_close(again(IDS).logits, model(IDS).logits, atol=1e-5, rtol=1e-5)
    save_as_deberta_v2(joint().export_generator(), tmp_path / "generator", lossy=True)
    written = json.loads((tmp_path / "generator" / "config.json").read_text())
    assert written["architectures"] == ["DebertaV2ForMaskedLM"]
    with pytest.raises(ValueError, match="DebertaExtForPreTraining has no equivalent class"):
        save_as_deberta_v2(joint(), tmp_path / "joint")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            dict(embedding_sharing="es"),
            r"'es' requires equal .*word_embeddings.weight .* use embedding_sharing = 'gdes' or 'nes'",
        ),
        (dict(sharing="es"), "from_checkpoints got unexpected arguments: 'sharing'"),
        (dict(generator_checkpoint="larger"), "needs the same vocab_size in generator and discriminator, got 70 and 64"),
    ],
    ids=["two tables", "unknown argument", "another vocabulary"],
)
def test_pairs_and_arguments_that_do_not_fit_are_refused(fields, message, tiny_config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, _, _ = official_pair(tmp_path / "official")
    DebertaExtForMaskedLM(tiny_config(vocab_size=70)).save_pretrained("larger")
    with pytest.raises(ValueError, match=message):
        DebertaExtForPreTraining.from_checkpoints(folder, **fields)
