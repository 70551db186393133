# SPDX-License-Identifier: Apache-2.0
"""`DebertaExtConfig`: published sizes, official files, and fields that are wrong or contradict each other."""

import json
import logging

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, DebertaConfig, DebertaV2Config, PreTrainedConfig

from hf_deberta_ext import DebertaExtConfig
from hf_deberta_ext.checkpoints.presets import PRESETS

ELECTRA = {"electra-small": (12, 256), "electra-base": (12, 768), "electra-large": (24, 1024)}


def plain(config):
    """Return the fields of a configuration without its source."""
    return {key: value for key, value in config.to_dict().items() if key not in ("_name_or_path", "auto_map")}


def test_presets_are_the_listed_ones_and_take_overrides():
    assert {name for name in PRESETS if name.startswith("electra")} == {*ELECTRA}
    for name, shape in ELECTRA.items():
        config = DebertaExtConfig.from_preset(name)
        assert (config.num_hidden_layers, config.hidden_size) == shape
    config = DebertaExtConfig.from_preset("v3-small", num_labels=5, hidden_dropout_prob=0)
    assert (config.num_labels, config.hidden_dropout_prob, config.num_hidden_layers) == (5, 0, 6)
    with pytest.raises(ValueError, match=r"preset must be one of base, large.*, got 'v4'"):
        DebertaExtConfig.from_preset("v4")


@pytest.mark.parametrize("value", ["c2p|p2c", "p2c | C2P", ["p2c", "c2p"], ["c2p", "p2c", "c2p"]])
def test_pos_att_type_takes_every_spelling(value):
    assert DebertaExtConfig(pos_att_type=value).pos_att_type == ["c2p", "p2c"]
    for none in (None, [], "", "none", ["none"]):
        config = DebertaExtConfig(pos_att_type=none)
        assert config.pos_att_type == [] and config.relative_table_size == 0


def test_save_and_load_keep_every_field(tmp_path):
    changed = DebertaExtConfig.from_preset(
        "xlarge", embedding_size=128, share_layers="ffn", emd_layers=3, emd_input="position", masked_only=True, num_labels=7,
        classifier_act="gelu",
        conv_kernel_size=5, pos_att_type="p2p|c2p", cls_dropout=0.2, type_vocab_size=2, problem_type="regression",
        generator={"num_hidden_layers": 3, "emd_input": "hidden"}, embedding_sharing="nes", rtd_lambda=10,
        rtd_temperature=0.5, rtd_special_tokens=False, special_token_ids=[0, 5],
    )  # fmt: skip
    changed.save_pretrained(tmp_path)
    for loaded in (DebertaExtConfig.from_pretrained(tmp_path), AutoConfig.from_pretrained(tmp_path)):
        assert plain(loaded) == plain(changed)
    assert plain(DebertaExtConfig.from_dict(changed.to_dict())) == plain(changed)


WRONG = {
    "vocab_size": 0, "embedding_size": 0, "hidden_size": -1, "num_hidden_layers": 0, "num_attention_heads": 0,
    "intermediate_size": 0, "hidden_act": "gleu", "hidden_dropout_prob": 1.0, "attention_probs_dropout_prob": -0.1,
    "max_position_embeddings": 0, "type_vocab_size": -1, "position_biased_input": "yes", "relative_attention": None,
    "pos_att_type": "c2p|c2c", "max_relative_positions": 0, "position_buckets": 0, "norm_rel_ebd": "rms",
    "share_att_key": 2.5, "conv_kernel_size": -3, "conv_act": "relu5", "conv_groups": 0, "share_layers": "every",
    "emd_layers": 0, "emd_input": "absolute", "masked_only": "true", "pooler_dropout": 2, "pooler_hidden_act": "",
    "classifier_act": "relu5", "cls_dropout": 1.5, "generator": {"layers": 2}, "embedding_sharing": "ges", "rtd_lambda": 0,
    "rtd_temperature": -1.0, "rtd_special_tokens": "no", "special_token_ids": [-1], "initializer_range": 0,
    "layer_norm_eps": -1e-7, "pad_token_id": 128100, "bos_token_id": "cls", "eos_token_id": "sep",
    "tie_word_embeddings": False,
}  # fmt: skip


def test_one_wrong_value_is_known_for_every_field_of_ours():
    inherited = {*PreTrainedConfig.__dataclass_fields__}
    assert {*WRONG} == {*DebertaExtConfig.__dataclass_fields__} - inherited


@pytest.mark.parametrize("name", WRONG)
def test_wrong_value_is_refused_with_field_and_value(name, tmp_path):
    with pytest.raises((StrictDataclassError, ValueError), match=name) as error:
        DebertaExtConfig(**{name: WRONG[name]})
    assert str(WRONG[name]) in str(error.value)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deberta-ext", name: WRONG[name]}))
    for make in (
        lambda: DebertaExtConfig.from_pretrained(tmp_path),
        lambda: DebertaExtConfig.from_preset("v3-base", **{name: WRONG[name]}),
    ):
        with pytest.raises(ValueError, match=name):
            make()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(hidden_size=100), "hidden_size must be a multiple of num_attention_heads = 12, got 100"),
        (dict(max_position_embeddings=128), "position_buckets = 256 requires a max.* greater than 129, got 128"),
        (dict(conv_kernel_size=4), "conv_kernel_size must be odd.*got 4"),
        (dict(conv_kernel_size=3, num_hidden_layers=1), "num_hidden_layers must be at least 2 with a convolution, got 1"),
        (dict(conv_groups=7), "hidden_size must be a multiple of conv_groups = 7, got 768"),
        (dict(position_biased_input=True, emd_layers=3), "emd_layers = 3 .* no effect if position_biased_input"),
        (dict(generator={"hidden_size": "a"}), "generator = .*hidden_size"),
        (dict(model_type="deberta-v2", talking_head=True), "talking_head must be False, .* got True"),
        (dict(model_type="deberta-v2", attention_head_size=32), "attention_head_size must be 64, .* got 32"),
        (dict(model_type="deberta-v2", pooler_hidden_size=5), "pooler_hidden_size must be .* got 5"),
        (dict(model_type="deberta-v2", hidden_size="a"), "hidden_size must be an integer, got 'a'"),
        (dict(model_type="deberta-v2", norm_rel_ebd=5), "norm_rel_ebd"),
    ],
)
def test_fields_that_contradict_each_other_or_have_no_counterpart_are_refused(fields, message):
    if "model_type" in fields:
        fields = DebertaV2Config().to_dict() | fields
    with pytest.raises(ValueError, match=message):
        DebertaExtConfig.from_dict(fields)


def test_assignments_and_overrides_are_normalised_and_checked(tmp_path):
    config = DebertaExtConfig.from_preset("v3-xsmall", vocab_size=50)
    config.pos_att_type = "p2c|c2p"
    assert config.pos_att_type == ["c2p", "p2c"]
    with pytest.raises(ValueError, match="must be a subset of c2p"):
        config.pos_att_type = "c2c"
    config.save_pretrained(tmp_path)
    assert DebertaExtConfig.from_pretrained(tmp_path, pos_att_type="p2c").pos_att_type == ["p2c"]
    with pytest.raises(ValueError, match=rf"{tmp_path}.*num_attention_heads = 7"):
        DebertaExtConfig.from_pretrained(tmp_path, num_attention_heads=7)
    config.num_attention_heads = 7
    with pytest.raises(StrictDataclassError, match="num_attention_heads = 7"):
        config.save_pretrained(tmp_path / "invalid")


def test_foreign_names_of_common_tools_come_and_go_without_a_warning(tmp_path, caplog):
    """Check that config.json can have settings of CrossEncoder, and generation parameters of old transformers."""
    file = tmp_path / "config.json"
    extra = {"sentence_transformers": {"version": "5"}, "max_length": 77, "use_cache": True}
    file.write_text(json.dumps(DebertaV2Config().to_dict() | extra))
    with caplog.at_level(logging.WARNING):
        config = DebertaExtConfig.from_pretrained(tmp_path)
    config.save_pretrained(tmp_path)
    # Trainer of transformers 5.4 sets it on any model's config.
    config.use_cache = False
    DebertaExtConfig(**config.to_dict())
    assert caplog.text == ""
    assert json.loads(file.read_text())["sentence_transformers"] == {"version": "5"}


@pytest.mark.parametrize("stock", [DebertaConfig(), DebertaV2Config()], ids=["deberta", "deberta-v2"])
def test_stock_defaults_are_read_as_transformers_reads_them(stock):
    """Check that `DebertaV2Config()` is not DeBERTa-v2: no relative attention, no buckets, positions in the input."""
    config = DebertaExtConfig.from_dict(stock.to_dict())
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                 "relative_attention", "position_biased_input", "type_vocab_size", "max_position_embeddings"):  # fmt: skip
        assert getattr(config, name) == getattr(stock, name), name
    for name, value in dict(position_buckets=-1, share_att_key=False, norm_rel_ebd="none", conv_kernel_size=0).items():
        assert getattr(config, name) == value, name
    assert config.relative_table_size == 0
    assert config.model_type == "deberta-ext"


def test_published_v3_config_file_becomes_the_preset_and_others_may_leave_norms_out(tmp_path):
    published = {
        "model_type": "deberta-v2", "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 512,
        "relative_attention": True, "position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True,
        "pos_att_type": "p2c|c2p", "layer_norm_eps": 1e-7, "max_relative_positions": -1, "position_biased_input": False,
        "num_attention_heads": 12, "num_hidden_layers": 12, "type_vocab_size": 0, "vocab_size": 128100,
        "pooling": {"dropout": 0.0, "hidden_act": "gelu"}, "attention_head_size": 64, "padding_idx": 0,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(published))
    config = DebertaExtConfig.from_pretrained(tmp_path)
    preset = DebertaExtConfig.from_preset("v3-base")
    assert plain(config) == plain(preset)
    stock = {"model_type": "deberta-v2", "norm_rel_ebd": None, "position_buckets": 0, "max_relative_positions": -1}
    (tmp_path / "config.json").write_text(json.dumps(stock))
    config = DebertaExtConfig.from_pretrained(tmp_path)
    assert (config.norm_rel_ebd, config.position_buckets, config.max_relative_positions) == ("none", -1, -1)


def test_an_empty_config_file_and_the_configuration_of_another_model_are_named(tmp_path):
    """Check the error, because transformers would create a model of the default size."""
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(OSError, match=r"is missing or empty; add this file, or pass config="):
        DebertaExtConfig.from_pretrained(tmp_path)
    # It was read as ours, with default values for all fields with other names.
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "hidden_size": 64}))
    with pytest.raises(ValueError, match=f"got 'bert' in {tmp_path}"):
        DebertaExtConfig.from_pretrained(tmp_path)
