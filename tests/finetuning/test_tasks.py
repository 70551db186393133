# SPDX-License-Identifier: Apache-2.0
"""Behaviour of all tasks, from one table of cases: invalid flags and rows, real files, complete runs."""

import csv
import itertools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest
from fine_tuning_scripts import read_json, run, save_model
from pyarrow.parquet import read_schema
from scripts import module_of
from task_files import DATA, needs_data, write_lines
from transformers import AutoTokenizer, BertConfig, DistilBertConfig, XLNetConfig

from hf_deberta_ext.finetuning.prediction import predict_file
from hf_deberta_ext.finetuning.tasks.multiple_choice import MultipleChoiceArguments, MultipleChoiceData
from hf_deberta_ext.finetuning.tasks.question_answering import QuestionAnsweringArguments, QuestionAnsweringData
from hf_deberta_ext.finetuning.tasks.question_answering_metrics import squad_v2
from hf_deberta_ext.finetuning.tasks.superglue import SuperGlueArguments, read_superglue
from hf_deberta_ext.finetuning.tasks.text_classification import TextClassificationArguments, TextClassificationData
from hf_deberta_ext.finetuning.tasks.token_classification import TokenClassificationArguments, TokenClassificationData
from hf_deberta_ext.pretraining.tokenizer_training import train_byte_level_bpe
from hf_deberta_ext.training.flags import command_line

NOUNS, GOOD, BAD = "film play book song".split(), "fine great lovely".split(), "poor awful dull".split()
COLOURS = ["red", "blue", "green", "white"]
NAMES = "Ada Alan Grace Edsger".split()


def reviews():
    for noun, adjective in itertools.product(NOUNS, GOOD + BAD):
        yield {"text": f"the {noun} was {adjective}", "label": "good" if adjective in GOOD else "bad"}


def people():
    for name, verb, place in itertools.product(NAMES, ["likes", "left"], ["Paris", "New York"]):
        words = [name, verb, *place.split()]
        yield {"tokens": words, "ner_tags": ["B-PER", "O", "B-LOC", "I-LOC"][: len(words)]}


def colours():
    for number, colour in enumerate(COLOURS * 2):
        options = COLOURS[: 2 + number % 3]
        options.insert(number % 3, "boat")
        row = {"example_id": f"high{number}.txt", "article": f"the car is {colour} .", "question": "a _ ."}
        yield row | {"options": options, "answer": "ABC"[number % 3]}


def endings():
    for number, colour in enumerate(COLOURS * 2):
        row = {"sent1": "the car is white .", "sent2": "a", "ending0": colour, "ending1": colour, "label": number % 2}
        yield row | {f"ending{number % 2}": "boat"}


def owners():
    draw = random.Random(0)
    for number in range(16):
        name = draw.choice(NAMES)
        context = f"The old {draw.choice(NOUNS)} was dull. It is owned by {name}. The {draw.choice(NOUNS)} is lost."
        answers = {"text": [name], "answer_start": [context.index(name)]}
        yield {"id": f"id{number}", "question": "Who owns it?", "context": context, "answers": answers}


@dataclass(frozen=True)
class TaskCase:
    """Task with valid and invalid data and flags.

    Args:
        rows: training rows, which a run of `steps` steps learns.
        label: name of the column that is optional in a test set.
        columns: flag that renames a column, by name of the column.
        wrong_rows: changes of the second row (None: remove the column), and the expected error.
        wrong_flags: flags, and the expected error.
        real: real files by flag, other flags, and the number of evaluation examples.
        logits: function that returns constant logits for a number of rows and tokens.
    """

    script: str
    read: Callable[..., Any]
    arguments: type
    rows: Sequence[Mapping[str, Any]]
    label: str
    metric: str
    columns: Mapping[str, str]
    wrong_rows: Sequence[tuple[Mapping[str, Any], str]]
    wrong_flags: Sequence[tuple[Mapping[str, Any], str]]
    real: tuple[str, Mapping[str, Any], int]
    logits: Callable[[int, int], Any]
    flags: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 60
    best: float = 1.0


CASES = {
    "classes": TaskCase(
        "run_glue", TextClassificationData, TextClassificationArguments, [*reviews()], "label", "accuracy",
        {"text": "text_columns", "label": "label_column"},
        [
            ({"text": None}, "1 of 24 rows of --train_file have no text or no label .the first is row 2.: fill them"),
            ({"label": None}, "1 of 24 rows of --train_file have no text or no label .the first is row 2.: fill them"),
            ({"label": ["good"]}, r"a list|not of one type|cannot be converted to a table"),
        ],
        [
            ({}, "no data given: pass --task_name"),
            ({"task_name": "sst3"}, "--task_name must be one of cola, .* and xnli, got 'sst3'"),
            ({"language": "de"}, "need --task_name xnli"),
            ({"task_name": "xnli", "language": "de", "train_file": ["x.csv"]}, "pass files as NAME=FILE"),
            ({"text_columns": ["a", "b", "c"]}, "--text_columns must be one column, or two"),
            ({"label_names": ["a", "b"], "problem_type": "regression"}, "--label_names is for classification"),
            ({"validation_share": 20}, "--validation_share must be between 0 and 1, got 20"),
        ],
        ("glue/cola/validation.jsonl", {"task_name": "cola"}, 1043), lambda n, tokens: np.zeros((n, 2)), steps=40,
    ),
    "superglue": TaskCase(
        "run_superglue", read_superglue, SuperGlueArguments,
        [{"question": row["text"], "passage": "It is.", "label": row["label"] == "good"} for row in reviews()], "label",
        "accuracy", {"label": "label_column"},
        [
            ({"passage": None}, "row 2 of --train_file has None in the column 'passage'"),
            ({"label": None}, "row 2 of --train_file has the label None, expected one of the labels of boolq"),
        ],
        [
            ({"task_name": "sst2"}, "--task_name must be one of axb, axg, boolq, cb, copa"),
            ({"task_name": "copa", "validation_share": 0.2}, "language of copa are fixed: remove --validation_share"),
        ],
        ("superglue/boolq/validation*", {"task_name": "boolq"}, 3270), lambda n, tokens: np.zeros((n, 2)),
        flags={"task_name": "boolq"}, steps=40,
    ),
    "words": TaskCase(
        "run_ner", TokenClassificationData, TokenClassificationArguments, [*people()], "ner_tags", "f1",
        {"tokens": "text_column_name", "ner_tags": "label_column_name"},
        [
            ({"tokens": ["a"], "ner_tags": ["O", "O"]}, "row 2 of .* 1 words in 'tokens', but 2 labels in 'ner_tags'"),
            ({"tokens": [], "ner_tags": []}, r"row 2 of .* has \[\] in the column 'tokens', expected a list of words"),
            ({"tokens": ["a", None], "ner_tags": ["O", "O"]}, ".* None. in the column 'tokens', expected a list of words"),
            ({"ner_tags": None}, "row 2 of .* has None in the column 'ner_tags', expected a list"),
        ],
        [
            ({"task_name": "sst2"}, "--task_name must be one of conll2003, wnut17, got sst2"),
        ],
        ("wnut17/validation.jsonl.gz", {}, 1009), lambda n, tokens: np.zeros((n, tokens, 4)),
    ),
    "questions": TaskCase(
        "run_squad", QuestionAnsweringData, QuestionAnsweringArguments, [*owners()], "answers", "f1",
        {"question": "question_column", "context": "context_column", "answers": "answer_column"},
        [
            ({"context": None}, "row 2 of --train_file .* None in the column 'context', expected text"),
            ({"id": "id0"}, "must be unique, got 'id0' 2 times"),
            ({"answers": {"text": ["z"], "answer_start": [0]}}, "row 2 .*id1.*: the answer 'z' is not at character 0"),
            ({"answers": {"text": ["The"], "answer_start": [1]}}, "the answer 'The' is not at character 1"),
            ({"answers": {"text": [], "answer_start": []}}, "questions without an answer, such as 'id1': give --version"),
        ],
        [
            ({}, r"no data given: pass --task_name \(squad, squad_v2\)"),
            ({"dataset_name": "squad", "train_file": ["a.jsonl"]}, "--dataset_name squad and files are mutually exclusive"),
        ],
        ("squad_v1/validation.jsonl.gz", {"task_name": "squad", "max_eval_samples": 500}, 500),
        lambda n, tokens: (np.zeros((n, tokens)), np.zeros((n, tokens))), flags={"doc_stride": 8}, steps=120, best=80.0,
    ),
    "race": TaskCase(
        "run_race", MultipleChoiceData, MultipleChoiceArguments, [*colours()], "answer", "accuracy",
        {"answer": "label_column"},
        [
            ({"answer": "E"}, "row 2 of .* has 'E' in the column 'answer', expected the number"),
            ({"question": ""}, "row 2 of .* has an empty cell in the column 'article' or 'question'"),
            ({"options": ["red"], "answer": "A"}, r"row 2 of .* \(high1.txt-0\) must have two or more choices, got 1"),
            ({"options": ["red", ""]}, "row 2 of .* must have a text as choice 2 .in 'options'., got ''"),
        ],
        [({"task_name": "sst2"}, "--task_name must be one of race, swag, codah, c3, copa, got sst2")],
        ("race/high/validation.jsonl.gz", {"max_eval_samples": 50}, 50), lambda n, tokens: np.zeros((n, 4)), steps=100,
    ),
    "choices": TaskCase(
        "run_race", MultipleChoiceData, MultipleChoiceArguments, [*endings()], "label", "accuracy",
        {"label": "label_column"},
        [
            ({"label": 2}, "row 2 of .* has 2 in the column 'label', expected .*; there are 2 choices"),
            ({"label": None}, "row 2 .* must have a label, got none: give rows without labels as --test_file"),
            ({"ending1": None}, "row 2 of --train_file .* must have a text as choice 2 .in 'ending0', 'ending1'"),
        ],
        [
            ({}, "no data given: pass --task_name"),
            ({"context_column": "a"}, "--choice_columns must be given together with --context_column"),
            ({"choice_columns": ["a"]}, "--choice_columns must be given together with --context_column"),
        ],
        ("swag_sample/*", {}, 10), lambda n, tokens: np.zeros((n, 2)),
    ),
}  # fmt: skip
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
MISTAKES = [(case, *mistake) for case in CASES.values() for mistake in case.wrong_rows]
FLAGS = [(case, *mistake) for case in CASES.values() for mistake in case.wrong_flags]


def read(case, folder, flags=None, **sets):
    """Read the data of a task; `sets` are rows by "train", "validation" and "test"."""
    files = {f"{split}_file": [write_lines(folder / f"{split}.jsonl", *rows)] for split, rows in sets.items()}
    return case.read(case.arguments(**case.flags | files | (flags or {})))


def without(rows, column):
    return [{name: cell for name, cell in row.items() if name != column} for row in rows]


@pytest.fixture(scope="module")
def tokenizer():
    return train_byte_level_bpe([str(row) for case in CASES.values() for row in case.rows], vocab_size=400)


def encode(data, tokenizer):
    """Encode as for a checkpoint with the same labels."""
    config = BertConfig()
    if isinstance(data, TokenClassificationData) and not data.num_train:
        names = sorted({tag for sentence in data.sets["validation"] for tag in sentence.tags})
        config = BertConfig(id2label=dict(enumerate(names)), label2id={name: n for n, name in enumerate(names)})
    data.use_config(config)
    return data.encode(tokenizer, config)


@pytest.mark.parametrize(("case", "flags", "message"), FLAGS)
def test_flags_that_are_wrong_are_named(case, flags, message):
    with pytest.raises(ValueError, match=message):
        case.read(case.arguments(**flags))


@pytest.mark.parametrize(("case", "change", "message"), MISTAKES)
def test_rows_that_are_wrong_are_named(case, change, message, tmp_path):
    first, second, *rest = case.rows
    with pytest.raises(ValueError, match=message):
        read(case, tmp_path, train=[first, second | change, *rest])


@every_case
def test_a_missing_column_is_named_with_the_flag_that_names_another(case, tmp_path):
    for column, flag in case.columns.items():
        with pytest.raises(ValueError, match=rf"--train_file.* must have the columns 'x{column}', got .*--{flag}"):
            read(case, tmp_path, {flag: named(flag, f"x{column}")}, train=case.rows)


def named(flag, column):
    return [column] if flag == "text_columns" else column


@every_case
def test_columns_may_have_other_names(case, tmp_path, tokenizer):
    renamed = [{f"x{name}" if name in case.columns else name: cell for name, cell in row.items()} for row in case.rows]
    flags = {flag: named(flag, f"x{column}") for column, flag in case.columns.items()}
    theirs, ours = read(case, tmp_path / "renamed", flags, train=renamed), read(case, tmp_path, train=case.rows)
    assert encode(theirs, tokenizer).train.to_list() == encode(ours, tokenizer).train.to_list()


@every_case
def test_a_test_set_needs_no_labels_and_has_answers_without_metrics(case, tmp_path, tokenizer):
    task = encode(read(case, tmp_path, train=case.rows, test=without(case.rows, case.label)), tokenizer)
    test = task.test[""]
    assert test.metrics is None and test.examples == len(case.rows)
    assert not {"labels", "start_positions"} & {*test.rows.column_names}
    width = max(len(ids) for ids in test.rows["input_ids"])
    logits = case.logits(len(test.rows), width)
    assert all(file.stat().st_size for file in test.write(logits, tmp_path, "predict"))
    table = test.table(logits)
    assert len(table) == test.examples and {"row", *case.rows[0]} - {case.label} < {*table.column_names}
    with pytest.raises(ValueError, match="--validation_file"):
        read(case, tmp_path, train=case.rows, validation=without(case.rows, case.label))


@every_case
def test_logits_that_are_not_finite_are_no_answer(case, tmp_path, tokenizer):
    """Bug: NaN was predicted as class 0, or as the first span."""
    measured = encode(read(case, tmp_path, train=case.rows, validation=case.rows), tokenizer).evaluation[""]
    width = max(len(ids) for ids in measured.rows["input_ids"])
    logits = case.logits(len(measured.rows), width)
    (logits[0] if isinstance(logits, tuple) else logits)[1] = np.nan
    labels = None
    if "labels" in measured.rows.column_names:
        labels = np.zeros(len(measured.rows), int)
    with pytest.raises(ValueError, match=r"NaN|not finite"):
        measured.metrics(logits, labels)
    with pytest.raises(ValueError, match=r"NaN|not finite"):
        measured.table(logits)


@pytest.mark.parametrize(
    ("name", "task", "dataset", "config", "revision"),
    [
        ("words", "conll2003", "eriktks/conll2003", None, "refs/convert/parquet"),
        ("questions", "squad", "rajpurkar/squad", None, None),
        ("race", "race", "ehovy/race", "all", None),
        ("choices", "swag", "allenai/swag", "regular", None),
    ],
)
def test_a_task_without_files_is_read_from_the_hub(name, task, dataset, config, revision, monkeypatch):
    case, asked = CASES[name], []

    def read_hub(name, config, splits, **download):
        asked.append((name, config, download.get("revision")))
        return dict.fromkeys(("train", "validation"), datasets.Dataset.from_list([*case.rows]))

    monkeypatch.setattr("hf_deberta_ext.finetuning.tasks.splits.read_hub", read_hub)
    data = case.read(case.arguments(task_name=task, max_train_samples=3))
    assert (data.name, data.dataset, data.num_train, data.num_evaluation) == (task, dataset, 3, len(case.rows))
    case.read(case.arguments(dataset_name="a/b", dataset_config_name="c", data_revision="d"))
    assert asked == [(dataset, config, revision), ("a/b", "c", "d")]


@pytest.mark.parametrize("name", ["words", "questions"])
def test_slow_tokenizers_which_know_no_words_are_refused(name, tmp_path):
    with pytest.raises(ValueError, match=r"needs a fast tokenizer"):
        read(CASES[name], tmp_path, train=CASES[name].rows).encode(SimpleNamespace(is_fast=False), None)


@needs_data
@every_case
def test_real_files_are_encoded(case, tmp_path, tokenizer):
    pattern, flags, count = case.real
    files = sorted(map(str, Path(DATA).glob(pattern)))[:1]
    data = case.read(case.arguments(**{"validation_file": files, **flags}))
    assert data.num_evaluation == count
    measured = encode(data, tokenizer).evaluation[""]
    assert measured.examples == count <= len(measured.rows) and min(map(len, measured.rows["input_ids"])) > 0


@pytest.mark.usefixtures("no_network")
@every_case
def test_a_run_learns_its_rows_and_its_model_gives_the_same_answers_when_loaded(case, tmp_path):
    model = save_model(tmp_path / "model", [" ".join(str(cell) for cell in row.values()) for row in case.rows] * 5)
    script, folder = module_of(case.script), tmp_path / "out"
    files = {f"{split}_file": write_lines(tmp_path / f"{split}.jsonl", *case.rows) for split in ("train", "validation")}
    test = write_lines(tmp_path / "test.jsonl", *without(case.rows, case.label))
    flags = dict(case.flags) | dict(max_seq_length=64, per_device_train_batch_size=8, logging_steps=5)
    metrics = run(
        script, model, folder, "--do_train", "--do_eval", "--do_predict", **files, **flags, test_file=test,
        max_steps=case.steps, config_overrides="hidden_dropout_prob=0,attention_probs_dropout_prob=0",
    )  # fmt: skip
    assert metrics[f"eval_{case.metric}"] >= case.best
    assert metrics["eval_samples"] == metrics["predict_samples"] == len(case.rows)
    assert f"predict_{case.metric}" not in metrics
    names = {file.name for file in folder.iterdir()}
    assert {"train_results.json", "eval_results.json", "all_results.json", "model.safetensors", "tokenizer.json"} <= names
    assert read_json(folder / "all_results.json")[f"eval_{case.metric}"] == metrics[f"eval_{case.metric}"]
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "validation.jsonl" in card and str(tmp_path) not in card
    # Without training data, the labels of the checkpoint are used.
    again = run(
        script, folder, tmp_path / "again", "--do_eval", validation_file=files["validation_file"], **flags,
        predictions_format="parquet",
    )  # fmt: skip
    columns = read_schema(tmp_path / "again" / "eval_predictions.parquet").names
    assert {"row", *case.rows[0], "gold", "predicted"} <= {*columns}
    assert again["eval_loss"] == pytest.approx(metrics["eval_loss"], rel=1e-4)
    assert again[f"eval_{case.metric}"] == metrics[f"eval_{case.metric}"]
    table = [*csv.DictReader((folder / "test_predictions.csv").open(encoding="utf-8", newline=""))]
    assert [row["row"] for row in table] == [str(number) for number in range(1, len(case.rows) + 1)]
    if case.read is read_superglue:
        return
    # The command gives the same predictions, in parts and with other batches.
    output = tmp_path / "new.csv"
    more = command_line({**case.flags, "max_seq_length": 64})
    assert predict_file(str(folder), test, output, more, part_rows=5)[0] == len(case.rows)
    new = [*csv.DictReader(output.open(encoding="utf-8", newline=""))]
    for ours, theirs in zip(new, table, strict=True):
        for name in ours.keys() & theirs.keys():
            if name.startswith(("probability", "null")):
                assert json.loads(ours.pop(name)) == pytest.approx(json.loads(theirs.pop(name)), abs=1e-4)
    assert new == table


SMALL = dict(vocab_size=400, num_hidden_layers=1, hidden_size=16, num_attention_heads=2, intermediate_size=32)
FAMILIES = {
    "bert": BertConfig(**SMALL, max_position_embeddings=64),
    "distilbert": DistilBertConfig(vocab_size=400, dim=16, hidden_dim=32, n_layers=1, n_heads=2),
    "xlnet": XLNetConfig(vocab_size=400, pad_token_id=0, d_model=16, n_layer=1, n_head=2, d_inner=32),
}


@pytest.mark.parametrize("kind", FAMILIES)
def test_models_of_other_families_answer_questions(kind, tokenizer, tmp_path):
    """XLNet returns more than logits, and pads on the left."""
    case, side = CASES["questions"], "left" if kind == "xlnet" else "right"
    FAMILIES[kind].save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    settings = tmp_path / "model" / "tokenizer_config.json"
    settings.write_text(json.dumps(read_json(settings) | {"padding_side": side}), encoding="utf-8")
    file = write_lines(tmp_path / "train.jsonl", *case.rows)
    flags = ("--from_scratch", "--do_train", "--do_eval", "--version_2_with_negative")
    measured = run(
        module_of(case.script), tmp_path / "model", tmp_path / "out", *flags, train_file=file, validation_file=file,
        max_seq_length=40, doc_stride=8,
    )  # fmt: skip
    predictions = read_json(tmp_path / "out" / "eval_predictions.json")
    references = {row["id"]: row["answers"]["text"] for row in case.rows}
    assert squad_v2(predictions, references)["f1"] == pytest.approx(measured["eval_f1"])
    assert {"eval_nbest_predictions.json", "eval_null_odds.json"} <= {file.name for file in (tmp_path / "out").iterdir()}
    assert AutoTokenizer.from_pretrained(tmp_path / "out").padding_side == side
