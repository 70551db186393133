# SPDX-License-Identifier: Apache-2.0
"""Test `deberta-ext convert`: the output equals the source and is checked; a failed conversion leaves no files."""

import json
import re
import shutil

import pytest
import torch
from every_head import CLASSES
from hub_models import upload
from microsoft_checkpoints import microsoft, official_pair, truncate, write
from mlm_script import assert_same_weights
from rounding import equal_outputs
from safetensors.torch import load_file, save_file
from tiny_models import tiny_tokenizer
from transformers import AutoTokenizer, DebertaV2ForSequenceClassification, DebertaV2ForTokenClassification

from hf_deberta_ext import DebertaExtForMaskedLM, DebertaExtForPreTraining
from hf_deberta_ext.commands import main
from hf_deberta_ext.conversion import convert
from hf_deberta_ext.heads import HEADS

IDS = torch.arange(5, 25)[None]
LABELS = dict(id2label={str(i): f"L{i}" for i in range(3)}, label2id={f"L{i}": i for i in range(3)})
TASK_HEADS = [head for head in HEADS if head not in ("base", "masked-lm", "pretraining", "replaced-token-detection")]


@pytest.fixture
def run(capsys):
    """Return a function (source, output, *options) that converts successfully and returns the printed text."""

    def call(*arguments):
        # Discard what was printed while the test prepared its folders.
        capsys.readouterr()
        status = main(["convert", *map(str, arguments)])
        printed = capsys.readouterr()
        assert status == 0 and printed.err == "", printed.err
        return printed.out

    return call


@pytest.fixture
def fails(capsys):
    """Return a function (source, output, *options) that fails to convert and returns the error, one line."""

    def call(*arguments):
        capsys.readouterr()
        assert main(["convert", *map(str, arguments)]) == 2
        error = capsys.readouterr().err
        assert error.startswith("deberta-ext convert: error: ")
        return error.removeprefix("deberta-ext convert: error: ").strip()

    return call


@pytest.fixture
def official(tmp_path):
    """Return a function (kind, heads, dtype, **config) that writes an official checkpoint and returns its folder."""

    def build(kind="v3", heads=("lm", "rtd"), dtype=torch.float32, file="pytorch_model.bin", name="official", **config):
        (tmp_path / name).mkdir()
        weights = {key: value.to(dtype) for key, value in microsoft(kind, heads).items()}
        return write(tmp_path / name, kind, weights, file, **config)

    return build


def architecture(folder):
    return json.loads((folder / "config.json").read_text())["architectures"]


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors"])
@pytest.mark.parametrize("kind", ["v1", "v2", "v3"])
def test_an_official_checkpoint_becomes_ours(kind, file, official, run, tmp_path):
    source = official(kind, ("lm",), file=file)
    printed = run(source, tmp_path / "ours")
    for text in ("head: masked-lm; the files contain masked-lm", "0 newly initialised, 0 unused", "tensors are equal"):
        assert text in printed
    assert architecture(tmp_path / "ours") == ["DebertaExtForMaskedLM"]
    before, after = (DebertaExtForMaskedLM.from_pretrained(folder) for folder in (source, tmp_path / "ours"))
    assert equal_outputs(before(IDS).logits, after(IDS).logits)
    assert (tmp_path / "ours" / "modeling_deberta_ext.py").exists()
    assert "AutoModelForMaskedLM" in json.loads((tmp_path / "ours" / "config.json").read_text())["auto_map"]


def test_a_stock_checkpoint_with_old_names_becomes_ours(stock_config, shake, run, tmp_path):
    stock = shake(DebertaV2ForTokenClassification(stock_config("v2", num_labels=3)))
    stock.save_pretrained(tmp_path / "stock")
    # transformers 5.4 writes these fields for a loaded model.
    file = tmp_path / "stock" / "model.safetensors"
    tensors = load_file(file)
    for new, old in {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}.items():
        tensors = {key.replace(new, old): value for key, value in tensors.items()}
    save_file(tensors, file, metadata={"format": "pt"})
    run(tmp_path / "stock", tmp_path / "ours")
    model = CLASSES["token-classification"].from_pretrained(tmp_path / "ours")
    torch.testing.assert_close(model(IDS).logits, stock(IDS).logits, atol=1e-5, rtol=1e-5)


def test_a_cross_encoder_keeps_its_scores(stock_config, shake, run, tmp_path):
    """Copy the settings: without them, sentence-transformers applied a sigmoid to scores that had none."""
    from sentence_transformers import CrossEncoder

    shake(DebertaV2ForSequenceClassification(stock_config("v2", num_labels=1))).save_pretrained(tmp_path / "stock")
    tiny_tokenizer().save_pretrained(tmp_path / "stock")
    pairs = [("where is it", "here"), ("why", "it is so")]
    stock = CrossEncoder(str(tmp_path / "stock"), device="cpu", activation_fn=torch.nn.Identity())
    stock.save_pretrained(str(tmp_path / "service"))
    (tmp_path / "service" / "1_More").mkdir()
    (tmp_path / "service" / "1_More" / "weights").touch()
    printed = run(tmp_path / "service", tmp_path / "ours")
    for name in ("1_More", "config_sentence_transformers.json", "modules.json", "sentence_bert_config.json"):
        assert f"sentence-transformers: {name} is copied" in printed
    assert (tmp_path / "ours" / "1_More" / "weights").is_file()
    ours = CrossEncoder(str(tmp_path / "ours"), device="cpu", trust_remote_code=True)
    assert abs(ours.predict(pairs) - stock.predict(pairs)).max() < 1e-5
    run(tmp_path / "service", tmp_path / "encoder", "--head", "base")
    assert not (tmp_path / "encoder" / "modules.json").exists()


@pytest.mark.parametrize("whole_table", [True, False], ids=["tables", "deltas"])
def test_an_official_pair_becomes_one_model(whole_table, run, tmp_path):
    source, generator, _ = official_pair(tmp_path / "pair", whole_table=whole_table)
    printed = run(source, tmp_path / "joint")
    assert "head: pretraining" in printed
    model = DebertaExtForPreTraining.from_pretrained(tmp_path / "joint")
    expected = DebertaExtForPreTraining.from_checkpoints(source)
    assert equal_outputs(model(IDS).discriminator_logits, expected(IDS).discriminator_logits)
    assert torch.equal(model.get_input_embeddings().weight, generator["deberta.embeddings.word_embeddings.weight"])
    for file in source.glob("*.bin"):
        torch.save({name: value.half() for name, value in torch.load(file).items()}, file)
    # float16 rounds the difference of the two tables.
    run(source, tmp_path / "half")
    assert DebertaExtForPreTraining.from_pretrained(tmp_path / "half").dtype == torch.float32


@pytest.mark.parametrize(
    ("heads", "fields", "options", "head", "message"),
    [
        (("lm", "rtd"), {}, [], "replaced-token-detection", "masked-lm, replaced-token-detection (choose with --head)"),
        (("lm", "rtd"), {}, ["--head", "masked-lm"], "masked-lm", "the checkpoint is a discriminator"),
        ((), {}, [], "base", "0 newly initialised"),
        ((), dict(architectures=["DebertaV2ForSequenceClassification"]), [], "base", "0 newly initialised"),
        (("lm",), {}, ["--head", "pretraining"], "pretraining", "newly initialised: discriminator.mask_predictions"),
        *((("lm",), {}, ["--head", head], head, "the head is newly initialised: ") for head in TASK_HEADS),
    ],
)
def test_the_head_is_that_of_the_files_or_of_the_user(heads, fields, options, head, message, official, run, tmp_path):
    printed = run(official("v3", heads, **fields), tmp_path / "ours", *options)
    assert f"head: {head}" in printed and message in printed
    assert architecture(tmp_path / "ours") == [HEADS[head].model_class]


@pytest.mark.parametrize("sharing", ["gdes", "all"])
def test_generator_and_discriminator_are_taken_out_of_a_joint_model(sharing, joint, run, tmp_path):
    model = joint(sharing).eval()
    model.save_pretrained(tmp_path / "joint")
    assert "head: pretraining" in run(tmp_path / "joint", tmp_path / "same")
    for head in ("masked-lm", "base"):
        assert "was exported from the joint model" in run(tmp_path / "joint", tmp_path / head, "--head", head)
        assert architecture(tmp_path / head) == [HEADS[head].model_class]
    run(tmp_path / "joint", tmp_path / "d", "--head", "replaced-token-detection")
    discriminator = CLASSES["replaced-token-detection"].from_pretrained(tmp_path / "d")
    assert equal_outputs(discriminator(IDS).logits, model.export_discriminator()(IDS).logits)
    generator = DebertaExtForMaskedLM.from_pretrained(tmp_path / "masked-lm")
    assert equal_outputs(generator(IDS).logits, model.export_generator()(IDS).logits)


@pytest.mark.parametrize(
    ("heads", "options"), [(("lm",), ["--lossy"]), (("classifier",), []), ((), [])], ids=["lm", "classifier", "base"]
)
def test_the_round_trip_of_an_official_v1_checkpoint_is_exact(heads, options, official, run, tmp_path):
    fields = dict(hidden_dropout_prob=0.25, attention_probs_dropout_prob=0.15, layer_norm_eps=1e-6)
    source = official("v1", heads, torch.float16, **LABELS, **fields)
    run(source, tmp_path / "ours")
    printed = run(tmp_path / "ours", tmp_path / "stock", "--to", "deberta-v2", *options)
    assert ("note: the Enhanced Mask Decoder" in printed) == bool(options)
    run(tmp_path / "stock", tmp_path / "again")
    assert_same_weights(tmp_path / "ours", tmp_path / "again")
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("ours", "again")]
    assert configs[0] == configs[1] and fields.items() <= configs[0].items()
    assert "classifier" not in heads or configs[0]["id2label"] == LABELS["id2label"]
    loader = CLASSES[{("lm",): "masked-lm", ("classifier",): "sequence-classification", (): "base"}[heads]]
    first, last = (loader.from_pretrained(folder, dtype=torch.float32) for folder in (source, tmp_path / "again"))
    assert equal_outputs(first(IDS)[0], last(IDS)[0])


CASES_OF_DTYPE = [("float16", None, "float16"), ("float16", "float32", "float32"), ("mixed", None, "float32")]


@pytest.mark.parametrize(("stored", "requested", "dtype"), CASES_OF_DTYPE)
def test_the_dtype_is_that_of_the_files_or_of_the_user(stored, requested, dtype, tmp_path, run):
    weights = microsoft("v2", ("lm",))
    half = {name: value.half() for name, value in weights.items() if stored == "float16" or "dense" in name}
    (tmp_path / "official").mkdir()
    source = write(tmp_path / "official", "v2", weights | half)
    options = [] if requested is None else ["--dtype", requested]
    assert f"dtype: {dtype}; the files contain float16" in run(source, tmp_path / "ours", *options)
    tensors = load_file(tmp_path / "ours" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {getattr(torch, dtype)}
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["dtype"] == dtype


def test_the_tokenizer_goes_with_the_model(official, run, tmp_path):
    source = official()
    tiny_tokenizer().save_pretrained(source)
    AutoTokenizer.from_pretrained(source).save_pretrained(source)
    assert "TokenizersBackend" in (source / "tokenizer_config.json").read_text()
    for to in ("deberta-ext", "deberta-v2"):
        printed = run(source, tmp_path / to, "--to", to)
        assert f"tokenizer: 7 tokens, from {source}" in printed
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / to)
        assert tokenizer("hello", "world")["input_ids"] == [1, 5, 2, 6, 2]
        assert tokenizer("hello", "world")["token_type_ids"] == [0, 0, 0, 1, 1]
        # transformers 4 does not have TokenizersBackend.
        assert '"tokenizer_class": "PreTrainedTokenizerFast"' in (tmp_path / to / "tokenizer_config.json").read_text()


def test_a_tokenizer_from_elsewhere_or_none_and_split_weights(official, run, tmp_path):
    source = official()
    assert f"tokenizer: none in {source}; pass --tokenizer" in run(source, tmp_path / "a")
    tiny_tokenizer(["a"]).save_pretrained(source)
    tiny_tokenizer(["b", "c", "d"]).save_pretrained(tmp_path / "tokenizer")
    assert "tokenizer: 8 tokens" in run(source, tmp_path / "b", "--tokenizer", tmp_path / "tokenizer")
    assert "tokenizer: " not in run(source, tmp_path / "c", "--tokenizer", "none", "--max_shard_size", "40KB")
    assert not (tmp_path / "c" / "tokenizer.json").exists()
    assert len(list((tmp_path / "c").glob("model-*-of-*.safetensors"))) > 1


def large_value(source):
    weights = microsoft("v3")
    weights["deberta.embeddings.LayerNorm.weight"][0] = 1e6
    write(source, "v3", weights)


def incomplete_pair(source):
    _, generator, _ = official_pair(source)
    del generator["deberta.encoder.layer.0.output.dense.bias"]
    torch.save(generator, source / "pytorch_model.generator.bin")


def classifier(source):
    write(source, "v1", microsoft("v1", ("classifier",)))


OTHER_TOKENIZER = tiny_tokenizer([f"word{i}" for i in range(80)])


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (None, ["--to", "deberta-v2", "--head", "masked-lm"], "does not support the Enhanced Mask Decoder .*--lossy"),
        (None, ["--to", "deberta-v2", "--max_shard_size", "40KB"], "--max_shard_size requires --to deberta-ext, got"),
        (None, ["--to", "int8", "--dtype", "bfloat16"], "--to int8 requires --dtype float32, got bfloat16; remove --dtype"),
        (None, ["--texts", "texts.txt"], "--texts requires one of --to int8, onnx, onnx-int8, got --to "),
        (OTHER_TOKENIZER.save_pretrained, [], "the tokenizer has 85 tokens"),
        (large_value, ["--dtype", "float16"], "the outputs of the written folder differ .* outputs by up to nan"),
        (incomplete_pair, [], "1 parameters .* are missing .* generator.deberta.encoder.layer.0.output.dense.bias"),
        (truncate, [], r"official cannot be converted:\n.*PytorchStreamReader failed"),
        (classifier, ["--head", "sequence-classification"], r"classifier.weight .*, got \[3, 32\] in the files"),
        (lambda source: (source / "config.json").write_text('{"model_type": "bert"}'), [], "model_type 'bert'"),
        (lambda source: (source / "config.json").unlink(), [], "official has no config.json"),
    ],
)
def test_what_cannot_be_converted_is_refused_and_leaves_nothing(change, options, message, official, fails, tmp_path):
    source = official()
    if change is not None:
        change(source)
    assert re.search(message, fails(source, tmp_path / "out", *options), re.DOTALL)
    assert {file.name for file in tmp_path.iterdir()} == {"official"}


def test_a_joint_model_has_to_be_taken_apart_first(joint, fails, tmp_path):
    joint().save_pretrained(tmp_path / "joint")
    for options, message in (
        (["--head", "question-answering"], "contains generator and discriminator: choose --head replaced-token-detection"),
        (["--to", "deberta-v2"], "contains generator and discriminator: choose --head replaced-token-detection"),
        (["--to", "int8"], "--to int8 converts a single model: choose --head"),
    ):
        assert message in fails(tmp_path / "joint", tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


def test_an_empty_folder_is_filled_and_any_other_left_alone_unless_asked(official, run, fails, tmp_path):
    source, output = official(), tmp_path / "ours"
    output.mkdir()
    run(source, output)
    run(source, tmp_path / "new" / "parent")
    assert_same_weights(output, tmp_path / "new" / "parent")
    shutil.rmtree(tmp_path / "new")
    (output / "mine.txt").write_text("mine")
    message = fails(source, output)
    assert f"{output} already exists" in message and "--overwrite" in message
    assert "renamed: " in run(source, output, "--overwrite")
    assert (tmp_path / "ours.old-1" / "mine.txt").read_text() == "mine" and not (output / "mine.txt").exists()
    assert "ours.old-2" in run(source, output, "--overwrite")
    run(source, source, "--overwrite")
    assert architecture(source) == ["DebertaExtForReplacedTokenDetection"]
    assert (tmp_path / "official.old-1" / "pytorch_model.bin").exists()
    names = "official official.old-1 ours ours.old-1 ours.old-2"
    assert sorted(file.name for file in tmp_path.iterdir()) == names.split()


BIAS = "deberta.encoder.layer.1.intermediate.dense.bias"


def change_tensor(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors[BIAS] *= 1 + 2**-20
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def change_activation(folder):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"hidden_act": "relu"}))


@pytest.mark.parametrize(
    ("damage", "to", "message"),
    [
        (change_tensor, "deberta-ext", f"1 tensors of the written folder differ from the model, such as {BIAS}"),
        (change_tensor, "deberta-v2", f"1 tensors of the written folder differ from the model, such as {BIAS}"),
        (change_activation, "deberta-ext", "the outputs of the written folder differ from the model's outputs by"),
    ],
)
@pytest.mark.parametrize("error", [None, KeyboardInterrupt()], ids=["", "Ctrl-C"])
def test_a_wrong_folder_is_removed_and_what_was_there_stays(
    damage, to, message, error, official, capsys, tmp_path, monkeypatch
):
    """Change the folder between writing and checking."""
    real, source, output = convert.write_folder, official(), tmp_path / "ours"
    output.mkdir()
    (output / "mine.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))

    def write_and_damage(model, tokenizer, folder, **options):
        real(model, tokenizer, folder, **options)
        damage(folder)
        if error is not None:
            raise error

    monkeypatch.setattr(convert, "write_folder", write_and_damage)
    assert main(["convert", str(source), str(output), "--to", to, "--overwrite"]) == (2 if error is None else 130)
    assert error is not None or message in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.usefixtures("hub")
def test_repositories_are_converted(tmp_path, run, tiny_config):
    """Convert an official pair with its tokenizer, and a sharded model of this package."""
    source, _, _ = official_pair(tmp_path / "pair")
    tiny_tokenizer().save_pretrained(source)
    DebertaExtForMaskedLM(tiny_config()).save_pretrained(tmp_path / "local", max_shard_size="40KB")
    upload(source)
    printed = run("user/name", tmp_path / "ours")
    upload(tmp_path / "local", "user/shards")
    run("user/shards", tmp_path / "one file")
    assert "source: user/name, deberta-v2" in printed and "head: pretraining" in printed
    written = "".join(file.read_text() for file in (tmp_path / "ours").glob("*.json"))
    assert str(tmp_path) not in written
    expected = DebertaExtForPreTraining.from_pretrained(source)
    loaded = DebertaExtForPreTraining.from_pretrained(tmp_path / "ours")
    assert equal_outputs(loaded(IDS).discriminator_logits, expected(IDS).discriminator_logits)
    run(tmp_path / "local", tmp_path / "expected")
    assert_same_weights(tmp_path / "one file", tmp_path / "expected")
