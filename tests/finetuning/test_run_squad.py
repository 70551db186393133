# SPDX-License-Identifier: Apache-2.0
"""examples/run_squad.py end to end: questions learned by heart through windows, and what a run leaves."""

import json
import random

import fine_tuning_scripts
import pytest
from fine_tuning_scripts import TRAIN_AND_EVALUATE, read_json, save_model
from task_files import write_lines
from transformers import AutoTokenizer, BertConfig, DistilBertConfig, XLNetConfig

from hf_deberta_ext.finetuning.tasks.question_answering_metrics import squad_v1, squad_v2

NAMES = "Ada Alan Grace Edsger Barbara Donald Frances John".split()
THINGS = "engine river garden letter bridge window island mountain".split()


def made_rows(count, seed=0, unanswerable=False):
    """Who owns something, each question with a context of six sentences, one of which says it (or none)."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        sentences = ["The old {} stands near the {}.".format(*draw.sample(THINGS, 2)) for _ in range(5)]
        owner = draw.choice(NAMES)
        has = not unanswerable or number % 3 > 0
        sentences.insert(draw.randrange(6), f"It is owned by {owner}." if has else "Nobody owns it.")
        context = " ".join(sentences)
        answers = dict(text=[owner], answer_start=[context.index(owner)]) if has else dict(text=[], answer_start=[])
        rows.append(dict(id=f"id{number}", title="made", context=context, question="Who owns it?", answers=answers))
    return rows


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    texts = [text for row in made_rows(50) for text in (row["context"], row["question"])]
    return save_model(tmp_path_factory.mktemp("model"), texts)


def run(*arguments, **values):
    return fine_tuning_scripts.run(*arguments, **(dict(max_seq_length=40, doc_stride=16) | values))


def test_a_run_on_questions_with_and_without_answers(run_squad, model, tmp_path):
    train = write_lines(tmp_path / "train.jsonl", *made_rows(12, unanswerable=True))
    rows = made_rows(9, seed=1, unanswerable=True)
    dev = write_lines(tmp_path / "dev.jsonl", *rows)
    unanswered = [{key: value for key, value in row.items() if key != "answers"} for row in rows]
    test = write_lines(tmp_path / "test.jsonl", *unanswered)
    folder = tmp_path / "out"
    measured = run(
        run_squad, model, folder, *TRAIN_AND_EVALUATE, "--do_predict", "--version_2_with_negative", train_file=train,
        validation_file=dev, test_file=test,
    )  # fmt: skip
    names = {file.name for file in folder.iterdir()}
    for stem in ("eval", "predict"):
        assert {f"{stem}_{name}.json" for name in ("predictions", "nbest_predictions", "null_odds", "results")} < names
    assert {"train_results.json", "all_results.json", "model.safetensors", "tokenizer.json", "README.md"} < names
    # The published file of predictions gives the reported numbers again.
    predictions, odds = read_json(folder / "eval_predictions.json"), read_json(folder / "eval_null_odds.json")
    assert list(predictions) == list(odds) == [row["id"] for row in rows]
    references = {row["id"]: row["answers"]["text"] for row in rows}
    for name, value in squad_v2(predictions, references).items():
        assert measured[f"eval_{name}"] == pytest.approx(value), name
    assert measured["eval_best_f1"] >= measured["eval_f1"] and "eval_best_f1_thresh" in measured
    # The same questions without their answers.
    assert read_json(folder / "predict_predictions.json") == predictions
    assert "predict_f1" not in measured and measured["predict_samples"] == 9
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: question-answering" in card and "dev.jsonl" in card and str(tmp_path) not in card

    again = run(
        run_squad, folder, tmp_path / "again", "--do_eval", "--version_2_with_negative", validation_file=dev,
        null_score_diff_threshold=measured["eval_best_f1_thresh"],
    )  # fmt: skip
    assert again["eval_f1"] == pytest.approx(measured["eval_best_f1"])


TINY = dict(num_hidden_layers=1, hidden_size=16, num_attention_heads=2, intermediate_size=32, max_position_embeddings=64)
MODELS = {
    "bert": lambda size: BertConfig(vocab_size=size, **TINY),
    "distilbert": lambda size: DistilBertConfig(vocab_size=size, dim=16, hidden_dim=32, n_layers=1, n_heads=2),
    "xlnet": lambda size: XLNetConfig(vocab_size=size, pad_token_id=0, d_model=16, n_layer=1, n_head=2, d_inner=32),
}


@pytest.mark.parametrize("kind", MODELS)
def test_models_of_other_families_are_trained_and_measured(kind, run_squad, model, tmp_path):
    """XLNet answers with more than logits, and its padding is on the left."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    MODELS[kind](len(tokenizer)).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    if kind == "xlnet":
        config = read_json(tmp_path / "model" / "tokenizer_config.json") | {"padding_side": "left"}
        (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    file = write_lines(tmp_path / "train.jsonl", *made_rows(8))
    flags = ("--from_scratch", *TRAIN_AND_EVALUATE)
    measured = run(run_squad, tmp_path / "model", tmp_path / "out", *flags, train_file=file, validation_file=file)
    predictions = read_json(tmp_path / "out" / "eval_predictions.json")
    references = {row["id"]: row["answers"]["text"] for row in made_rows(8)}
    assert squad_v1(predictions, references)["f1"] == pytest.approx(measured["eval_f1"])
    assert AutoTokenizer.from_pretrained(tmp_path / "out").padding_side == ("left" if kind == "xlnet" else "right")
