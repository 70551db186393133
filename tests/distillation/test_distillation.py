# SPDX-License-Identifier: Apache-2.0
"""Runs of `deberta-ext distill`: every task, caches, exact resume, comparison and refused flags."""

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from distilled import SECOND, save_model, write_data
from safetensors.torch import load_file
from scripts import command_line
from transformers import AutoTokenizer

from hf_deberta_ext.distillation import teacher as teachers
from hf_deberta_ext.distillation.run import keep_layers, label_order, main
from hf_deberta_ext.distillation.teacher import CachedSignal, Teacher
from hf_deberta_ext.pretraining.dynamic_masking import MaskingCollator

AUTO = {
    "text": "AutoModelForMaskedLM",
    "classification": "AutoModelForSequenceClassification",
    "ner": "AutoModelForTokenClassification",
    "qa": "AutoModelForQuestionAnswering",
}
# In the other order than the labels of the data
LABELS = {"classification": ("good", "bad"), "ner": ("B-X", "O")}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return the flags of the data by task, teachers by task and family, and a student."""
    folder = tmp_path_factory.mktemp("made")
    teachers = {}
    for task, auto in AUTO.items():
        names = LABELS.get(task, ("LABEL_0", "LABEL_1"))
        labels = dict(id2label=dict(enumerate(names)), label2id={name: n for n, name in enumerate(names)})
        teachers[task, "bert"] = save_model(folder / f"{task}-bert", auto, SECOND, "bert", hidden_size=48, **labels)
        teachers[task, "ours"] = save_model(folder / f"{task}-ours", auto, seed=1, **labels)
    return write_data(folder), teachers, save_model(folder / "student", AUTO["text"], seed=2, num_hidden_layers=2)


def distil(task, made, folder, **given):
    """Distil the BERT teacher of a task into the student, without the comparison, unless other flags are given."""
    files, teachers, student = made
    flags = dict(
        teacher=teachers[task, "bert"], model_name_or_path=student, without_teacher="false",
        output_dir=folder, max_steps=6, per_device_train_batch_size=8, learning_rate=1e-3, report_to="none",
        disable_tqdm="true", logging_steps=1, save_strategy="no", do_train="true", do_eval="true", max_seq_length=32,
    )  # fmt: skip
    if task == "text":
        flags |= dict(soft_labels_weight=0, embeddings_weight=1)
    if task == "qa":
        flags["doc_stride"] = 8
    return main(task, command_line(flags | files[task] | given))


def losses(folder, name):
    history = json.loads(Path(folder, "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    return [entry[f"{name}_loss"] for entry in history if f"{name}_loss" in entry]


def equal_weights(*folders):
    first, second = (load_file(Path(folder, "model.safetensors")) for folder in folders)
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


def keep_checkpoint(folder, name):
    """Remove the results of a finished run and its later checkpoints, as if it had stopped after this one."""
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name > name:
            shutil.rmtree(entry)
        elif entry.is_file() and entry.name != "run_arguments.json":
            entry.unlink()


@pytest.mark.parametrize("task", AUTO)
def test_a_student_learns_from_a_teacher_of_another_family_tokenizer_and_width(task, made, tmp_path, capsys):
    # The labels of the data and the answers of a random teacher differ.
    weights = {"hidden_weight": 1, "relations_weight": 1, "label_weight": 0.01}
    given = dict(without_teacher=None, max_steps=30, learning_rate=3e-3)
    weights |= {"masked_share": 0.25} if task == "text" else {"soft_labels_weight": 5}
    results = distil(task, made, tmp_path, **given, **weights, logging_steps=10)
    said = capsys.readouterr().out
    assert "outputs of the teacher: 40 rows, about" in said and "not aligned with the teacher: " in said
    assert [*results] == ["teacher", "student", "without_teacher"]
    assert json.loads((tmp_path / "comparison.json").read_text(encoding="utf-8")) == results
    assert "| without teacher |" in (tmp_path / "comparison.md").read_text(encoding="utf-8")
    cards = [(tmp_path / part / "README.md").read_text(encoding="utf-8") for part in ("student", "without_teacher")]
    assert f"| teacher | {task}-bert |" in cards[0] and "| teacher |" not in cards[1]
    names = ["hidden", "relations", "labels", "embeddings" if task == "text" else "soft_labels"]
    for name in names:
        found = losses(tmp_path / "student", name)
        assert len(found) == 3 and all(map(math.isfinite, found))
        if name != "labels":
            assert found[-1] < found[0], name
    assert not losses(tmp_path / "without_teacher", names[-1])
    assert not equal_weights(tmp_path / "student", tmp_path / "without_teacher")


@pytest.mark.parametrize("task", AUTO)
def test_a_student_that_is_the_teacher_has_no_loss(task, made, tmp_path):
    source = made[1][task, "ours"]
    objectives = dict(label_weight=0, hidden_weight=1, relations_weight=1, learning_rate=0, cache_dtype="float32")
    plain = "hidden_dropout_prob=0,attention_probs_dropout_prob=0,cls_dropout=0"
    given = dict(teacher=source, model_name_or_path=source, config_overrides=plain, max_steps=2)
    distil(task, made, tmp_path, **given, **objectives)
    for name in ("hidden", "relations", "embeddings" if task == "text" else "soft_labels"):
        assert max(map(abs, losses(tmp_path / "student", name))) < 1e-5, name


def test_masked_words_of_another_file(made, tmp_path, monkeypatch):
    (tmp_path / "passages.txt").write_text("here here. " * 50, encoding="utf-8")
    masked, mask = [], MaskingCollator.__call__
    monkeypatch.setattr(MaskingCollator, "__call__", lambda self, rows: masked.extend(rows) or mask(self, rows))
    given = dict(hidden_weight=1, masked_share=0.25, masked_file=tmp_path / "passages.txt")
    distil("text", made, tmp_path / "run", **given)
    # Two of eight rows in each of six batches; one more batch is prefetched.
    assert len(masked) >= 6 * 2
    here = AutoTokenizer.from_pretrained(made[2]).convert_tokens_to_ids("here")
    lengths = [len(row["input_ids"]) for row in masked]
    assert max(lengths) == 32 and all(here in row["input_ids"] for row in masked)
    assert all(map(math.isfinite, losses(tmp_path / "run" / "student", "labels")))


def test_a_run_is_not_resumed_with_other_passages(made, tmp_path, capsys):
    passages = tmp_path / "passages.txt"
    given = dict(masked_share=0.25, masked_file=passages, save_strategy="steps", save_steps=2, max_steps=4, do_eval="false")
    passages.write_text("here today. " * 50, encoding="utf-8")
    distil("text", made, tmp_path / "run", **given)
    keep_checkpoint(tmp_path / "run" / "student", "checkpoint-2")
    passages.write_text("today here. " * 50, encoding="utf-8")
    with pytest.raises(SystemExit):
        distil("text", made, tmp_path / "run", **given, resume_from_checkpoint="last")
    assert "data_collator_options" in capsys.readouterr().err


def test_a_resumed_run_has_the_weights_of_one_that_was_not_stopped(made, tmp_path, monkeypatch):
    given = dict(save_strategy="steps", save_steps=2, hidden_weight=1, gradient_accumulation_steps=2, max_steps=8)
    given["masked_share"] = 0.25
    distil("text", made, tmp_path / "whole", **given)
    distil("text", made, tmp_path / "run", **given)
    # In the second epoch
    keep_checkpoint(tmp_path / "run" / "student", "checkpoint-4")
    monkeypatch.setattr(Teacher, "run", lambda *_: pytest.fail("the outputs are already on disk"))
    distil("text", made, tmp_path / "run", **given, resume_from_checkpoint="last")
    assert equal_weights(tmp_path / "whole" / "student", tmp_path / "run" / "student")
    for name in ("labels", "embeddings", "hidden"):
        assert losses(tmp_path / "whole" / "student", name) == losses(tmp_path / "run" / "student", name)


def test_the_teacher_runs_once_for_each_chunk_of_rows_and_does_not_change(made, tmp_path, monkeypatch):
    monkeypatch.setattr(teachers, "CHUNK", 16)
    run, calls = Teacher.run, []
    monkeypatch.setattr(Teacher, "run", lambda self, texts: calls.append(len(texts)) or run(self, texts))
    source = Path(made[1]["classification", "bert"])
    before = (source / "model.safetensors").read_bytes()
    given = dict(hidden_weight=1, do_eval="false", teacher_outputs=tmp_path / "outputs")
    distil("classification", made, tmp_path / "first", **given)
    # A sample for the principal directions of 48-wide states, and three chunks
    assert calls == [40, 16, 16, 8]
    distil("classification", made, tmp_path / "second", **given)
    assert calls == [40, 16, 16, 8] and equal_weights(tmp_path / "first" / "student", tmp_path / "second" / "student")
    next((tmp_path / "outputs").rglob("hidden-16.npy")).unlink()
    distil("classification", made, tmp_path / "third", **given)
    assert calls == [40, 16, 16, 8, 16] and equal_weights(tmp_path / "first" / "student", tmp_path / "third" / "student")
    distil("classification", made, tmp_path / "fourth", **given, teacher_layer=-2)
    assert len(calls) == 9
    assert (source / "model.safetensors").read_bytes() == before


def test_no_gradient_reaches_the_teacher(made, tmp_path, monkeypatch):
    kept, build = [], Teacher.__init__

    def keep(self, *args):
        build(self, *args)
        kept.append(self)

    monkeypatch.setattr(Teacher, "__init__", keep)
    distil("ner", made, tmp_path, hidden_weight=1, do_eval="false")
    [teacher] = kept
    assert all(weight.grad is None for weight in teacher.model.parameters()) and not teacher.model.training
    [file] = tmp_path.rglob("hidden-0.npy")
    with pytest.raises(ValueError, match="read-only"):
        CachedSignal([file], [1] * 40)[0][:] = 0


def test_embeddings_of_a_sentence_transformer_are_its_own(made, tmp_path):
    """Here [CLS], not the mean."""
    import sentence_transformers as library

    # A folder without modules.json gets mean pooling.
    model = library.SentenceTransformer(made[1]["classification", "bert"], device="cpu")
    model[1] = type(model[1])(48, "cls")
    model.save(str(tmp_path / "teacher"))
    distil("text", made, tmp_path / "run", teacher=tmp_path / "teacher", do_eval="false", cache_dtype="float32")
    [file] = tmp_path.rglob("embeddings-0.npy")
    expected = model.encode(Path(made[0]["text"]["train_file"]).read_text(encoding="utf-8").splitlines())
    # 48 numbers of the teacher on 32 principal directions
    expected = expected @ np.load(file.with_name("embeddings_directions.npy"))
    np.testing.assert_allclose(np.load(file), expected, atol=1e-5)


def test_a_student_of_layers_of_the_teacher_or_of_a_preset(made, tmp_path, monkeypatch):
    source = made[1]["classification", "bert"]
    distil("classification", made, tmp_path / "layers", model_name_or_path=None, student_layers=2)
    whole, kept = (load_file(Path(folder, "model.safetensors")) for folder in (source, tmp_path / "layers" / "initial"))
    for name in (name for name in kept if "encoder.layer." in name):
        number, rest = name.split("encoder.layer.")[1].split(".", 1)
        # The first and the last of four
        assert torch.equal(kept[name], whole[f"bert.encoder.layer.{[0, 3][int(number)]}.{rest}"])
    monkeypatch.setitem(
        teachers.load_config.__globals__["DebertaExtConfig"].from_preset.__globals__["PRESETS"], "tiny",
        dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16),
    )  # fmt: skip
    distil("classification", made, tmp_path / "preset", model_name_or_path=None, preset="tiny")
    config = json.loads((tmp_path / "preset" / "student" / "config.json").read_text(encoding="utf-8"))
    assert (config["model_type"], config["hidden_size"], config["num_hidden_layers"]) == ("deberta-ext", 16, 1)


def test_a_student_of_layers_of_a_checkpoint(made, tmp_path):
    distil("classification", made, tmp_path, student_layers=1)
    whole, kept = (load_file(Path(folder, "model.safetensors")) for folder in (made[2], tmp_path / "initial"))
    layers = {name.split("encoder.layer.")[1].split(".")[0] for name in kept if "encoder.layer." in name}
    assert layers == {"0"} and not any(name.startswith("lm_predictions") for name in kept)
    [embeddings] = (values for name, values in kept.items() if name.endswith("word_embeddings.weight"))
    assert torch.equal(embeddings, whole["deberta.embeddings.word_embeddings.weight"])
    config = json.loads((tmp_path / "student" / "config.json").read_text(encoding="utf-8"))
    assert config["num_hidden_layers"] == 1 and config["hidden_size"] == 32


def test_layers_are_evenly_spaced():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.config = type("Config", (), {"num_hidden_layers": 12})()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(12))

    for count, expected in ((6, [0, 2, 4, 7, 9, 11]), (1, [0]), (12, [*range(12)])):
        model = Model()
        layers = [*model.layers]
        assert [layers.index(layer) for layer in keep_layers(model, count).layers] == expected
    with pytest.raises(ValueError, match="must be 1 to 12, the number of layers of the model, got 13"):
        keep_layers(Model(), 13)
    shared = Model()
    shared.layers = shared.layers[:1]
    with pytest.raises(ValueError, match="needs a model with separate layers, got Model"):
        keep_layers(shared, 1)


def test_seeds_and_finished_parts(made, tmp_path):
    flags = dict(without_teacher=None, seeds="1", resume_from_checkpoint="auto")
    results = distil("classification", made, tmp_path, **flags)
    assert results["student"]["eval_accuracy"]["values"]
    times = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.safetensors")}
    assert distil("classification", made, tmp_path, **flags)["student"] == results["student"]
    assert times == {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.safetensors")}


@pytest.mark.parametrize(
    ("task", "given", "message"),
    [
        ("text", dict(teacher=None), "a distillation needs --teacher and --do_train"),
        ("text", dict(do_train=None), "there is nothing to do|needs --teacher and --do_train"),
        ("text", dict(soft_labels_weight=1), "text has no soft labels, so --soft_labels_weight must be 0"),
        ("text", dict(embeddings_weight=0), "at least one of --embeddings_weight"),
        ("text", dict(masked_share=1), "--masked_share must be at least 0 and below 1, got 1"),
        ("text", dict(masked_file="passages.txt"), "--masked_file needs --masked_share"),
        ("text", dict(label_column="score"), "must have the columns 'score'"),
        ("text", dict(pair_columns="sentence1"), "--pair_columns must be two columns, got sentence1"),
        ("classification", dict(hidden_weight=-1), "--hidden_weight must be a positive number .*, got -1"),
        ("classification", dict(temperature=0), "--temperature must be a positive number"),
        ("classification", dict(sift_weight=1), "--sift_weight cannot be used in a distillation"),
        ("classification", dict(preset="v3-xsmall"), "expected either --preset, or one or both"),
        ("classification", dict(max_cache_gb=1e-9), "raise --max_cache_gb"),
    ],
)
def test_refused_flags(task, given, message, made, tmp_path, capsys):
    with pytest.raises(SystemExit):
        distil(task, made, tmp_path, **(dict(do_eval=None) | given))
    assert re.search(message, capsys.readouterr().err)


def test_labels_of_the_teacher_are_those_of_the_data():
    class Labels:
        def __init__(self, *names):
            self.num_labels, self.id2label = len(names), dict(enumerate(names))
            self.label2id = {name: number for number, name in self.id2label.items()}

    assert label_order(Labels("b", "c", "a"), Labels("a", "b", "c")) == [2, 0, 1]
    assert label_order(Labels("LABEL_0"), Labels("score")) is None
    with pytest.raises(ValueError, match=r"must have the labels of the data \(a, b\), got LABEL_0, LABEL_1"):
        label_order(Labels("LABEL_0", "LABEL_1"), Labels("a", "b"))
