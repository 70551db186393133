# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext info`: every kind of folder is named, its heads are found, and what is missing or broken is told."""

import json
import re

import pytest
import torch
from hub_models import upload
from local_hub import LocalHub
from microsoft_checkpoints import CONFIGS, WORDS, microsoft, official_pair, write
from safetensors.torch import save_file
from tiny_constants import SHARING
from tiny_models import tiny_tokenizer
from transformers import BertConfig, BertModel, DebertaV2ForMaskedLM

from hf_deberta_ext import (
    DebertaExtConfig,
    DebertaExtForMaskedLM,
    DebertaExtForTokenClassification,
    DebertaExtModel,
)
from hf_deberta_ext.commands import main
from hf_deberta_ext.conversion.checkpoint_contents import HEADS, read_contents
from hf_deberta_ext.conversion.deberta_v2 import save_as_deberta_v2
from hf_deberta_ext.conversion.describe import describe, description_text
from hf_deberta_ext.model.presets import PRESETS
from hf_deberta_ext.native import kernel_status
from hf_deberta_ext.training.manifest import write_manifest


def ours(folder, tiny_config, model_class=DebertaExtForMaskedLM, kind="v3", **fields):
    model = model_class(tiny_config(kind, **fields))
    model.save_pretrained(folder)
    return model


def edit(folder, **changes):
    """Changes config.json; None removes a field."""
    file = folder / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


@pytest.mark.parametrize(
    ("kind", "heads", "expected"),
    [("v1", ("lm",), "DeBERTa v1"), ("v2", ("lm",), "DeBERTa v2"), ("v3", ("lm", "rtd"), "DeBERTa v3")],
)
def test_official_checkpoints_are_named_by_their_version(kind, heads, expected, tmp_path):
    facts = describe(str(write(tmp_path, kind, microsoft(kind, heads))))
    model_type = CONFIGS[kind]["model_type"]
    assert facts["kind"] == f"{expected} as Microsoft publishes it ({model_type})"
    assert facts["heads"] == ["masked-lm", "replaced-token-detection"][: len(heads)]
    assert facts["problems"] == [] and facts["preset"] is None
    assert facts["sizes"]["num_hidden_layers"] == 2 and facts["sizes"]["vocab_size"] == 64


def test_an_official_pair_and_one_whose_generator_is_not_whole(tmp_path):
    folder, generator, _ = official_pair(tmp_path / "pair")
    facts = describe(str(folder))
    assert facts["kind"] == "DeBERTa v3 as Microsoft publishes it (deberta-v2, discriminator and generator)"
    assert "pretraining" in facts["heads"] and facts["classes"]["DebertaExtForPreTraining"] == []
    assert facts["unread"] == [f"deberta.embeddings.{name}_embeddings._weight" for name in ("position", "word")]
    del generator["lm_predictions.lm_head.bias"]
    torch.save(generator, folder / "pytorch_model.generator.bin")
    facts = describe(str(folder))
    assert facts["heads"] == ["masked-lm", "replaced-token-detection"]
    assert facts["classes"]["DebertaExtForPreTraining"] == ["generator.lm_predictions is new"]


def test_what_transformers_saved_is_not_called_microsofts(stock_config, tmp_path):
    DebertaV2ForMaskedLM(stock_config("v3")).save_pretrained(tmp_path)
    facts = describe(str(tmp_path))
    assert facts["kind"] == "DeBERTa v3 as transformers saves it (deberta-v2, DebertaV2ForMaskedLM)"
    assert facts["heads"] == ["masked-lm"] and facts["problems"] == []
    assert any("table of absolute positions" in line for line in facts["missing"])


@pytest.mark.parametrize(
    ("head", "model_class", "labels"),
    [
        *((name, cls, n) for name, cls in HEADS.items() if name not in ("base", "pretraining") for n in (2, 3)),
        *((name, HEADS[name], 1) for name in ("multiple-choice", "sequence-classification")),
    ],
)
def test_the_head_of_our_models_is_found(head, model_class, labels, tiny_config, tmp_path):
    """One score is a choice or a number, as the architecture says."""
    model = ours(tmp_path, tiny_config, model_class, num_labels=labels)
    facts = describe(str(tmp_path))
    assert facts["kind"] == f"a model of this package ({model_class.__name__})"
    assert facts["heads"][0] == head and (len(facts["heads"]) == 1 or labels == 1)
    assert facts["problems"] == [] and facts["unread"] == []
    assert sum(facts["parameters"].values()) == model.num_parameters()


def test_an_encoder_alone_has_no_head(tiny_config, tmp_path):
    ours(tmp_path, tiny_config, DebertaExtModel)
    facts = describe(str(tmp_path))
    assert facts["heads"] == [] and facts["classes"]["DebertaExtModel"] == []
    assert facts["classes"]["DebertaExtForQuestionAnswering"] == ["qa_outputs is new"]


@pytest.mark.parametrize("sharing", SHARING)
def test_a_joint_model_is_whole_and_has_the_sizes_of_both(sharing, joint, tmp_path):
    model = joint(sharing)
    model.save_pretrained(tmp_path)
    facts = describe(str(tmp_path))
    assert facts["kind"].startswith("generator and discriminator")
    assert facts["heads"] == ["pretraining"] and list(facts["classes"]) == ["DebertaExtForPreTraining"]
    assert facts["embedding_sharing"] == sharing and facts["problems"] == [] and facts["unread"] == []
    assert facts["generator_sizes"]["num_hidden_layers"] == model.generator.config.num_hidden_layers
    assert sum(facts["parameters"].values()) == model.num_parameters()


def test_a_v1_model_in_the_stock_format_is_still_v1(tiny_config, tmp_path):
    save_as_deberta_v2(DebertaExtModel(tiny_config("v1")), tmp_path)
    assert describe(str(tmp_path))["kind"] == "DeBERTa v1 as transformers saves it (deberta-v2, DebertaV2Model)"


def test_a_model_of_another_type_is_told_and_not_loaded(tmp_path, capsys):
    BertModel(BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, vocab_size=9)).save_pretrained(tmp_path)
    assert main(["info", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "a model of another type: bert (BertModel)" in printed
    assert "config.json has model_type 'bert'; this package loads DeBERTa alone" in printed


@pytest.mark.parametrize("name", PRESETS)
def test_a_published_size_is_known_by_its_shape(name, tmp_path):
    # Of what is no shape, it may differ.
    DebertaExtConfig.from_preset(name, hidden_dropout_prob=0.3, num_labels=7).save_pretrained(tmp_path)
    contents = read_contents(str(tmp_path))
    assert contents.preset == name
    assert contents.problems[0].startswith("no weights: none of model.safetensors")


def test_a_tokenizer_alone(tmp_path):
    tiny_tokenizer().save_pretrained(tmp_path)
    facts = describe(str(tmp_path))
    assert facts["kind"] == "a tokenizer alone" and facts["tokenizer"]["tokens"] == 7 and facts["problems"] == []


def test_an_adapter_and_its_base(tmp_path):
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "user/base"}))
    assert describe(str(folder))["problems"] == ["adapter_model.safetensors is not there"]
    key = "base_model.model.deberta.encoder.layer.0.attention.self.query_proj.lora_A.weight"
    save_file({key: torch.zeros(4, 32)}, folder / "adapter_model.safetensors")
    facts = describe(str(folder))
    assert facts["kind"] == "an adapter of peft (LORA), not a model" and facts["base_model"] == "user/base"
    assert facts["parameters"] == {"adapter": 128} and facts["modules"] == ["query_proj"] and facts["problems"] == []
    # A run with --lora leaves the configuration of the base beside it, which knows the labels.
    config = {"model_type": "deberta-ext", "id2label": {"0": "bad", "1": "good"}, "architectures": ["DebertaExtForX"]}
    (folder / "config.json").write_text(json.dumps(config))
    facts = describe(str(folder))
    assert f"DebertaExtForX.from_pretrained('user/base', config={str(folder)!r}, ignore_mismatched" in facts["loading"][0]
    assert facts["kind"] == "an adapter of peft (LORA), not a model" and facts["labels"] == ["bad", "good"]
    assert "labels     bad, good" in description_text(facts)
    gone = str(tmp_path / "gone")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": gone}))
    assert describe(str(folder))["problems"] == [f"its base model {gone} is not there"]


def test_a_run_tells_its_last_whole_checkpoint(tiny_config, tmp_path, capsys):
    (tmp_path / "checkpoint-10").mkdir()
    facts = describe(str(tmp_path))
    assert facts["checkpoints"] == ["checkpoint-10"] and facts["last_whole_checkpoint"] is None and facts["problems"]
    for step in (10, 200, 300):
        folder = tmp_path / f"checkpoint-{step}"
        ours(folder, tiny_config)
        (folder / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
            torch.save({}, folder / name)
        write_manifest(folder)
    (folder / "optimizer.pt").unlink()
    facts = describe(str(tmp_path))
    assert facts["kind"] == "the folder of a training run"
    assert facts["checkpoints"] == ["checkpoint-10", "checkpoint-200", "checkpoint-300"]
    assert facts["last_whole_checkpoint"] == "checkpoint-200"
    assert main(["info", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert f"deberta-ext info {tmp_path / 'checkpoint-200'}" in printed
    assert "  run        3 checkpoints, the last whole one is checkpoint-200\n" in printed
    assert describe(str(tmp_path / "checkpoint-200"))["trainer_state"] == "whole"
    cut = describe(str(tmp_path / "checkpoint-300"))
    assert cut["trainer_state"] == "incomplete" and any("cannot be resumed" in line for line in cut["missing"])
    assert cut["problems"] == []
    # A finished run has its model beside them.
    ours(tmp_path, tiny_config)
    # And a state of its own, which does not make a checkpoint of it: it was called cut off.
    (tmp_path / "trainer_state.json").write_text('{"global_step": 300}')
    facts = describe(str(tmp_path))
    assert facts["kind"].startswith("a model of this package") and facts["last_whole_checkpoint"] == "checkpoint-200"
    assert "trainer_state" not in facts


def test_a_model_whose_folder_is_named_after_no_step_is_no_checkpoint_that_was_cut_off(tiny_config, tmp_path, monkeypatch):
    """That of somebody's own "checkpoint-best" was. One of a run is known from within, too."""
    for name in ("checkpoint-best", "checkpoint-5"):
        ours(tmp_path / name, tiny_config)
    assert "trainer_state" not in describe(str(tmp_path / "checkpoint-best"))
    monkeypatch.chdir(tmp_path / "checkpoint-5")
    assert describe(".")["trainer_state"] == describe(str(tmp_path / "checkpoint-5"))["trainer_state"] == "incomplete"


def test_a_folder_is_whole_with_tokenizer_and_card(tiny_config, tmp_path):
    ours(tmp_path, tiny_config)
    missing = describe(str(tmp_path))["missing"]
    assert len(missing) == 2 and missing[0].startswith("a tokenizer: ") and missing[1].startswith("README.md")
    tiny_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "README.md").write_text("# A card\n")
    facts = describe(str(tmp_path))
    assert facts["missing"] == [] and facts["problems"] == [] and facts["unread"] == []
    assert facts["tokenizer"] == dict(file="tokenizer.json", tokens=7, model_max_length=64)
    assert any("trust_remote_code=True), without the package too" in line for line in facts["loading"])


def test_a_tokenizer_of_another_model_is_told(tiny_config, tmp_path):
    ours(tmp_path, tiny_config)
    tiny_tokenizer([f"word{i}" for i in range(80)]).save_pretrained(tmp_path)
    missing = " ".join(describe(str(tmp_path))["missing"])
    assert "a tokenizer of this model: the tokenizer has 85 tokens" in missing
    (tmp_path / "tokenizer.json").write_text("{")
    assert "a tokenizer that can be loaded" in " ".join(describe(str(tmp_path))["missing"])


def test_missing_and_changed_model_code_is_told(tiny_config, tmp_path):
    ours(tmp_path, tiny_config)
    (tmp_path / "encoder.py").write_text((tmp_path / "encoder.py").read_text() + "# changed\n")
    missing = describe(str(tmp_path))["missing"]
    assert "the model code of this version of the package: encoder.py differ" in missing
    (tmp_path / "encoder.py").unlink()
    facts = describe(str(tmp_path))
    assert any(line.startswith("model code: encoder.py; it loads only where") for line in facts["missing"])
    assert not any("trust_remote_code" in line for line in facts["loading"])
    assert facts["problems"] == []


def test_an_auto_map_that_is_not_whole_is_told(tiny_config, tmp_path):
    ours(tmp_path, tiny_config)
    auto_map = json.loads((tmp_path / "config.json").read_text())["auto_map"]
    del auto_map["AutoModelForMaskedLM"]
    edit(tmp_path, auto_map=auto_map)
    facts = describe(str(tmp_path))
    assert any(line.startswith("AutoModelForMaskedLM in the auto_map") for line in facts["missing"])
    assert any("after `import hf_deberta_ext`" in line for line in facts["loading"])
    edit(tmp_path, auto_map=None)
    assert any(line.startswith("auto_map in config.json") for line in describe(str(tmp_path))["missing"])


def test_a_head_of_another_size_is_told(tmp_path):
    folder = write(tmp_path, "v1", microsoft("v1", heads=("classifier",)))
    facts = describe(str(folder))
    assert facts["heads"] == []
    assert facts["classes"]["DebertaExtForSequenceClassification"] == [
        "classifier.bias is of another size", "classifier.weight is of another size",
    ]  # fmt: skip


def status_and_text(folder, capsys):
    status = main(["info", str(folder)])
    printed = capsys.readouterr()
    assert printed.err == ""
    return status, printed.out


def test_deltas_without_their_generator_cannot_be_loaded(tmp_path, capsys):
    folder, _, _ = official_pair(tmp_path / "deltas", whole_table=False)
    facts = describe(str(folder))
    assert facts["problems"] == [] and facts["heads"] == ["pretraining"] == [
        name for name, cls in HEADS.items() if cls.__name__ in facts["classes"]
    ]
    (folder / "pytorch_model.generator.bin").unlink()
    status, text = status_and_text(folder, capsys)
    assert status == 1 and "Add the generator's table" in text and text.endswith("cannot be loaded\n")


def shards(folder):
    weights = microsoft("v3")
    names = sorted(weights)
    files = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in files.items():
        save_file({name: weights[name] for name in part}, folder / file)
    index = {"metadata": {}, "weight_map": {name: file for file, part in files.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(CONFIGS["v3"]))
    return folder, files


def test_shards_that_the_index_names_are_looked_for(tmp_path, capsys):
    folder, files = shards(tmp_path)
    assert list(describe(str(folder))["weight_files"]) == [*files] and describe(str(folder))["problems"] == []
    (folder / "model-00002-of-00002.safetensors").unlink()
    status, text = status_and_text(folder, capsys)
    assert status == 1
    assert "model-00002-of-00002.safetensors, which model.safetensors.index.json names, is not there" in text


def test_tensors_that_the_index_names_are_looked_for(tmp_path):
    folder, _ = shards(tmp_path)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["ghost.weight"] = "model-00001-of-00002.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    problems = describe(str(folder))["problems"]
    assert problems == ["1 tensors that model.safetensors.index.json names are in no shard, such as ghost.weight"]
    (folder / "model.safetensors.index.json").write_text("{}")
    assert describe(str(folder))["problems"][0].startswith("the weight_map of ")


def test_damaged_weights_are_a_problem(tmp_path):
    path = write(tmp_path, "v3", microsoft("v3")) / "pytorch_model.bin"
    path.write_bytes(path.read_bytes()[:3000])
    assert re.search(r"pytorch_model\.bin is (truncated or )?damaged", describe(str(tmp_path))["problems"][0])


def without(*names):
    return {name: tensor for name, tensor in microsoft("v3").items() if name not in names}


OUTPUT = "deberta.encoder.layer.1.output.dense"


@pytest.mark.parametrize(
    ("weights", "fields", "problem"),
    [
        (without(), dict(vocab_size=70), f"{WORDS}.weight has shape [64, 32], but config.json makes it [70, 32]"),
        ({"a.weight": torch.zeros(2)}, {}, "no tensor belongs in a DeBERTa; the keys are like a.weight"),
        (without(), dict(num_attention_heads=5), "config.json: "),
        (
            without(f"{OUTPUT}.weight", f"{OUTPUT}.bias"),
            {},
            f"parameters that are not in the file: {OUTPUT}.weight and 1 more",
        ),
    ],
    ids=["another shape", "another model", "refused configuration", "missing parameters"],
)
def test_weights_and_configuration_that_do_not_fit_are_a_problem(weights, fields, problem, tmp_path):
    facts = describe(str(write(tmp_path, "v3", weights, **fields)))
    assert facts["problems"][0].startswith(problem)


def test_weights_of_other_frameworks_and_tensors_that_no_class_reads_are_told(tmp_path):
    folder = write(tmp_path, "v3", microsoft("v3") | {"span_boundary.dense.weight": torch.zeros(2, 2)})
    assert describe(str(folder))["unread"] == ["span_boundary.dense.weight"]
    (folder / "pytorch_model.bin").rename(folder / "tf_model.h5")
    assert describe(str(folder))["problems"][0].endswith("; tf_model.h5 cannot be read here")


def test_mdeberta_is_known_by_its_vocabulary(tmp_path):
    folder = write(tmp_path, "v3", {f"{WORDS}.weight": torch.zeros(251000, 1)}, vocab_size=251000)
    assert describe(str(folder))["kind"].startswith("mDeBERTa v3 as Microsoft publishes it")


def one_line(arguments, capsys):
    assert main(["info", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    return printed.err


def test_what_is_no_checkpoint_is_one_line(tmp_path, capsys):
    assert f"there is no folder {tmp_path / 'none'}" in one_line([str(tmp_path / "none")], capsys)
    assert "has no config.json: it holds no model" in one_line([str(tmp_path)], capsys)
    file = tmp_path / "config.json"
    for text, message in (("{", "is not JSON"), ("[1]", "must hold a JSON object, not a list")):
        file.write_text(text)
        assert message in one_line([str(tmp_path)], capsys)
    file.write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "a Git LFS pointer, not the file itself" in one_line([str(tmp_path)], capsys)
    assert "is a file; give the folder that it is in" in one_line([str(file)], capsys)


def test_a_repository_without_the_hub_is_one_line(capsys):
    """The tests run with HF_HUB_OFFLINE."""
    assert "the Hub cannot be reached (" in (error := one_line(["nobody/nothing"], capsys)) and "HF_HUB_OFFLINE" in error
    assert "is neither a folder nor a repository id" in one_line(["nobody/no thing"], capsys)


def test_the_text_has_the_facts(tiny_config, tmp_path, capsys):
    ours(tmp_path, tiny_config)
    assert main(["info", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{tmp_path}\n  what       a model of this package (DebertaExtForMaskedLM)\n")
    for line in (
        "shape      layers 3, hidden 32, heads 4, feed-forward 48, vocabulary 64, positions 64",
        "heads      masked-lm",
        "whole in   DebertaExtModel, DebertaExtForMaskedLM",
        "new head   DebertaExtForReplacedTokenDetection: mask_predictions is new",
        "missing    a tokenizer",
        "result     can be loaded",
    ):
        assert f"\n  {line}" in text, line


def test_json_is_the_same_for_machines(tiny_config, tmp_path, capsys):
    ours(tmp_path, tiny_config, DebertaExtForTokenClassification)
    assert main(["info", str(tmp_path), "--json"]) == 0
    expected = describe(str(tmp_path)) | dict(attention=kernel_status())
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(expected))
    main(["info", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "attention" in line] == [f"  attention  {kernel_status()}"]


def test_a_repository_is_known_without_its_weights(tiny_config, tmp_path, monkeypatch):
    ours(tmp_path / "local", tiny_config)
    with LocalHub() as hub:
        hub.connect(monkeypatch, tmp_path / "home")
        upload(tmp_path / "local")
        facts = describe("user/name")
        assert facts["heads"] == ["masked-lm"] and facts["problems"] == []
        assert facts["parameters"] == describe(str(tmp_path / "local"))["parameters"]
        assert list(facts["weight_files"]) == ["model.safetensors"]
        assert facts["weight_files"]["model.safetensors"] == (tmp_path / "local" / "model.safetensors").stat().st_size
        assert not list((tmp_path / "home").rglob("model.safetensors"))
        with pytest.raises(OSError, match="user/name has no revision v9"):
            describe("user/name", revision="v9")
        with pytest.raises(OSError, match="no such repository on the Hub"):
            describe("user/other")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (dict(status=403, headers={"X-Error-Code": "GatedRepo"}), "user/name is gated: ask for access on its page"),
        (dict(status=401, headers={"X-Error-Code": "RepoNotFound"}), "no such repository on the Hub (or it is private"),
        (dict(kind="cut"), "deberta-ext info: error: "),
        (None, "there is no folder user/name, and the Hub cannot be reached ("),
    ],
    ids=["gated", "private", "cut", "no answer"],
)
def test_a_hub_that_refuses_is_one_line(fault, message, tmp_path, monkeypatch, capsys):
    with LocalHub() as hub:
        hub.connect(monkeypatch, tmp_path / "home")
        if fault is not None:
            hub.fail("/user/name", times=None, **fault)
            error = one_line(["user/name"], capsys)
    if fault is None:
        error = one_line(["user/name"], capsys)
    assert message in error


def test_bin_files_of_a_repository_are_known_after_a_download(tmp_path, monkeypatch):
    (tmp_path / "local").mkdir()
    folder, _, _ = official_pair(tmp_path / "local")
    with LocalHub() as hub:
        hub.connect(monkeypatch, tmp_path / "home")
        upload(folder)
        facts = describe("user/name")
        assert facts["parameters"] == {} and facts["problems"] == []
        assert any("pytorch_model.bin, which is on the Hub and not here: --download" in line for line in facts["missing"])
        facts = describe("user/name", download=True)
        assert "pretraining" in facts["heads"] and facts["parameters"]
