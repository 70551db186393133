# SPDX-License-Identifier: Apache-2.0
"""Official checkpoints in every published layout: Microsoft's key names, .bin and safetensors, old and new."""

import json
import logging

import pytest
import torch
from every_head import CLASSES
from microsoft_checkpoints import CONFIGS, POSITIONS, SIZES, WORDS, microsoft, trainer_folder, write
from rounding import equal_outputs
from safetensors.torch import load_file, save_file
from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

from hf_deberta_ext import DebertaExtConfig, DebertaExtForMaskedLM, DebertaExtForSequenceClassification, DebertaExtModel
from hf_deberta_ext.conversion.checkpoint_contents import read_contents


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors"])
@pytest.mark.parametrize("kind", ["v1", "v2", "v3"])
def test_published_layout_loads_into_the_masked_lm_with_nothing_missing(kind, file, tmp_path):
    weights = microsoft(kind, heads=("lm",))
    folder = write(tmp_path, kind, weights, file)
    model, info = DebertaExtForMaskedLM.from_pretrained(folder, output_loading_info=True)
    report = model.loading_report
    assert not info["missing_keys"] and not info["unexpected_keys"] and not report.initialised and not report.unused
    assert (model.config.emd_layers, model.config.emd_input) == (2, "position+hidden") and not report.notes
    state = model.state_dict()
    for key, tensor in weights.items():
        if ".self." not in key or kind != "v1":
            assert torch.equal(state[key], tensor), key
    if kind == "v1":
        own = "deberta.encoder.layer.1.attention.self."
        fused = weights[own + "in_proj.weight"].view(4, 3, 8, 32)
        for index, projection in enumerate(("query_proj", "key_proj", "value_proj")):
            assert torch.equal(state[f"{own}{projection}.weight"].view(4, 8, 32), fused[:, index])
        assert not state[own + "key_proj.bias"].any() and not state[own + "pos_key_proj.bias"].any()
        assert torch.equal(state[own + "query_proj.bias"], weights[own + "q_bias"])
        assert torch.equal(state[own + "value_proj.bias"], weights[own + "v_bias"])
        assert torch.equal(state[own + "pos_key_proj.weight"], weights[own + "pos_proj.weight"])
        assert torch.equal(state[own + "pos_query_proj.bias"], weights[own + "pos_q_proj.bias"])


def test_every_layout_of_one_checkpoint_gives_one_model(tmp_path):
    weights = microsoft("v3")
    ids = torch.arange(5, 25)[None]

    def output(name, state_dict, file="pytorch_model.bin"):
        (tmp_path / name).mkdir()
        return DebertaExtModel.from_pretrained(write(tmp_path / name, "v3", state_dict, file))(ids)[0]

    expected = output("plain", weights)
    bert = {key.replace("deberta.", "bert."): value for key, value in weights.items()}
    bare = {key.removeprefix("deberta."): value for key, value in weights.items() if key.startswith("deberta.")}
    deltas = {f"{table}._weight": torch.randn(64, 32) for table in (WORDS, POSITIONS)}
    stray = {"config": {"hidden_size": 32, "nested": {"a": [1, "x"]}}}
    assert equal_outputs(output("safetensors", weights, "model.safetensors"), expected)
    for name, layout in dict(bert=bert, bare=bare, stray=weights | stray, deltas=weights | deltas).items():
        assert equal_outputs(output(name, layout), expected), name


@pytest.mark.parametrize(
    ("kind", "absent", "fields"),
    [
        ("v1", ("max_relative_positions", "type_vocab_size"), {}),
        ("v3", (), {}),
        ("v3", ("norm_rel_ebd",), dict(norm_rel_ebd="none")),
        ("v3", ("pos_att_type", "position_buckets"), dict(pos_att_type="c2p", position_buckets=-1)),
        ("v3", ("position_biased_input",), dict(position_biased_input=True, emd_layers=1, emd_input="hidden")),
        ("v3", ("relative_attention",), dict(relative_attention=False)),
    ],
    ids=["v1", "v3", "norm", "terms", "input", "attention"],
)
def test_a_folder_of_microsofts_trainer_is_read_with_its_defaults(kind, absent, fields, tmp_path):
    """Regression test: a folder with renamed files was read as this package's, with v3's values for absent fields.
    Differences from Microsoft's modules, for nine configurations and two heads, were at most 3.4e-6 of the largest logit."""
    folder = trainer_folder(tmp_path, kind, microsoft(kind, heads=("classifier",)), absent=absent, hidden_act="relu")
    config = DebertaExtConfig.from_pretrained(folder)
    expected = DebertaExtConfig.from_dict(CONFIGS[kind] | dict(hidden_act="relu", pooler_hidden_act="relu") | fields)
    assert config.difference(expected) == {}
    if fields and "position_buckets" not in fields:
        model = DebertaExtForSequenceClassification.from_pretrained(folder)
        assert f"{absent[0]} = {fields[absent[0]]!r}" in str(model.loading_report)
        assert model.classifier.out_features == 3


def test_a_token_classifier_of_microsoft_has_a_dense_layer_before_it(tmp_path):
    weights = microsoft("v3", heads=("ner",))
    folder = trainer_folder(tmp_path, "v3", weights)
    model = CLASSES["token-classification"].from_pretrained(folder)
    ids = torch.arange(5, 25)[None]
    states = model.deberta(ids).last_hidden_state
    states = torch.nn.functional.gelu(states @ weights["proj.weight"].T + weights["proj.bias"])
    expected = states @ weights["classifier.weight"].T + weights["classifier.bias"]
    assert torch.allclose(model(ids).logits, expected, atol=1e-5) and not model.loading_report.unused
    model.save_pretrained(tmp_path / "ours")
    again = CLASSES["token-classification"].from_pretrained(tmp_path / "ours")
    assert equal_outputs(again(ids).logits, model(ids).logits)
    unused = DebertaExtModel.from_pretrained(folder).loading_report.unused
    assert unused.keys() == {name for name in weights if not name.startswith("deberta.")}
    with pytest.raises(ValueError, match="NER model as DebertaExtForTokenClassification"):
        DebertaExtForSequenceClassification.from_pretrained(folder)
    record = {name: x[:1] if name.startswith("classifier") else x for name, x in weights.items()}
    with pytest.raises(ValueError, match=r"ReCoRD model \(one output\) as DebertaExtForEntityScoring"):
        CLASSES["token-classification"].from_pretrained(trainer_folder(tmp_path, "v3", record))


def test_the_head_of_record_scores_entities_by_their_tokens(tmp_path):
    """Logits differ from Microsoft's module by at most 1.3e-7 of the largest; the loss is equal."""
    weights = {name: x[:1] if name.startswith("classifier") else x for name, x in microsoft("v3", heads=("ner",)).items()}
    folder = trainer_folder(tmp_path, "v3", weights)
    model = CLASSES["entity-scoring"].from_pretrained(folder)
    assert not model.loading_report.unused and read_contents(folder).heads == ["entity-scoring"]
    ids = torch.arange(5, 25)[None]
    states = model.deberta(ids).last_hidden_state[0]
    entities = [[3, 4, 7], [9]]
    logits = []
    for places in entities:
        shares = (states[places] @ states[0] / states.shape[1] ** 0.5).softmax(0)
        pooled = torch.nn.functional.gelu(shares @ states[places] @ weights["proj.weight"].T + weights["proj.bias"])
        logits.append(pooled @ weights["classifier.weight"][0] + weights["classifier.bias"][0])
    indices = torch.tensor([[[3, 4, 7], [9, 0, 0], [0, 0, 0]]])
    outputs = model(ids, entity_indices=indices, labels=torch.tensor([[1, 0, 1]]))
    assert torch.allclose(outputs.logits, torch.tensor([[*logits, -1e4]]), atol=1e-5)
    expected = (torch.nn.functional.softplus(-logits[0]) + torch.nn.functional.softplus(logits[1])) / 2
    assert torch.allclose(outputs.loss, expected, atol=1e-5)
    outputs.loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    assert model(ids, entity_indices=0 * indices, labels=torch.tensor([[1, 0, 1]])).loss == 0
    with pytest.raises(ValueError, match="entity_indices"):
        model(ids)


def test_a_folder_that_could_be_read_in_two_ways_is_refused_with_both_names(tmp_path):
    folder = trainer_folder(tmp_path, "v3", microsoft("v3"))
    (folder / "pytorch.model-001000.bin").rename(folder / "pytorch.model-000500.bin")
    trainer_folder(tmp_path, "v3", microsoft("v3"))
    with pytest.raises(ValueError, match=r"pytorch\.model-000500\.bin, pytorch\.model-001000\.bin; remove"):
        DebertaExtModel.from_pretrained(folder)
    (folder / "pytorch.model-000500.bin").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"got pytorch\.model-001000\.bin, pytorch_model\.bin; remove"):
        DebertaExtModel.from_pretrained(folder)
    (folder / "pytorch_model.bin").unlink()
    (folder / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"must not have both config\.json and model_config\.json; remove"):
        DebertaExtModel.from_pretrained(folder)


@pytest.mark.parametrize("variant", [None, "fp16"])
def test_sharded_checkpoint_loads(variant, tmp_path):
    weights = microsoft("v2")
    keys = sorted(weights)
    suffix, save = (".bin", torch.save) if variant is None else (f".{variant}.safetensors", save_file)
    shards = {f"weights-00001-of-00002{suffix}": keys[::2], f"weights-00002-of-00002{suffix}": keys[1::2]}
    for name, part in shards.items():
        save({key: weights[key] for key in part}, tmp_path / name)
    index = {"metadata": {}, "weight_map": {key: name for name, part in shards.items() for key in part}}
    name = "pytorch_model.bin.index.json" if variant is None else f"model.safetensors.index.{variant}.json"
    (tmp_path / name).write_text(json.dumps(index))
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["v2"]))
    report = CLASSES["replaced-token-detection"].from_pretrained(tmp_path, variant=variant).loading_report
    assert not report.initialised and all(key.startswith("lm_predictions.") for key in report.unused)


def test_report_tells_loaded_converted_new_and_unused(tmp_path, caplog):
    folder = write(tmp_path, "v1", microsoft("v1") | {"config": {"a": 1}}, num_labels=3)
    model = DebertaExtForSequenceClassification.from_pretrained(folder)
    report = model.loading_report
    assert report.initialised == ["classifier.bias", "classifier.weight", "pooler.dense.bias", "pooler.dense.weight"]
    assert report.unused["config"].startswith("not a tensor")
    assert {key.split(".")[0] for key in report.unused} == {"config", "lm_predictions", "mask_predictions"}
    assert "deberta.encoder.layer.0.attention.self.key_proj.bias" in report.loaded
    fused = report.converted["deberta.encoder.layer.0.attention.self.in_proj.weight"]
    assert [key.split("self.")[1] for key in fused] == [
        "query_proj.weight", "key_proj.weight", "value_proj.weight", "key_proj.bias",
    ]  # fmt: skip
    assert "4 newly initialised" in report.summary() and "newly initialised: classifier.bias" in str(report)
    assert len(report.loaded) + 4 == len(model.state_dict())


@pytest.mark.parametrize("heads", [("rtd",), ("lm", "rtd")])
def test_filling_masks_with_a_discriminator_is_warned_about(heads, tmp_path, caplog):
    """Regression test: the mask-filling head of v3 is random or unrelated; predictions were nonsense without a warning."""
    folder = write(tmp_path, "v3", microsoft("v3", heads=heads))
    model = DebertaExtForMaskedLM.from_pretrained(folder)
    (note,) = [note for note in model.loading_report.notes if "not trained to fill masks" in note]
    assert "from_checkpoints(...).generator" in note and note in caplog.text
    assert not CLASSES["replaced-token-detection"].from_pretrained(folder).loading_report.notes
    (tmp_path / "generator").mkdir()
    generator = DebertaExtForMaskedLM.from_pretrained(write(tmp_path / "generator", "v3", microsoft("v3", heads=("lm",))))
    assert not generator.loading_report.notes


@pytest.mark.parametrize("model_class", [DebertaExtModel, DebertaExtForSequenceClassification])
def test_a_checkpoint_without_positions_is_noted_of_models_that_fill_in_masks_alone(
    model_class, tmp_path, caplog, stock_config
):
    """Regression test: a classifier of transformers' classes warned about masked-language modelling."""
    DebertaV2ForSequenceClassification(stock_config("v3")).save_pretrained(tmp_path)
    model = model_class.from_pretrained(tmp_path)
    assert (model.config.emd_layers, model.config.emd_input) == (1, "hidden")
    assert not model.loading_report.notes and "mask" not in caplog.text.lower()


ONLY_DELTAS = {key.replace("word_embeddings.weight", "word_embeddings._weight"): x for key, x in microsoft("v3").items()}


@pytest.mark.parametrize(
    ("kind", "weights", "fields", "message"),
    [
        ("v3", None, {}, r"no weights: expected one of model\.safetensors"),
        # A discriminator that was saved before its first forward pass: transformers would give random embeddings.
        ("v3", ONLY_DELTAS, {}, r"only .*embeddings\._weight.*generator"),
        ("v3", dict(x=torch.ones(2)), {}, r"no tensor of .* fits DebertaExtModel; its first keys are x"),
        # Regression test: this returned a model with only new weights, and a table in the log.
        ("ours", dict(x=torch.ones(2)), {}, r"no tensor of .* fits DebertaExtModel"),
        ("v1", microsoft("v1"), dict(hidden_size=16), r"in_proj.weight must have shape \[48, 16\], got \[96, 32\]"),
    ],
    ids=["no weights", "only deltas", "nothing fits", "nothing fits ours", "fused weights of another size"],
)
def test_weights_that_give_no_model_are_refused_with_the_folder(kind, weights, fields, message, tmp_path):
    if kind == "ours":
        DebertaExtConfig(**SIZES, position_buckets=16).save_pretrained(tmp_path)
    else:
        (tmp_path / "config.json").write_text(json.dumps(CONFIGS[kind] | fields))
    if weights is not None:
        save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises((ValueError, OSError), match=message) as error:
        DebertaExtModel.from_pretrained(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_emd_is_off_without_positions_also_with_a_default_config_given(tmp_path):
    weights = microsoft("v3")
    del weights["deberta.embeddings.position_embeddings.weight"]
    folder = write(tmp_path, "v3", weights)
    model = DebertaExtForMaskedLM.from_pretrained(folder, config=DebertaExtConfig.from_pretrained(folder))
    assert model.config.emd_layers == 1 and model.loading_report.notes
    chosen = DebertaExtForMaskedLM.from_pretrained(folder, emd_layers=2)
    assert chosen.loading_report.initialised == ["deberta.embeddings.position_embeddings.weight"]


@pytest.mark.parametrize(("kind", "adapter"), [("v1", "adapter"), ("v3", "base")], ids=["beside v1", "in v3's folder"])
def test_adapter_of_an_official_checkpoint_is_refused_with_the_way_to_load_it(kind, adapter, tmp_path):
    """Regression test: the base model was loaded without its fused weights, or without the adapter."""
    for name in ("base", "adapter"):
        (tmp_path / name).mkdir()
    write(tmp_path / "base", kind, microsoft(kind))
    settings = {"base_model_name_or_path": str(tmp_path / "base"), "peft_type": "LORA"}
    (tmp_path / adapter / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=r"not saved by this package.*PeftModel.from_pretrained"):
        DebertaExtModel.from_pretrained(tmp_path / adapter)


def test_stock_config_object_is_refused_with_the_translation():
    with pytest.raises(TypeError, match=r"expects a DebertaExtConfig, got DebertaV2Config; .*from_dict"):
        DebertaExtModel(DebertaV2Config(**SIZES))


def own_or_official(kind, folder):
    """Save a model to a folder and return the path of its model.safetensors."""
    if kind == "ours":
        DebertaExtForMaskedLM(DebertaExtConfig(**SIZES, position_buckets=16)).save_pretrained(folder)
    else:
        write(folder, kind, microsoft(kind), "model.safetensors")
    return folder / "model.safetensors"


@pytest.mark.parametrize("kind", ["ours", "v1", "v3"])
def test_weights_that_are_integers_are_refused(kind, tmp_path):
    path = own_or_official(kind, tmp_path)
    tensors = {name: (100 * tensor).to(torch.int8) for name, tensor in load_file(path).items()}
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(ValueError, match=r"must have a floating-point dtype, got (torch\.)?int8"):
        DebertaExtForMaskedLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("kind", ["ours", "v1", "v3"])
def test_a_tensor_that_is_missing_is_reported_and_logged(kind, tmp_path, caplog):
    path = own_or_official(kind, tmp_path)
    tensors = load_file(path)
    name = "deberta.encoder.layer.1.output.dense.weight"
    tensors["nonsense.weight"] = tensors.pop(name)
    save_file(tensors, path, metadata={"format": "pt"})
    with caplog.at_level(logging.WARNING):
        report = DebertaExtForMaskedLM.from_pretrained(tmp_path).loading_report
    assert report.initialised == [name] and "nonsense.weight" in report.unused
    # By transformers, which merges the names of layers: layer.{0, 1}.
    assert "output.dense.weight" in caplog.text and "MISSING" in caplog.text


@pytest.mark.parametrize("kind", ["v3", "ours"])
def test_float16_on_a_machine_without_accelerator_is_warned_about(kind, tmp_path, caplog, monkeypatch):
    """Check the warning: transformers keeps the file's dtype, and float16 is many times slower on a CPU."""
    path = own_or_official(kind, tmp_path)
    save_file({name: tensor.half() for name, tensor in load_file(path).items()}, path, metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((tmp_path / "config.json").read_text().replace('"float32"', '"float16"'))
    warning = f'{tmp_path} is float16, which is many times slower than float32 on a CPU: pass dtype="float32"'
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    DebertaExtForMaskedLM.from_pretrained(tmp_path, dtype="float16")
    assert warning not in caplog.text
    assert DebertaExtForMaskedLM.from_pretrained(tmp_path).dtype == torch.float16
    assert caplog.text.count(warning) == 1
