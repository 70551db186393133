# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext convert`: what goes in comes out, checked, or nothing is left behind."""

import json
import shutil

import pytest
import torch
from hub_models import upload
from local_hub import LocalHub
from microsoft_checkpoints import CONFIGS, microsoft, official_pair, write
from rounding import equal_outputs
from safetensors.torch import load_file, save_file
from tiny_models import tiny_tokenizer
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    DebertaV2ForTokenClassification,
)

from hf_deberta_ext import (
    DebertaExtForMaskedLM,
    DebertaExtForPreTraining,
    DebertaExtForReplacedTokenDetection,
    DebertaExtForSequenceClassification,
    DebertaExtForTokenClassification,
    DebertaExtModel,
)
from hf_deberta_ext.commands import main
from hf_deberta_ext.conversion import convert, verification
from hf_deberta_ext.conversion.checkpoint_contents import HEADS
from hf_deberta_ext.model import heads

IDS = torch.arange(5, 25)[None]


@pytest.fixture
def run(capsys):
    """run(source, output, *options): what was printed, after a success."""

    def call(*arguments):
        # What was printed while the test prepared its folders.
        capsys.readouterr()
        status = main(["convert", *map(str, arguments)])
        printed = capsys.readouterr()
        assert status == 0 and printed.err == "", printed.err
        return printed.out

    return call


@pytest.fixture
def fails(capsys):
    """fails(source, output, *options): the error, which is one line, after a failure."""

    def call(*arguments):
        capsys.readouterr()
        assert main(["convert", *map(str, arguments)]) == 2
        error = capsys.readouterr().err
        assert error.startswith("deberta-ext convert: error: ")
        return error.removeprefix("deberta-ext convert: error: ").strip()

    return call


@pytest.fixture
def official(tmp_path):
    """official(kind, heads, dtype, **config): the folder of an official checkpoint."""

    def build(kind="v3", heads=("lm", "rtd"), dtype=torch.float32, file="pytorch_model.bin", name="official", **config):
        (tmp_path / name).mkdir()
        weights = {key: value.to(dtype) for key, value in microsoft(kind, heads).items()}
        return write(tmp_path / name, kind, weights, file, **config)

    return build


def labels(n):
    return dict(id2label={str(i): f"L{i}" for i in range(n)}, label2id={f"L{i}": i for i in range(n)})


def architecture(folder):
    return json.loads((folder / "config.json").read_text())["architectures"]


def same_weights(folder, other):
    one, two = (load_file(where / "model.safetensors") for where in (folder, other))
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        assert tensor.dtype == two[name].dtype and torch.equal(tensor, two[name]), name


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors"])
@pytest.mark.parametrize("kind", ["v1", "v2", "v3"])
def test_an_official_checkpoint_becomes_ours(kind, file, official, run, tmp_path):
    source = official(kind, ("lm",), file=file)
    printed = run(source, tmp_path / "ours")
    assert "head: masked-lm, whose parameters are in the file" in printed
    assert "0 newly initialised, 0 unused" in printed and "tensors are equal; the outputs " in printed
    assert architecture(tmp_path / "ours") == ["DebertaExtForMaskedLM"]
    before, after = (DebertaExtForMaskedLM.from_pretrained(folder) for folder in (source, tmp_path / "ours"))
    assert equal_outputs(before(IDS).logits, after(IDS).logits)
    assert (tmp_path / "ours" / "modeling_deberta_ext.py").exists()
    assert "AutoModelForMaskedLM" in json.loads((tmp_path / "ours" / "config.json").read_text())["auto_map"]


def test_the_discriminators_head_is_chosen_and_the_other_named(official, run, tmp_path):
    source = official("v3")
    printed = run(source, tmp_path / "a")
    assert "head: replaced-token-detection" in printed and "--head masked-lm writes that" in printed
    assert "report: unused: lm_predictions.lm_head.bias (no such parameter in this model)" in printed
    assert "--head" not in run(source, tmp_path / "b", "--head", "masked-lm").split("dtype:")[0].replace("as asked", "")
    assert architecture(tmp_path / "a") == ["DebertaExtForReplacedTokenDetection"]
    assert architecture(tmp_path / "b") == ["DebertaExtForMaskedLM"]


def test_a_fine_tuned_official_classifier_keeps_its_labels(official, run, tmp_path):
    source = official("v1", ("classifier",), **labels(3))
    run(source, tmp_path / "ours")
    model = DebertaExtForSequenceClassification.from_pretrained(tmp_path / "ours")
    assert model.config.id2label == {0: "L0", 1: "L1", 2: "L2"}
    expected = AutoModelForSequenceClassification.from_pretrained(source)
    torch.testing.assert_close(model(IDS).logits, expected(IDS).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("old_names", [False, True], ids=["", "gamma and beta"])
def test_a_stock_checkpoint_becomes_ours(old_names, stock_config, shake, run, tmp_path):
    stock = shake(DebertaV2ForTokenClassification(stock_config("v2", num_labels=3)))
    stock.save_pretrained(tmp_path / "stock")
    if old_names:
        # transformers 5.4 writes them for a model that it has loaded.
        file = tmp_path / "stock" / "model.safetensors"
        names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        tensors = load_file(file)
        for new, old in names.items():
            tensors = {key.replace(new, old): value for key, value in tensors.items()}
        save_file(tensors, file, metadata={"format": "pt"})
    run(tmp_path / "stock", tmp_path / "ours")
    model = DebertaExtForTokenClassification.from_pretrained(tmp_path / "ours")
    torch.testing.assert_close(model(IDS).logits, stock(IDS).logits, atol=1e-5, rtol=1e-5)


def test_a_cross_encoder_keeps_its_scores(stock_config, shake, run, tmp_path):
    """Without its settings, sentence-transformers put a sigmoid on scores that had none."""
    cross_encoder = pytest.importorskip("sentence_transformers").CrossEncoder
    shake(DebertaV2ForSequenceClassification(stock_config("v2", num_labels=1))).save_pretrained(tmp_path / "stock")
    tiny_tokenizer().save_pretrained(tmp_path / "stock")
    pairs = [("where is it", "here"), ("why", "it is so")]
    stock = cross_encoder(str(tmp_path / "stock"), device="cpu", activation_fn=torch.nn.Identity())
    stock.save_pretrained(str(tmp_path / "service"))
    (tmp_path / "service" / "1_More").mkdir()
    (tmp_path / "service" / "1_More" / "weights").touch()
    printed = run(tmp_path / "service", tmp_path / "ours")
    assert (
        "sentence-transformers: 1_More, config_sentence_transformers.json, modules.json, sentence_bert_config.json"
        in printed
    )
    assert (tmp_path / "ours" / "1_More" / "weights").is_file()
    ours = cross_encoder(str(tmp_path / "ours"), device="cpu", trust_remote_code=True)
    assert abs(ours.predict(pairs) - stock.predict(pairs)).max() < 1e-5
    run(tmp_path / "service", tmp_path / "encoder", "--head", "base")
    assert not (tmp_path / "encoder" / "modules.json").exists()


@pytest.mark.parametrize("whole_table", [True, False], ids=["tables", "deltas"])
def test_an_official_pair_becomes_one_model(whole_table, run, tmp_path):
    source, generator, _ = official_pair(tmp_path / "pair", whole_table=whole_table)
    printed = run(source, tmp_path / "joint")
    assert "head: pretraining, generator and discriminator are there" in printed
    assert "report: pytorch_model.generator.bin: " in printed
    model = DebertaExtForPreTraining.from_pretrained(tmp_path / "joint")
    expected = DebertaExtForPreTraining.from_checkpoints(source)
    assert equal_outputs(model(IDS).discriminator_logits, expected(IDS).discriminator_logits)
    assert torch.equal(model.get_input_embeddings().weight, generator["deberta.embeddings.word_embeddings.weight"])
    for file in source.glob("*.bin"):
        torch.save({name: value.half() for name, value in torch.load(file).items()}, file)
    printed = run(source, tmp_path / "half")
    assert "dtype: float32, the file's float16 cannot hold the difference of the two tables exactly" in printed
    assert DebertaExtForPreTraining.from_pretrained(tmp_path / "half").dtype == torch.float32


def test_a_generator_that_is_not_whole_is_not_joined(run, fails, tmp_path):
    source, generator, _ = official_pair(tmp_path / "pair")
    name = "deberta.encoder.layer.0.output.dense.bias"
    del generator[name]
    torch.save(generator, source / "pytorch_model.generator.bin")
    assert "head: replaced-token-detection" in run(source, tmp_path / "alone")
    message = fails(source, tmp_path / "joint", "--head", "pretraining")
    assert message.startswith(f"generator.{name} would be drawn at random: not in the files")


@pytest.mark.parametrize("sharing", ["gdes", *(pytest.param(each, marks=pytest.mark.slow) for each in ("es", "nes")), "all"])
def test_generator_and_discriminator_are_taken_out_of_a_joint_model(sharing, joint, run, tmp_path):
    model = joint(sharing).eval()
    model.save_pretrained(tmp_path / "joint")
    assert "head: pretraining" in run(tmp_path / "joint", tmp_path / "same")
    for head, model_class in (("masked-lm", DebertaExtForMaskedLM), ("base", DebertaExtModel)):
        assert "was taken out of the two" in run(tmp_path / "joint", tmp_path / head, "--head", head)
        assert architecture(tmp_path / head) == [model_class.__name__]
    run(tmp_path / "joint", tmp_path / "d", "--head", "replaced-token-detection")
    discriminator = DebertaExtForReplacedTokenDetection.from_pretrained(tmp_path / "d")
    assert equal_outputs(discriminator(IDS).logits, model.export_discriminator()(IDS).logits)
    generator = DebertaExtForMaskedLM.from_pretrained(tmp_path / "masked-lm")
    assert equal_outputs(generator(IDS).logits, model.export_generator()(IDS).logits)


def test_a_task_head_needs_the_discriminator_first(joint, fails, tmp_path):
    joint().save_pretrained(tmp_path / "joint")
    message = fails(tmp_path / "joint", tmp_path / "out", "--head", "question-answering")
    assert "Take the discriminator out first, --head replaced-token-detection" in message
    message = fails(tmp_path / "joint", tmp_path / "out", "--to", "deberta-v2")
    assert "together have no counterpart in transformers: choose --head" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("head", [name for name in HEADS if name not in ("base", "masked-lm", "pretraining")])
def test_a_new_head_is_written_only_where_it_is_asked_for_and_warned_of(head, tiny_config, shake, run, tmp_path):
    model = shake(DebertaExtForMaskedLM(tiny_config(num_labels=3)))
    model.save_pretrained(tmp_path / "mlm")
    assert "head: masked-lm" in run(tmp_path / "mlm", tmp_path / "auto")
    printed = run(tmp_path / "mlm", tmp_path / "new", "--head", head)
    assert "warning: the head is new, drawn at random: " in printed and "report: newly initialised: " in printed
    loaded, info = HEADS[head].from_pretrained(tmp_path / "new", output_loading_info=True)
    assert not info["missing_keys"]
    assert equal_outputs(loaded.deberta(IDS)[0], model.deberta(IDS)[0])


@pytest.mark.parametrize(
    ("heads", "fields", "options", "message", "model_class"),
    [
        ((), {}, [], "head: base, the file holds no whole head", DebertaExtModel),
        (
            (),
            dict(architectures=["DebertaV2ForSequenceClassification"]),
            [],
            "head: base, the file holds no whole head (config.json names DebertaV2ForSequenceClassification",
            DebertaExtModel,
        ),
        (
            ("lm",),
            {},
            ["--head", "pretraining"],
            "drawn at random: discriminator.mask_predictions",
            DebertaExtForPreTraining,
        ),
    ],
    ids=["an encoder", "a head that config.json alone names", "a joint model from a masked LM"],
)
def test_a_head_is_invented_only_where_it_is_asked_for(
    heads, fields, options, message, model_class, official, run, tmp_path
):
    printed = run(official("v3", heads, **fields), tmp_path / "ours", *options)
    assert message in printed and architecture(tmp_path / "ours") == [model_class.__name__]


@pytest.mark.parametrize(
    "model_class", [HEADS[name] for name, head in heads.HEADS.items() if head.stock_class and name != "masked-lm"]
)
@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_ours_becomes_stock_and_transformers_computes_the_same(kind, model_class, tiny_config, shake, run, tmp_path):
    shake(model_class(tiny_config(kind, num_labels=3))).save_pretrained(tmp_path / "ours")
    printed = run(tmp_path / "ours", tmp_path / "stock", "--to", "deberta-v2")
    assert "checked: the outputs of transformers' DebertaV2Model" in printed
    stock_class = model_class.__name__.replace("DebertaExt", "DebertaV2")
    if "ReplacedToken" in stock_class:
        assert "note: mask_predictions: the replaced token detection head is in the file" in printed
    else:
        assert stock_class in printed and architecture(tmp_path / "stock") == [stock_class]
    assert isinstance(AutoModel.from_pretrained(tmp_path / "stock").config, DebertaV2Config)
    assert not list((tmp_path / "stock").glob("*.py"))
    run(tmp_path / "stock", tmp_path / "back")
    assert architecture(tmp_path / "back") == [model_class.__name__]


@pytest.mark.parametrize(
    ("heads", "options"), [(("lm",), ["--lossy"]), (("classifier",), []), ((), [])], ids=["lm", "classifier", "base"]
)
def test_the_round_trip_of_an_official_v1_checkpoint_is_exact(heads, options, official, run, tmp_path):
    source = official("v1", heads, torch.float16, **labels(3))
    run(source, tmp_path / "ours")
    printed = run(tmp_path / "ours", tmp_path / "stock", "--to", "deberta-v2", *options)
    assert ("note: the Enhanced Mask Decoder" in printed) == bool(options)
    run(tmp_path / "stock", tmp_path / "again")
    same_weights(tmp_path / "ours", tmp_path / "again")
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("ours", "again")]
    assert configs[0] == configs[1]
    model_class = HEADS["masked-lm" if "lm" in heads else "sequence-classification" if heads else "base"]
    first, last = (model_class.from_pretrained(folder, dtype=torch.float32) for folder in (source, tmp_path / "again"))
    assert equal_outputs(first(IDS)[0], last(IDS)[0])


@pytest.mark.parametrize("decoder", [dict(emd_layers=3), dict(emd_input="position"), dict(emd_layers=1, emd_input="hidden")])
def test_a_decoder_that_stock_has_no_place_for_is_checked_as_it_was(decoder, tiny_config, shake, run, tmp_path):
    shake(DebertaExtForMaskedLM(tiny_config(**decoder))).save_pretrained(tmp_path / "ours")
    run(tmp_path / "ours", tmp_path / "stock", "--to", "deberta-v2", "--lossy")


def test_what_stock_computes_otherwise_is_refused_and_leaves_nothing(official, fails, tmp_path):
    message = fails(official("v3"), tmp_path / "out", "--to", "deberta-v2", "--head", "masked-lm")
    assert "no place for the Enhanced Mask Decoder" in message and message.endswith(
        "give --lossy to write the weights all the same"
    )
    assert sorted(file.name for file in tmp_path.iterdir()) == ["official"]


def test_half_precision_is_kept_and_changed_on_request(official, run, tmp_path):
    source = official("v2", ("lm",), torch.float16)
    assert "dtype: float16, that of the file" in run(source, tmp_path / "kept")
    assert "dtype: float32, as asked for" in run(source, tmp_path / "wide", "--dtype", "float32")
    printed = run(source, tmp_path / "narrow", "--dtype", "bfloat16")
    assert "checked: bfloat16 instead of float16 changes the outputs by 0.0" in printed
    for name, dtype in (("kept", torch.float16), ("wide", torch.float32), ("narrow", torch.bfloat16)):
        stored = load_file(tmp_path / name / "model.safetensors")
        assert {tensor.dtype for tensor in stored.values()} == {dtype}
        assert json.loads((tmp_path / name / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")


def test_several_dtypes_become_float32_and_values_beyond_float16_are_refused(tmp_path, run, fails):
    weights = {key: value.half() if "dense" in key else value for key, value in microsoft("v3").items()}
    weights["deberta.embeddings.LayerNorm.weight"][0] = 1e6
    (tmp_path / "mixed").mkdir()
    source = write(tmp_path / "mixed", "v3", weights)
    assert "dtype: float32, the file has " in run(source, tmp_path / "ours")
    message = fails(source, tmp_path / "out", "--dtype", "float16")
    assert "embeddings.LayerNorm.weight has values that are not finite as torch.float16" in message
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mixed", "ours"]


def test_the_tokenizer_goes_with_the_model(official, run, tmp_path):
    source = official()
    tiny_tokenizer().save_pretrained(source)
    AutoTokenizer.from_pretrained(source).save_pretrained(source)
    assert "TokenizersBackend" in (source / "tokenizer_config.json").read_text()
    for to in ("deberta-ext", "deberta-v2"):
        printed = run(source, tmp_path / to, "--to", to)
        assert f"tokenizer: 7 tokens, from {source}" in printed
        assert "checked: the tokenizer has the same 7 tokens and encodes alike" in printed
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / to)
        assert tokenizer("hello", "world")["input_ids"] == [1, 5, 2, 6, 2]
        assert tokenizer("hello", "world")["token_type_ids"] == [0, 0, 0, 1, 1]
        # TokenizersBackend is unknown to transformers 4.
        assert '"tokenizer_class": "PreTrainedTokenizerFast"' in (tmp_path / to / "tokenizer_config.json").read_text()


def test_a_tokenizer_from_elsewhere_or_none(official, run, tmp_path):
    source = official()
    assert f"tokenizer: there is none in {source}; --tokenizer takes it" in run(source, tmp_path / "a")
    tiny_tokenizer(["a"]).save_pretrained(source)
    tiny_tokenizer(["b", "c", "d"]).save_pretrained(tmp_path / "tokenizer")
    assert "tokenizer: 8 tokens" in run(source, tmp_path / "b", "--tokenizer", tmp_path / "tokenizer")
    assert "tokenizer: " not in run(source, tmp_path / "c", "--tokenizer", "none")
    assert not (tmp_path / "c" / "tokenizer.json").exists()


def test_a_tokenizer_that_does_not_fit_is_refused(official, fails, tmp_path):
    source = official()
    tiny_tokenizer([f"word{i}" for i in range(80)]).save_pretrained(source)
    message = fails(source, tmp_path / "out")
    assert "the tokenizer has 85 tokens" in message and message.endswith("or give --tokenizer none")
    assert "there is no folder" in fails(source, tmp_path / "out", "--tokenizer", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "no tokenizer in" in fails(source, tmp_path / "out", "--tokenizer", tmp_path / "empty")


def test_weights_are_split_on_request(official, run, fails, tmp_path):
    source = official()
    run(source, tmp_path / "ours", "--max_shard_size", "40KB")
    assert len(list((tmp_path / "ours").glob("model-*-of-*.safetensors"))) > 1
    assert (tmp_path / "ours" / "model.safetensors.index.json").exists()
    message = fails(source, tmp_path / "stock", "--to", "deberta-v2", "--max_shard_size", "40KB")
    assert message == "--max_shard_size is for --to deberta-ext alone"


def test_an_empty_folder_is_filled_and_any_other_left_alone_unless_asked(official, run, fails, tmp_path):
    source, output = official(), tmp_path / "ours"
    output.mkdir()
    run(source, output)
    run(source, tmp_path / "new" / "parent")
    same_weights(output, tmp_path / "new" / "parent")
    shutil.rmtree(tmp_path / "new")
    for file in output.iterdir():
        file.unlink()
    (output / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    assert "is there already" in fails(source, tmp_path / "file") and (tmp_path / "file").read_text() == "mine"
    (tmp_path / "file").unlink()
    message = fails(source, output)
    assert f"{output} is there already" in message and "--overwrite" in message
    assert [file.name for file in output.iterdir()] == ["mine.txt"]
    assert "moved aside: " in run(source, output, "--overwrite")
    assert (tmp_path / "ours.old-1" / "mine.txt").read_text() == "mine" and not (output / "mine.txt").exists()
    assert "ours.old-2" in run(source, output, "--overwrite")
    run(source, source, "--overwrite")
    assert architecture(source) == ["DebertaExtForReplacedTokenDetection"]
    assert (tmp_path / "official.old-1" / "pytorch_model.bin").exists()
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "official", "official.old-1", "ours", "ours.old-1", "ours.old-2",
    ]  # fmt: skip


def test_the_working_directory_is_not_moved_away(official, fails, tmp_path, monkeypatch):
    source = official()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for output in (".", ".."):
        assert "is the working directory, or around it" in fails(source, output, "--overwrite")


@pytest.mark.parametrize("error", [ValueError("no"), OSError("no space"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["write_folder", "check_folder", "put_in_place"])
def test_where_it_fails_nothing_is_left_and_what_was_there_stays(step, error, official, tmp_path, monkeypatch):
    source, output = official(), tmp_path / "ours"
    output.mkdir()
    (output / "mine.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    module = verification if step == "check_folder" else convert
    real = getattr(module, step)

    def failing(*arguments, **options):
        if step == "write_folder":
            real(*arguments, **options)
        raise error

    monkeypatch.setattr(module, step, failing)
    expected = 130 if isinstance(error, KeyboardInterrupt) else 2
    assert main(["convert", str(source), str(output), "--overwrite"]) == expected
    assert sorted(tmp_path.rglob("*")) == before


def test_what_was_there_comes_back_where_the_new_folder_cannot_take_its_place(tmp_path):
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "mine.txt").write_text("mine")
    with pytest.raises(OSError):
        convert.put_in_place(tmp_path / "never written", tmp_path / "ours")
    assert [str(file.relative_to(tmp_path)) for file in sorted(tmp_path.rglob("*"))] == ["ours", "ours/mine.txt"]


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
        (change_tensor, "deberta-ext", f"{BIAS} is not what was written"),
        (change_tensor, "deberta-v2", f"{BIAS} is not what was written"),
        (change_activation, "deberta-ext", "the outputs of what was written differ from the source's by"),
        (
            lambda folder: tiny_tokenizer(["world", "hello"]).save_pretrained(folder),
            "deberta-ext",
            "the tokenizer that was written does not encode as",
        ),
    ],
    ids=["tensor", "tensor of stock", "outputs", "tokenizer"],
)
def test_what_is_not_the_sources_is_found(damage, to, message, official, fails, tmp_path, monkeypatch):
    """Something changes the folder between writing and checking."""
    real = convert.write_folder

    def write_and_damage(model, tokenizer, folder, **options):
        notes = real(model, tokenizer, folder, **options)
        damage(folder)
        return notes

    source = official()
    tiny_tokenizer().save_pretrained(source)
    monkeypatch.setattr(convert, "write_folder", write_and_damage)
    assert message in fails(source, tmp_path / "out", "--to", to)
    assert not (tmp_path / "out").exists()


def test_outputs_are_compared_in_float32_and_with_those_of_transformers(official, run, fails, tmp_path, monkeypatch):
    """In half precision, sums in another order differ by more than the tolerance, and BLAS may choose another kernel."""
    real, dtypes, scale = verification.compute_outputs, set(), 1

    def outputs(model):
        dtypes.add(model.dtype)
        stock = type(model).__module__.startswith("transformers.models.deberta_v2")
        return {name: tensor * (scale if stock else 1) for name, tensor in real(model).items()}

    monkeypatch.setattr(verification, "compute_outputs", outputs)
    run(official("v3", ("classifier",), torch.float16, **labels(3)), tmp_path / "ours")
    run(tmp_path / "ours", tmp_path / "stock", "--to", "deberta-v2")
    assert dtypes == {torch.float32}
    scale = 1.001
    message = fails(tmp_path / "ours", tmp_path / "out", "--to", "deberta-v2")
    assert "the outputs of transformers' DebertaV2Model differ from the source's by 0.001" in message


def test_long_lists_of_the_report_end_early(tmp_path, run):
    weights = microsoft("v3") | {f"extra.{i}": torch.zeros(1) for i in range(20)}
    (tmp_path / "extra").mkdir()
    source = write(tmp_path / "extra", "v3", weights)
    printed = run(source, tmp_path / "out", "--head", "base")
    assert printed.count("report: unused: ") == convert.LINES_OF_A_KIND + 1
    assert "report: unused: and " in printed and "--debug lists all" in printed


def test_what_cannot_be_loaded_is_refused(official, fails, tmp_path):
    out = tmp_path / "out"
    assert fails(tmp_path / "none", out) == f"there is no folder {tmp_path / 'none'}"
    (tmp_path / "empty").mkdir()
    assert fails(tmp_path / "empty", out) == f"{tmp_path / 'empty'} has no config.json"
    source = official()
    file = source / "pytorch_model.bin"
    file.write_bytes(file.read_bytes()[:3000])
    assert fails(source, out).startswith(
        f"{source} cannot be converted:\n  {source / 'pytorch_model.bin'} is truncated or damaged"
    )
    (tmp_path / "empty" / "config.json").write_text('{"model_type": "bert"}')
    assert "config.json has model_type 'bert'" in fails(tmp_path / "empty", out)
    source = official("v1", ("classifier",), name="classifier")
    message = fails(source, out, "--head", "sequence-classification")
    assert "classifier.bias has shape [3]" in message and "is its number of labels (id2label) right?" in message
    assert not out.exists()


def test_repositories_are_converted(tmp_path, monkeypatch, run, tiny_config):
    """An official pair with its tokenizer, and our model in shards."""
    source, _, _ = official_pair(tmp_path / "pair")
    tiny_tokenizer().save_pretrained(source)
    DebertaExtForMaskedLM(tiny_config()).save_pretrained(tmp_path / "local", max_shard_size="40KB")
    with LocalHub() as hub:
        hub.connect(monkeypatch, tmp_path / "home")
        upload(source)
        printed = run("user/name", tmp_path / "ours")
        upload(tmp_path / "local", "user/shards")
        run("user/shards", tmp_path / "one file")
    assert "source: user/name, DeBERTa v3 as Microsoft publishes it" in printed and "head: pretraining" in printed
    written = "".join(file.read_text() for file in (tmp_path / "ours").glob("*.json"))
    assert str(tmp_path) not in written
    expected = DebertaExtForPreTraining.from_pretrained(source)
    loaded = DebertaExtForPreTraining.from_pretrained(tmp_path / "ours")
    assert equal_outputs(loaded(IDS).discriminator_logits, expected(IDS).discriminator_logits)
    run(tmp_path / "local", tmp_path / "expected")
    same_weights(tmp_path / "one file", tmp_path / "expected")


def test_nothing_of_the_configurations_is_lost(official, run, tmp_path):
    source = official("v3", hidden_dropout_prob=0.25, attention_probs_dropout_prob=0.15, layer_norm_eps=1e-6)
    run(source, tmp_path / "ours")
    run(tmp_path / "ours", tmp_path / "stock", "--to", "deberta-v2")
    for name in ("ours", "stock"):
        config = json.loads((tmp_path / name / "config.json").read_text())
        for field in ("hidden_dropout_prob", "attention_probs_dropout_prob", "layer_norm_eps", *CONFIGS["v3"]):
            expected = json.loads((source / "config.json").read_text())[field]
            if field == "pos_att_type":
                assert {*config[field]} == {*expected.split("|")}
            elif field not in ("model_type",):
                assert config[field] == expected, (name, field)
