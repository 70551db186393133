# SPDX-License-Identifier: Apache-2.0
"""Test `deberta-ext info`: the contents of a folder or repository, and why it cannot be loaded."""

import json

import pytest
from hub_models import upload
from microsoft_checkpoints import CONFIGS, microsoft, official_pair, truncate, write
from tiny_models import tiny_tokenizer

from hf_deberta_ext import DebertaExtForMaskedLM
from hf_deberta_ext.commands import main
from hf_deberta_ext.conversion.checkpoint_contents import describe, model_class
from hf_deberta_ext.heads import HEADS
from hf_deberta_ext.native import kernel_status


def ours(folder, tiny_config, cls=DebertaExtForMaskedLM, **fields):
    model = cls(tiny_config("v3", **fields))
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize(("kind", "heads"), [("v1", ("lm",)), ("v2", ("lm",)), ("v3", ("lm", "rtd"))])
def test_official_checkpoints_have_their_heads(kind, heads, tmp_path):
    facts = describe(str(write(tmp_path, kind, microsoft(kind, heads))))
    assert facts["kind"] == f"{CONFIGS[kind]['model_type']} (no architecture named)"
    assert facts["heads"] == ["masked-lm", "replaced-token-detection"][: len(heads)] and facts["problems"] == []
    assert facts["sizes"]["num_hidden_layers"] == 2 and facts["sizes"]["vocab_size"] == 64
    assert facts["dtypes"] == ["float32"]


@pytest.mark.parametrize("whole_table", [True, False], ids=["tables", "deltas"])
def test_an_official_pair_is_one_model(whole_table, tmp_path):
    folder, _, _ = official_pair(tmp_path / "pair", whole_table=whole_table)
    facts = describe(str(folder))
    assert "pretraining" in facts["heads"] and facts["problems"] == []
    (folder / "pytorch_model.generator.bin").unlink()
    assert ("Pass the generator's table" in " ".join(describe(str(folder))["problems"])) is not whole_table


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("head", [name for name in HEADS if name != "pretraining"])
def test_the_head_of_our_models_is_found(head, labels, tiny_config, tmp_path):
    model = ours(tmp_path, tiny_config, model_class(head), num_labels=labels)
    facts = describe(str(tmp_path))
    assert facts["kind"] == f"deberta-ext ({HEADS[head].model_class})"
    assert facts["heads"] == ([] if head == "base" else [head]) and facts["problems"] == []
    assert sum(facts["parameters"].values()) == model.num_parameters()
    assert ("labels" in facts) == (head in ("sequence-classification", "token-classification"))


def test_a_joint_model_has_the_sizes_of_both(joint, tmp_path):
    model = joint("gdes")
    model.save_pretrained(tmp_path)
    facts = describe(str(tmp_path))
    assert facts["heads"] == ["pretraining"] and facts["problems"] == []
    assert facts["generator_sizes"]["num_hidden_layers"] == model.generator.config.num_hidden_layers
    assert sum(facts["parameters"].values()) == model.num_parameters()


def test_an_adapter_and_a_tokenizer_are_named(tmp_path):
    tiny_tokenizer().save_pretrained(tmp_path)
    assert describe(str(tmp_path))["tokenizer"] == "tokenizer.json, 7 tokens, model_max_length 64"
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "user/base"}))
    # A run with --lora saves the model's configuration, with the labels, next to the adapter.
    (tmp_path / "config.json").write_text(json.dumps({"id2label": {"0": "bad", "1": "good"}}))
    facts = describe(str(tmp_path))
    assert facts["kind"] == "a peft adapter (LORA), not a model"
    assert facts["base_model"] == "user/base" and facts["labels"] == ["bad", "good"]


def weights(*absent):
    return {name: tensor for name, tensor in microsoft("v3").items() if name not in absent}


OUTPUT = "deberta.encoder.layer.1.output.dense"
OTHER_SIZE = "must have shape [70, 32] (by config.json), got [64, 32]"


def index_without_shard(folder):
    (folder / "pytorch_model.bin").unlink()
    index = {"weight_map": {"a": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda folder: write(folder, "v3", weights(), vocab_size=70), OTHER_SIZE),
        (lambda folder: write(folder, "v3", weights(), num_attention_heads=5), "num_attention_heads"),
        (lambda folder: write(folder, "v3", weights(f"{OUTPUT}.bias")), f"{OUTPUT}.bias is not in the files"),
        (lambda folder: (folder / "pytorch_model.bin").rename(folder / "tf_model.h5"), "has no weights"),
        (index_without_shard, "model-00001-of-00001.safetensors"),
        (truncate, "PytorchStreamReader failed"),
    ],
)
def test_what_cannot_be_loaded_has_its_problem_and_status_1(damage, problem, tmp_path, capsys):
    write(tmp_path, "v3", weights())
    assert describe(str(tmp_path))["problems"] == []
    damage(tmp_path)
    assert main(["info", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert problem in printed and printed.endswith("cannot be loaded\n")


@pytest.mark.parametrize(("text", "message"), [(None, "has no config.json: expected a model"), ("{", "is not JSON")])
def test_what_is_no_checkpoint_is_one_line(text, message, tmp_path, capsys):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    assert main(["info", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_text_and_json_have_the_facts(tiny_config, tmp_path, capsys):
    ours(tmp_path, tiny_config)
    tiny_tokenizer([f"word{i}" for i in range(80)]).save_pretrained(tmp_path)
    assert main(["info", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(tmp_path)
    for words in (
        "what deberta-ext (DebertaExtForMaskedLM)",
        "shape num_hidden_layers 3, hidden_size 32, num_attention_heads 4, intermediate_size 48, vocab_size 64, "
        "max_position_embeddings 64",
        "heads masked-lm",
        "dtypes float32",
        f"attention {kernel_status()}",
        "result can be loaded",
    ):
        assert words in [" ".join(line.split()) for line in lines]
    assert any("tokenizer" in line and "none: the tokenizer has 85 tokens" in line for line in lines)
    assert main(["info", str(tmp_path), "--json"]) == 0
    expected = describe(str(tmp_path)) | dict(attention=kernel_status())
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(expected))


@pytest.mark.usefixtures("hub")
def test_a_repository_is_known_without_its_weights(tiny_config, tmp_path):
    model = ours(tmp_path / "local", tiny_config)
    model.save_pretrained(tmp_path / "shards", max_shard_size="40KB")
    pair, _, _ = official_pair(tmp_path / "pair")
    upload(tmp_path / "local")
    upload(pair, "user/pair")
    upload(tmp_path / "shards", "user/shards")
    local = describe(str(tmp_path / "local"))
    for facts in (describe("user/name"), describe("user/shards")):
        for name in ("heads", "problems", "parameters", "dtypes"):
            assert facts[name] == local[name]
    assert not list((tmp_path / "home").rglob("model.safetensors"))
    facts = describe("user/pair")
    assert "parameters" not in facts and facts["problems"] == [] and "pass --download to read them" in facts["weights"]
    facts = describe("user/pair", download=True)
    assert "pretraining" in facts["heads"] and facts["parameters"]
    for name, revision in (("user/name", "v9"), ("user/other", None)):
        with pytest.raises(OSError):
            describe(name, revision=revision)
