# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext explain`: figures for each kind of model, their numbers, and errors."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from every_head import CLASSES
from hub_models import upload
from huggingface_hub import HfApi
from tiny_models import TINY, save_adapter, save_tokenizer, tiny_model

from hf_deberta_ext import DebertaExtForPreTraining, DebertaExtForSequenceClassification, DebertaExtModel
from hf_deberta_ext.analysis.attention_decomposition import attention_parts, position_profile
from hf_deberta_ext.analysis.embedding_similarity import average_cosine_similarity
from hf_deberta_ext.analysis.sentence_scoring import token_replacement_probabilities
from hf_deberta_ext.commands import main
from hf_deberta_ext.tokenization import load_tokenizer

TEXT = "w7 w9 w7 w30"
TOKENS = ["[CLS]", *TEXT.split(), "[SEP]"]
JOINT = dict(generator={"num_hidden_layers": 2}, embedding_sharing="gdes", special_token_ids=[0, 1, 2, 3, 4])
HISTORY = [{"step": 10, "loss": 2.5, "grad_norm": 1.0}, {"step": 20, "loss": 1.5}, {"step": 20, "eval_loss": 1.75}]
RTD_HISTORY = [
    {"step": 5, "loss": 30.0, "generator_loss": 6.0, "discriminator_loss": 0.5},
    {"step": 5, "eval_loss": 28.0, "eval_generator_loss": 5.5, "eval_discriminator_loss": 0.4},
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Save models with a tokenizer, by kind."""
    root = tmp_path_factory.mktemp("models")
    kinds = {
        "joint": ("pretraining", JOINT),
        "rtd": ("replaced-token-detection", {}),
        "mlm": ("masked-lm", {}),
        "classifier": ("sequence-classification", {}),
        "base": ("base", {}),
        "absolute": ("base", dict(position_biased_input=True, max_position_embeddings=8, position_buckets=4)),
        "no_positions": ("base", dict(relative_attention=False, position_biased_input=True)),
    }
    for name, (head, fields) in kinds.items():
        tiny_model(CLASSES[head], **fields).save_pretrained(root / name)
        save_tokenizer(root / name)
    write_run(root / "joint", RTD_HISTORY)
    joint = DebertaExtForPreTraining.from_pretrained(root / "joint")
    joint.export_generator().save_pretrained(root / "parts" / "generator")
    joint.export_discriminator().save_pretrained(root / "parts" / "discriminator")
    save_tokenizer(root / "parts" / "discriminator")
    return root


def write_run(folder, history):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}), encoding="utf-8")
    return folder


def explain(*arguments):
    """Run the command with only one format by default, because drawing takes most of the time."""
    formats = [] if "--formats" in arguments else ["--formats", "png"]
    return main(["explain", *map(str, arguments), *formats])


def numbers_of(folder):
    return json.loads((folder / "explain.json").read_text(encoding="utf-8"))


def files_in(folder):
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def test_an_adapter_is_merged_into_its_base_model(folders, tmp_path):
    """Its attention equals the attention of the model with the adapter's products added to the projections."""
    torch.manual_seed(0)
    model = DebertaExtForSequenceClassification.from_pretrained(folders / "classifier")
    adapted = save_adapter(model, tmp_path / "adapter", r=2)
    adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
    save_tokenizer(tmp_path / "merged")
    numbers = []
    for source in (folders / "classifier", tmp_path / "adapter", tmp_path / "merged"):
        out = tmp_path / "figures" / source.name
        assert explain("--model", source, "--text", TEXT, "--output_dir", out) == 0
        numbers.append(torch.tensor(numbers_of(out)["attention"]["probabilities"]))
    assert torch.allclose(numbers[1], numbers[2], atol=1e-5) and not torch.allclose(numbers[0], numbers[1], atol=1e-3)


def test_a_joint_model_gives_every_figure_and_the_numbers_behind_it(folders, tmp_path, capsys):
    out = tmp_path / "new" / "figures"
    assert explain("--model", folders / "joint", "--text", TEXT, "--output_dir", out, "--formats", "png", "svg") == 0
    names = ["attention", "position_profile", "replacement_probabilities", "embedding_similarity", "curves"]
    files = [f"{name}.{ending}" for name in names for ending in ("png", "svg")] + ["explain.json"]
    printed = capsys.readouterr()
    assert printed.out.split() == [str(out / file) for file in files]
    assert printed.err == "skipping influence: the model has no text classifier (pooler and classifier)\n"
    assert files_in(out) == {*files}
    for name in names:
        assert (out / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert "<svg" in (out / f"{name}.svg").read_text(encoding="utf-8")[:1000]
    numbers = numbers_of(out)
    assert [*numbers] == ["model", "text", *names] and numbers["text"] == TEXT

    model, tokenizer = DebertaExtForPreTraining.from_pretrained(folders / "joint"), load_tokenizer(folders / "joint")
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    attention = numbers["attention"]
    assert (attention["layer"], attention["head"], attention["tokens"]) == (2, "mean", TOKENS)
    for name, values in attention_parts(model.discriminator, ids).of_head().items():
        torch.testing.assert_close(torch.tensor(attention[name]), values, rtol=1e-4, atol=1e-5)
    profile = position_profile(model.discriminator, ids)
    assert numbers["position_profile"]["distances"] == profile.distances.tolist()
    assert numbers["position_profile"]["heads"] == [0, 1, 2, 3]
    total = torch.tensor(numbers["position_profile"]["total"])
    torch.testing.assert_close(total, profile.total, rtol=1e-4, atol=1e-5)
    scores = token_replacement_probabilities(model, tokenizer, TEXT)
    assert [each["token"] for each in numbers["replacement_probabilities"]] == TEXT.split()
    values = [each["probability"] for each in numbers["replacement_probabilities"]]
    assert values == pytest.approx([score.probability for score in scores], rel=1e-4)
    # Special tokens are not words; E_D = E_G + E_delta.
    words = torch.arange(5, TINY["vocab_size"])
    tables = {
        "generator": model.generator.get_input_embeddings().weight,
        "discriminator": model.discriminator.get_input_embeddings().table(),
    }
    expected = {name: average_cosine_similarity(table, words) for name, table in tables.items()}
    assert numbers["embedding_similarity"] == {"joint, GDES": pytest.approx(expected, rel=1e-4)}
    curves = numbers["curves"]["joint"]
    assert curves["generator_loss"] == [[5, 6.0]] and curves["eval_discriminator_loss"] == [[5, 0.4]]
    assert "loss" not in curves


def test_a_prediction_is_printed_written_and_drawn(folders, tmp_path, capsys):
    """Of words after the command, of flags, and of a row of a file, which are one text."""
    table = tmp_path / "rows.csv"
    table.write_text(f"premise,hypothesis,other\nw5,w6,w8\n{TEXT},w8 w9,w10\n", encoding="utf-8")
    model = folders / "classifier"
    forms = {
        "words": [model, TEXT, "w8 w9"],
        "model_flag": ["--model", model, TEXT, "w8 w9"],
        "row": [model, "--file", table, "--row", 2],
        "columns": [model, "--file", table, "--row", 2, "--text_columns", "premise", "hypothesis"],
    }
    results = []
    for name, form in forms.items():
        assert explain(*form, "--influence", "--output_dir", tmp_path / name) == 0
        results.append(numbers_of(tmp_path / name))
        assert files_in(tmp_path / name) == {"influence.png", "influence.html", "explain.json"}
    assert all(result == results[0] for result in results)
    printed = capsys.readouterr().out.split(str(tmp_path))[0]
    numbers = results[0]["influence"]
    assert (results[0]["text"], results[0]["text_pair"]) == (TEXT, "w8 w9")
    assert printed.startswith(f"{numbers['label']}: {max(score for _, score in numbers['scores']):.3f}\n")
    for token in numbers["tokens"]:
        assert f"{token['gradients']:+9.3f}  {token['occlusion']:+9.3f}  {token['token']}\n" in printed
    assert [token["token"] for token in numbers["tokens"]] == [*TEXT.split(), "w8", "w9"]
    # Of a long text, the terminal has the tokens of largest influence, and the file all.
    assert explain(model, "w7 w8 w9 " * 9, "--influence", "--output_dir", tmp_path / "long") == 0
    _, table = capsys.readouterr().out.split("gradients  occlusion  token, 24 of 27\n")
    assert len(table.split(str(tmp_path))[0].splitlines()) == 24
    assert len(numbers_of(tmp_path / "long")["influence"]["tokens"]) == 27


@pytest.mark.parametrize(
    "flags, message",
    [
        (["w5", "w6", "w7"], "expected one text or two texts"),
        (["--file", "rows.csv"], "expected one text or two texts"),
        (["--file", "rows.csv", "--row", 0], "--row must be the number of a row in rows.csv, counted from 1, got 0"),
        (["--file", "rows.csv", "--row", 1], "--text_columns must be one or two columns of rows.csv, which has ['a', 'b']"),
    ],
)
def test_a_text_that_is_not_given_once_is_refused(flags, message, folders, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("a,b\nw5,w6\nw7,w8\n", encoding="utf-8")
    assert explain(folders / "classifier", *flags, "--influence") == 2
    assert message in capsys.readouterr().err and not Path("figures").exists()


def test_a_folder_that_does_not_exist_is_named(capsys):
    """Bug: the message began with "modelexpected a folder"."""
    assert explain("no/such/folder", "w5") == 2
    assert "error: MODEL: expected a folder or a Hub id, got no/such/folder" in capsys.readouterr().err


def test_generator_and_discriminator_in_two_folders_give_what_the_joint_model_gives(folders, tmp_path):
    flags = ["--attention", "--replacement_probabilities", "--embedding_similarity", "--text", TEXT]
    found = []
    for name in ("joint", "parts"):
        assert explain("--model", folders / name, *flags, "--output_dir", tmp_path / name) == 0
        found.append(numbers_of(tmp_path / name))
    joint, parts = found
    assert [*parts["embedding_similarity"]] == ["parts"]
    (expected,), (got,) = (each["embedding_similarity"].values() for each in found)
    assert got == pytest.approx(expected, rel=1e-4)
    torch.testing.assert_close(torch.tensor(parts["attention"]["c2p"]), torch.tensor(joint["attention"]["c2p"]))
    values = [[token["probability"] for token in each["replacement_probabilities"]] for each in found]
    assert values[0] == pytest.approx(values[1], rel=1e-4)


@pytest.mark.parametrize("kind", ["mlm", "classifier", "base", "rtd", "no_positions"])
def test_any_head_gives_what_it_can_and_the_rest_is_told(kind, folders, tmp_path, capsys):
    assert explain("--model", folders / kind, "--text", TEXT, "--output_dir", tmp_path) == 0
    printed = capsys.readouterr()
    expected = {"attention.png", "position_profile.png", "explain.json"}
    if kind == "rtd":
        expected |= {"replacement_probabilities.png"}
    if kind == "no_positions":
        expected -= {"position_profile.png"}
        assert "skipping position_profile: the model has no relative positions" in printed.err
    attention = numbers_of(tmp_path)["attention"]
    assert {"probabilities", "c2c"} < {*attention} and ("c2p" in attention) == (kind != "no_positions")
    if kind == "classifier":
        expected |= {"influence.png", "influence.html"}
    assert files_in(tmp_path) == expected
    assert expected == {Path(line).name for line in printed.out.splitlines() if line.startswith(str(tmp_path))}
    assert ("skipping influence: the model has no text classifier" in printed.err) == (kind != "classifier")
    assert ("skipping replacement_probabilities: the model has no head" in printed.err) == (kind != "rtd")
    assert "skipping embedding_similarity: the model does not have both a generator and a discriminator" in printed.err
    assert "skipping curves: " in printed.err and "no trainer_state.json" in printed.err
    assert "Warning" not in printed.err and "LOAD REPORT" not in printed.err


def test_layer_head_and_max_distance_are_chosen_and_a_profile_reaches_as_far_as_the_inputs(folders, tmp_path):
    """Previously, a model for short texts with a table for 512 positions showed a band of noise."""
    flags = ["--attention", "--position_profile", "--layer", 1, "--head", 3]
    tokenizer = load_tokenizer(folders / "base")
    tokenizer.model_max_length = 6
    tokenizer.save_pretrained(tmp_path / "short")
    for more, reach in ((["--max_distance", 4], 4), (["--tokenizer", tmp_path / "short"], 5)):
        out = tmp_path / str(reach)
        assert explain("--model", folders / "base", "--text", TEXT, "--output_dir", out, *flags, *more) == 0
        numbers = numbers_of(out)
        profile = numbers["position_profile"]
        assert (profile["heads"], profile["distances"]) == ([3], [*range(-reach, reach + 1)]) and len(profile["c2p"]) == 1
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    expected = attention_parts(DebertaExtModel.from_pretrained(folders / "base"), ids, layer=1)
    torch.testing.assert_close(torch.tensor(numbers["attention"]["c2c"]), expected.c2c[3], rtol=1e-4, atol=1e-5)
    assert (numbers["attention"]["layer"], numbers["attention"]["head"]) == (1, 3)


def test_a_repository_is_read_at_the_revision_that_is_asked_for(hub, folders, tmp_path):
    api, figures = HfApi(), tmp_path / "figures"
    upload(folders / "base")
    api.create_branch("user/name", branch="v2")
    api.upload_folder(repo_id="user/name", folder_path=folders / "rtd", revision="v2")
    command = ["explain", "--model", "user/name", "--revision", "v2", "--text", TEXT, "--replacement_probabilities"]
    # The model of "main" does not have the required head.
    assert main([*command, "--output_dir", str(figures)]) == 0
    assert numbers_of(figures)["model"] == "user/name" and len(numbers_of(figures)["replacement_probabilities"]) == 4


def test_curves_of_several_runs_need_no_model_and_have_the_names_of_their_folders(tmp_path, monkeypatch):
    a, b = write_run(tmp_path / "a", HISTORY), write_run(tmp_path / "b", RTD_HISTORY)
    # An unfinished run: the last checkpoint, by step number, counts.
    for step in (20, 100):
        write_run(tmp_path / "c" / f"checkpoint-{step}", [{"step": step, "loss": 1.0}])
    out = tmp_path / "figures"
    assert explain("--curves", a, b, tmp_path / "c", "--output_dir", out) == 0
    assert files_in(out) == {"curves.png", "explain.json"}
    curves = numbers_of(out)["curves"]
    assert curves["a"] == {"loss": [[10, 2.5], [20, 1.5]], "eval_loss": [[20, 1.75]]}
    assert curves["b"]["generator_loss"] == [[5, 6.0]] and curves["b"]["eval_discriminator_loss"] == [[5, 0.4]]
    assert curves["c"] == {"loss": [[100, 1.0]]} and "loss" not in curves["b"]
    # A longer part of the folders' paths where runs have the same name.
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        write_run(Path(name, "run"), HISTORY)
    assert explain("--curves", "one/run", "two/run", "--overwrite") == 0
    assert [*numbers_of(out)["curves"]] == ["one/run", "two/run"]


def test_existing_figures_are_not_replaced_unless_told(folders, tmp_path, capsys):
    flags = ["--model", folders / "base", "--attention", "--text", TEXT, "--output_dir", tmp_path]
    (tmp_path / "attention.svg").write_text("mine", encoding="utf-8")
    assert explain(*flags, "--formats", "png", "svg") == 2
    message = capsys.readouterr().err
    assert f"{tmp_path / 'attention.svg'} already exists; pass --overwrite" in message
    assert files_in(tmp_path) == {"attention.svg"} and (tmp_path / "attention.svg").read_text(encoding="utf-8") == "mine"
    # Another format is another file; the numbers are the same.
    assert explain(*flags) == 0
    assert explain(*flags, "--formats", "pdf") == 2
    assert f"{tmp_path / 'explain.json'} already exists" in capsys.readouterr().err
    assert explain(*flags, "--formats", "svg", "--overwrite") == 0
    assert "<svg" in (tmp_path / "attention.svg").read_text(encoding="utf-8")[:1000]
    # Figures of the same text are added; figures of another text are an error.
    attention = numbers_of(tmp_path)["attention"]
    flags = ["--model", folders / "base", "--output_dir", tmp_path, "--position_profile", "--text"]
    assert explain(*flags, "w7 w8") == 2 and explain(*flags, TEXT) == 0
    assert [*numbers_of(tmp_path)] == ["model", "text", "attention", "position_profile"]
    assert numbers_of(tmp_path)["attention"] == attention
    assert explain(*flags, "w7 w8", "--overwrite") == 0
    assert [*numbers_of(tmp_path)] == ["model", "text", "position_profile"]


@pytest.mark.parametrize(
    "kind, flags, message",
    [
        ("mlm", ["--replacement_probabilities"], "the model has no head for replaced token detection"),
        ("base", ["--influence"], "the model has no text classifier (pooler and classifier)"),
        ("joint", ["--influence"], "the model has no text classifier (pooler and classifier)"),
        ("rtd", ["--attention", "--embedding_similarity"], "the model does not have both a generator and a discriminator"),
        ("no_positions", ["--position_profile"], "the model has no relative positions"),
        ("base", ["--curves"], "base or its checkpoint-* folders"),
        ("base", ["--head", "4"], "head must be in 0 to 3 in layer 2, or None for the mean, got 4"),
        ("base", ["--position_profile", "--head", "4"], "--head must be between 0 and 3, got 4"),
        ("absolute", ["--text", "w7 " * 7], "the input must have at most max_position_embeddings"),
    ],
)
def test_what_cannot_be_drawn_is_named_and_nothing_is_written(kind, flags, message, folders, tmp_path, capsys):
    out = tmp_path / "figures"
    assert explain("--model", folders / kind, "--output_dir", out, *flags) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("deberta-ext explain: error: ") and message in printed.err and printed.err.count("\n") == 1
    assert printed.out == "" and not out.exists()


def test_weights_or_a_tokenizer_of_another_model_are_refused(folders, tmp_path, capsys):
    """Such as the weights of a joint model with another config.json: some weights would be random."""
    joint, small = tmp_path / "joint", tmp_path / "small"
    shutil.copytree(folders / "base", joint)
    shutil.copy(folders / "joint" / "model.safetensors", joint)
    tiny_model(DebertaExtModel, vocab_size=40).save_pretrained(small)
    save_tokenizer(small)
    capsys.readouterr()
    errors = []
    for folder in (joint, small):
        assert explain("--model", folder, "--text", TEXT, "--output_dir", tmp_path / "figures") == 2
        errors.append(capsys.readouterr().err)
    assert "are these the weights of another model?" in errors[0] or "do not match its config.json" in errors[0]
    assert errors[0].count("\n") == 1 and "40" in errors[1] and not (tmp_path / "figures").exists()


def test_without_matplotlib_the_extra_is_named_before_a_model_is_loaded(tmp_path, capsys, monkeypatch):
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    assert explain("--model", tmp_path, "--output_dir", tmp_path) == 2
    assert "pip install 'hf_deberta_ext[plots]'" in capsys.readouterr().err


def test_without_captum_the_extra_is_named_and_other_figures_are_drawn(folders, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "captum", None)
    assert explain(folders / "classifier", TEXT, "--influence", "--output_dir", tmp_path / "figures") == 2
    assert 'pip install "hf_deberta_ext[plots]"' in capsys.readouterr().err
    assert explain(folders / "classifier", TEXT, "--attention", "--output_dir", tmp_path / "figures") == 0
