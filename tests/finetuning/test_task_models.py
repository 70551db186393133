# SPDX-License-Identifier: Apache-2.0
"""Models for fine-tuning: all families, half precision, random weights, adapters and incompatible checkpoints."""

import json
import shutil

import pytest
import torch
from microsoft_checkpoints import microsoft, trainer_folder
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from toy_task import CONFIGS, equal, read, run, sentences, toy_tokenizer, weights
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

from hf_deberta_ext import DebertaExtConfig
from hf_deberta_ext.tokenization import wrap_tokenizer


@pytest.mark.parametrize("family", CONFIGS)
def test_models_of_every_family_are_trained(family, folder_of, tmp_path):
    before = weights(folder_of(family))
    metrics = run(folder_of(family), tmp_path / "run", "--do_train", "--do_eval", max_steps=2)
    after = weights(tmp_path / "run")
    assert 0 <= metrics["eval_accuracy"] <= 1 and all(torch.isfinite(value).all() for value in after.values())
    shared = {*before} & {*after}
    assert len(shared) > 10 and any(not torch.equal(before[name], after[name]) for name in shared)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run")
    expected = DebertaExtConfig if family in ("v1", "v2") else type(CONFIGS[family]())
    assert type(model.config) is expected and model.config.id2label == {0: "bad", 1: "good"}


def test_half_precision_checkpoints_are_trained_in_float32_unless_a_flag_says_otherwise(folder_of, tmp_path, caplog):
    folder = tmp_path / "half"
    AutoModelForMaskedLM.from_pretrained(folder_of("v2"), dtype=torch.float16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(folder_of("v2")).save_pretrained(folder)
    for flags, dtype in (({}, torch.float32), ({"dtype": "bfloat16"}, torch.bfloat16)):
        run(folder, tmp_path / str(dtype), "--do_train", max_steps=1, **flags)
        assert {value.dtype for value in weights(tmp_path / str(dtype)).values()} == {dtype}
    assert "updates smaller than 1/256 of a parameter are lost" in caplog.text


@pytest.mark.parametrize("family", ["v1", "v2"])
def test_official_checkpoints_are_read_as_this_packages_model(family, folder_of, tmp_path, caplog):
    """With a learning rate of zero, the loss equals the loss of transformers' model."""
    given = dict(learning_rate=0.0, max_steps=1)
    stock = tmp_path / "stock"
    run(folder_of(family), stock, "--do_train", "--do_eval", model_type="stock", **given)
    assert read(stock, "config.json")["model_type"] == CONFIGS[family]().model_type
    assert "as this package's model" not in caplog.text
    metrics = run(stock, tmp_path / "ours", "--do_train", "--do_eval", **given)
    assert read(tmp_path / "ours", "config.json")["model_type"] == "deberta-ext"
    saved_by = f"{stock} is a checkpoint of transformers' {CONFIGS[family]().model_type} classes: it is trained"
    hint = "as this package's model, deberta-ext; --model_type stock uses transformers' class"
    assert caplog.text.count(f"{saved_by} {hint}") == 1
    assert metrics["eval_loss"] == pytest.approx(read(stock, "all_results.json")["eval_loss"], rel=1e-5)


@pytest.mark.parametrize("argv", [[], ["--lora"], ["--seeds", "1"]], ids=["whole", "adapter", "seeds"])
def test_a_saved_folder_serves_the_next_command(argv, folder_of, tmp_path, capsys, recwarn):
    """A folder or checkpoint has model or adapter, labels and tokenizer; no warnings of other packages are shown."""
    run(folder_of("v2"), tmp_path / "run", "--do_train", "--do_eval", *argv, max_steps=2, save_strategy="epoch")
    folder = tmp_path / "run" / "seed-1" if "--seeds" in argv else tmp_path / "run"
    assert f"{folder} contains the model, its tokenizer and its card." in capsys.readouterr().out
    before = read(folder, "eval_results.json")["eval_loss"]
    for name in (folder, folder / "checkpoint-2"):
        measured = run(name, tmp_path / "again" / name.name, "--do_eval")
        assert measured["eval_loss"] == pytest.approx(before, rel=1e-5)
    assert [warning for warning in recwarn if issubclass(warning.category, FutureWarning)] == []


def test_a_folder_of_microsofts_trainer_is_read_as_this_packages_model(tmp_path, caplog):
    source = tmp_path / "microsoft"
    source.mkdir()
    table = "deberta.embeddings.word_embeddings.weight"
    state = microsoft("v3", heads=("lm",)) | {table: torch.randn(32, 32)}
    toy_tokenizer().save_pretrained(trainer_folder(source, "v3", state, vocab_size=32, pad_token_id=2))
    run(source, tmp_path / "run", "--do_train", max_steps=1, learning_rate=0.0)
    assert read(tmp_path / "run", "config.json")["model_type"] == "deberta-ext"
    assert caplog.text.count("microsoft is a DeBERTa checkpoint in Microsoft's own files: it is trained as") == 1
    assert torch.equal(weights(tmp_path / "run")[table], state[table])


def test_training_from_scratch_takes_the_shape_with_replaced_fields_and_an_adversarial_loss(folder_of, tmp_path):
    overrides = "hidden_dropout_prob=0.0,num_hidden_layers=1"
    more = dict(max_steps=1, learning_rate=0.0, sift_weight=1, config_overrides=overrides)
    run(folder_of("bert"), tmp_path / "run", "--do_train", "--from_scratch", **more)
    config = AutoConfig.from_pretrained(tmp_path / "run")
    assert (config.hidden_dropout_prob, config.num_hidden_layers) == (0, 1)
    before, after = weights(folder_of("bert")), weights(tmp_path / "run")
    name = "bert.encoder.layer.0.output.dense.weight"
    assert before[name].shape == after[name].shape and not torch.equal(before[name], after[name])
    history = read(tmp_path / "run", "trainer_state.json")["log_history"]
    assert all(entry["sift_size"] > 0 for entry in history if "loss" in entry)
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert "trained from random weights" in card and "weight 1, default" in card


def test_the_dropout_of_a_recipe_reaches_the_model(folder_of, tmp_path):
    recipe = dict(task_name="cola", recipe="base", max_steps=1)
    run(folder_of("v2"), tmp_path / "run", "--do_train", **recipe)
    assert AutoConfig.from_pretrained(tmp_path / "run").cls_dropout == 0.15
    run(folder_of("v2"), tmp_path / "own", "--do_train", **recipe, config_overrides="cls_dropout=0.5")
    assert AutoConfig.from_pretrained(tmp_path / "own").cls_dropout == 0.5


@pytest.mark.parametrize(
    ("family", "adapted", "head"),
    [
        ("ours", "query_proj", {"pooler", "classifier"}),
        ("v1", "query_proj", {"pooler", "classifier"}),
        ("v1", "in_proj", {"pooler", "classifier"}),
        ("bert", "query", {"bert.pooler", "classifier"}),
        ("electra", "query", {"classifier"}),
    ],
)
def test_adapters_are_saved_with_head_and_labels_and_used_again(family, adapted, head, folder_of, tmp_path):
    import peft

    folder = tmp_path / "run"
    labels = ("--labels", "bad", "good", "other")
    # Later without the flag: an adapter is loaded with the class that it was trained with.
    stock = {"model_type": "stock"} if adapted == "in_proj" else {}
    run(folder_of(family), folder, "--do_train", "--do_eval", "--lora", *labels, learning_rate=0.1, **stock)
    assert not (folder / "model.safetensors").exists()
    config = read(folder, "adapter_config.json")
    assert adapted in config["target_modules"] and {*config["modules_to_save"]} >= head
    saved = load_file(folder / "adapter_model.safetensors")
    assert any(f"{adapted}.lora_A" in name for name in saved)
    assert {part for part in head if any(f"{part}." in name for name in saved)} == head

    # Loaded with the code of the card
    labelled = AutoConfig.from_pretrained(folder)
    assert labelled.id2label == {0: "bad", 1: "good", 2: "other"}
    model = AutoModelForSequenceClassification.from_pretrained(folder_of(family), config=labelled)
    model = peft.PeftModel.from_pretrained(model, folder).eval()
    rows = sentences(10, 1)
    inputs = AutoTokenizer.from_pretrained(folder)([row["text"] for row in rows], padding=True, return_tensors="pt")
    with torch.no_grad():
        guessed = model(**inputs).logits.argmax(-1).tolist()
    assert guessed == read(folder, "eval_answers.json")
    # Loaded by the script, which continues its training
    run(folder, tmp_path / "further", "--do_train", *labels, max_steps=1)
    further = load_file(tmp_path / "further" / "adapter_model.safetensors")
    assert further.keys() == saved.keys() and not equal(further, saved)
    assert f'base = "{folder_of(family).name}"' in (tmp_path / "further" / "README.md").read_text(encoding="utf-8")


def test_checkpoints_with_wrong_weights_are_refused(folder_of, tmp_path):
    broken, name = tmp_path / "broken", "bert.encoder.layer.1.output.dense.weight"
    file = shutil.copytree(folder_of("bert"), broken) / "model.safetensors"
    state = weights(broken)
    del state[name]
    save_file(state, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=f"lacks 1 weights of its encoder, such as {name}"):
        run(broken, tmp_path / "run", "--do_train")
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ValueError, match="cannot be read, or do not fit"):
        run(broken, tmp_path / "run", "--do_train")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("family", "flags", "values", "message"),
    [
        ("bert", [], dict(dtype="float16"), "--dtype must be float32 or bfloat16"),
        ("bert", [], dict(config_overrides="hiden=1"), "BertConfig has no field 'hiden', only .*hidden_size"),
        ("bert", ["--ignore_mismatched_sizes"], dict(config_overrides="intermediate_size=64"), "does not fit the weights"),
        ("v2", ["--lora", "--lora_target_modules", "nothing"], {}, r"must be linear layers .*query_proj.*, got .'nothing'"),
        # Bug: the flag was silently ignored.
        ("ours", [], dict(model_type="stock"), r"needs a checkpoint of transformers, got .*--to deberta-v2"),
    ],
)
def test_flags_that_do_not_fit_a_model_are_refused(family, flags, values, message, folder_of, tmp_path):
    with pytest.raises(ValueError, match=message):
        run(folder_of(family), tmp_path / "run", "--do_train", *flags, **values)
    assert not (tmp_path / "run").exists()


def test_heads_for_other_labels_are_refused_unless_a_new_one_is_asked_for(folder_of, tmp_path, caplog):
    folder = tmp_path / "two_labels"
    run(folder_of("ours"), folder, "--do_train", max_steps=1)
    argv = ("--do_train", "--labels", "bad", "good", "other")
    with pytest.raises(ValueError, match=r"this head has 2 outputs, the task needs 3. Give --ignore_mismatched_sizes"):
        run(folder, tmp_path / "run", *argv)
    assert not (tmp_path / "run").exists()
    run(folder, tmp_path / "run", *argv, "--ignore_mismatched_sizes", max_steps=1)
    assert weights(tmp_path / "run")["classifier.weight"].shape == (3, 32)
    assert "newly initialised weights, to be trained: classifier.bias, classifier.weight" in caplog.text


@pytest.fixture(scope="module")
def mnli(tmp_path_factory):
    """Save a DeBERTa v1 model with a head of three labels, as of MNLI; return its folder."""
    folder = tmp_path_factory.mktemp("mnli")
    config = CONFIGS["v1"]()
    config.num_labels = 3
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    toy_tokenizer().save_pretrained(folder)
    return folder


def test_recipes_that_begin_at_mnli_make_a_new_head(mnli, tmp_path):
    run(mnli, tmp_path / "run", "--do_train", task_name="rte", recipe="base", max_steps=1)
    assert weights(tmp_path / "run")["classifier.weight"].shape == (2, 32)
    with pytest.raises(ValueError, match="this head has 3 outputs, the task needs 2"):
        run(mnli, tmp_path / "other", "--do_train", task_name="cola", recipe="base", max_steps=1)


@pytest.mark.parametrize("argv", [["--do_eval"], ["--do_predict"], ["--do_eval", "--ignore_mismatched_sizes"]])
def test_models_without_a_trained_head_are_not_measured(argv, folder_of, mnli, tmp_path):
    for model in (folder_of("ours"), *([mnli] if "--ignore_mismatched_sizes" in argv else [])):
        with pytest.raises(ValueError, match=r"classifier.weight.*, so predictions would be random: give --do_train"):
            run(model, tmp_path / "run", *argv)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("family", ["bert", "ours"])
def test_a_configuration_chooses_no_code(family, folder_of, tmp_path):
    """transformers would load a kernel from the Hub."""
    folder = shutil.copytree(folder_of(family), tmp_path / "kernel")
    config = read(folder, "config.json") | dict(attn_implementation="kernels-community/x")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ValueError, match="kernels-community/x"):
        run(folder, tmp_path / "run", "--do_train")


@pytest.mark.parametrize("family", ["bert", "v2"])
def test_tokenizers_that_do_not_fit_the_model_are_refused(family, folder_of, tmp_path):
    big = wrap_tokenizer(Tokenizer(models.WordLevel({f"word{n}": n for n in range(99)} | {"[UNK]": 99}, unk_token="[UNK]")))
    big.save_pretrained(tmp_path / "big")
    with pytest.raises(ValueError, match=r"32 (embeddings|rows)"):
        run(folder_of(family), tmp_path / "run", "--do_train", tokenizer_name=tmp_path / "big")
    bare = AutoTokenizer.from_pretrained(folder_of("bert"))
    bare.backend_tokenizer.post_processor = None
    bare.save_pretrained(tmp_path / "bare")
    if family == "bert":
        with pytest.raises(ValueError, match=r"must add \[CLS\] to a text"):
            run(folder_of(family), tmp_path / "run", "--do_train", tokenizer_name=tmp_path / "bare")
    else:
        # This package's tokenizer restores the template.
        run(folder_of(family), tmp_path / "run", "--do_train", tokenizer_name=tmp_path / "bare", max_steps=1)


@pytest.mark.parametrize(
    ("family", "message"), [("ours", "no tokenizer in"), ("v2", "no tokenizer in"), ("bert", "only has special tokens")]
)
def test_a_model_without_a_tokenizer_is_named_in_one_line(family, message, folder_of, tmp_path):
    """Bug: a model was trained with an empty tokenizer that transformers created, or the error did not name the folder."""
    untokenized = shutil.copytree(folder_of(family), tmp_path / "untokenized")
    for file in untokenized.glob("*token*"):
        file.unlink()
    with pytest.raises((ValueError, OSError), match=message) as error:
        run(untokenized, tmp_path / "run", "--do_train")
    assert family == "bert" or "tokenizer.save_pretrained with the same folder, or pass --tokenizer_name" in str(error.value)
    assert "untokenized" in str(error.value) and len(str(error.value).splitlines()) == 1
