# SPDX-License-Identifier: Apache-2.0
"""SuperGLUE: texts from rows, metrics of groups, files for its server, the authors' nested files, real data.

The real data does not contain ReCoRD: its rows are synthetic, in the format of the Hub and in the format of the authors.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import task_files
from task_files import DATA, encoded, needs_data, write_lines

from hf_deberta_ext.finetuning.metrics import TASK_METRICS
from hf_deberta_ext.finetuning.tasks.superglue import SUPERGLUE, mark_spans, read_superglue
from hf_deberta_ext.finetuning.tasks.text_classification import TextClassificationArguments

tokenizer = task_files.tokenizer
MULTIRC = [
    dict(
        paragraph=text, question=question, answer=answer, label=label,
        idx=dict(zip(("paragraph", "question", "answer"), numbers, strict=True)),
    )
    for text, question, answer, numbers, label in (
        ("p0", "who?", "Ann", (0, 0, 0), 1), ("p0", "who?", "Bob", (0, 0, 1), 0),
        ("p0", "why?", "so", (0, 1, 2), 1), ("p1", "who?", "Eve", (1, 2, 3), 0),
    )
]  # fmt: skip
RECORD = [
    dict(
        passage="Ann met Bob in Paris.\n@highlight\nBob left", query="@placeholder met a man, and @placeholder smiled",
        entities=["Ann", "Bob", "Paris", "Bob"], answers=["Ann"], idx={"passage": 0, "query": 7},
    ),
    dict(
        passage="The US won.", query="It was the @placeholder", entities=["US", "the US"], answers=["US", "the US"],
        idx={"passage": 1, "query": 8},
    ),
]  # fmt: skip
WSC = {"text": "a b", "span1_text": "a", "span1_index": 0, "span2_text": "b", "span2_index": 1, "label": 0}
# (task, row, the texts that a model reads, answers, and their values in the file for the server)
TEXTS = [
    ("boolq", {"question": "is it", "passage": "It is."}, ["is it", "It is."], [1, 0], ["true", "false"]),
    ("cb", {"premise": "a", "hypothesis": "b"}, ["a", "b"], [2, 1], ["neutral", "contradiction"]),
    ("rte", {"premise": "a", "hypothesis": "b"}, ["a", "b"], [1, 0], ["not_entailment", "entailment"]),
    ("wic", {"word": "x", "sentence1": "The x.", "sentence2": "A x"}, ["x: The x.", "A x"], [1, 0], ["true", "false"]),
    (
        "wsc",
        {"text": "Mary saw Ann. She waved", "span1_text": "Ann", "span1_index": 2, "span2_text": "She", "span2_index": 3},
        ["Mary saw # Ann. # * She * waved"], [1, 0], ["True", "False"],
    ),
    ("axb", {"sentence1": "a", "sentence2": "b"}, ["a", "b"], [0, 1], ["entailment", "not_entailment"]),
    ("axg", {"premise": "a", "hypothesis": "b"}, ["a", "b"], [0, 1], ["entailment", "not_entailment"]),
]  # fmt: skip


@pytest.fixture
def data(tmp_path):
    """data(task, train=rows, validation=rows, test=rows, **flags): write rows to files and read them."""

    def build(task, **flags):
        for kind in ("train", "validation", "test"):
            rows = flags.pop(kind, None)
            if rows is not None:
                flags[f"{kind}_file"] = [write_lines(tmp_path / f"{kind}.jsonl", *rows)]
        return read_superglue(TextClassificationArguments(task_name=task, **flags))

    return build


def lines(files):
    (file,) = files
    return file.name, [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def logits(*answers, labels=2):
    return np.eye(labels)[[*answers]]


@pytest.mark.parametrize(("task", "row", "texts", "answers", "labels"), TEXTS, ids=[task for task, *_ in TEXTS])
def test_texts_of_a_task_and_its_file_for_the_server(data, tokenizer, task, row, texts, answers, labels, tmp_path):
    test = encoded(data(task, test=[{**row, "idx": 5}, {**row, "idx": 6}]), tokenizer).test[""]
    assert tokenizer.decode(test.rows["input_ids"][0]) == "[CLS]" + "".join(f"{text}[SEP]" for text in texts)
    assert "labels" not in test.rows.column_names
    outputs = logits(*answers, labels=len(SUPERGLUE[task].labels))
    name, written = lines(test.write(outputs, tmp_path, "predict"))
    assert name == SUPERGLUE[task].files[""]
    assert written == [{"idx": 5, "label": labels[0]}, {"idx": 6, "label": labels[1]}]


@pytest.mark.parametrize(
    ("text", "spans", "marked"),
    [
        ("the old man saw him", [(0, "the old man", "#"), (4, "him", "*")], "# the old man # saw * him *"),
        # The index is wrong: the nearest occurrence is marked.
        ("it is what it is now", [(4, "it", "*")], "it is what * it * is now"),
        ("It is, it was.", [(0, "it", "*"), (3, "was", "#")], "* It * is, it # was. #"),
        # One span within another, and two spans at one position
        ("Ann 's dog", [(0, "Ann 's dog", "#"), (0, "Ann", "*")], "# * Ann * 's dog #"),
        # Spans lack the 's of the text.
        ("We saw Cooper\u2019s, and it", [(2, "cooper", "#"), (4, "it", "*")], "We saw # Cooper\u2019s, # and * it *"),
        ("It's the boys' turn", [(0, "It", "*"), (1, "the boys", "#")], "* It's * # the boys' # turn"),
    ],
)
def test_marks_stand_around_words(text, spans, marked):
    assert mark_spans(text, spans) == marked


def test_multirc_by_hand(data, tokenizer, tmp_path):
    # Without numbers, the answers are grouped by their texts.
    without_numbers = [{name: cell for name, cell in row.items() if name != "idx"} for row in MULTIRC]
    # Correct, wrong, correct, correct: one of three questions has an error. Label 1: two hits, three predicted, two true.
    answers = logits(1, 1, 1, 0)
    for rows in (without_numbers, MULTIRC):
        task = encoded(data("multirc", validation=rows, test=rows), tokenizer)
        assert tokenizer.decode(task.test[""].rows["input_ids"][0]) == "[CLS]p0[SEP]who? Ann[SEP]"
        assert task.metric == "f1_a"
        measured = task.evaluation[""]
        scores = measured.metrics(answers, np.array(measured.rows["labels"]))
        assert scores["exact_match"] == pytest.approx(2 / 3)
        assert scores["f1_a"] == pytest.approx(0.8)
    name, written = lines(task.test[""].write(answers, tmp_path, "predict"))
    assert name == "MultiRC.jsonl"
    first = [{"idx": 0, "answers": [{"idx": 0, "label": 1}, {"idx": 1, "label": 1}]}]
    assert written == [
        {"idx": 0, "passage": {"questions": [*first, {"idx": 1, "answers": [{"idx": 2, "label": 1}]}]}},
        {"idx": 1, "passage": {"questions": [{"idx": 2, "answers": [{"idx": 3, "label": 0}]}]}},
    ]


def test_record_fills_each_entity_in_and_answers_with_the_best(data, tokenizer, tmp_path):
    ours = data("record", train=RECORD, validation=RECORD, test=RECORD)
    assert (ours.num_train, ours.num_evaluation) == (2, 2)
    task = encoded(ours, tokenizer)
    assert task.metric == "f1"
    assert task.train["labels"][:] == [1, 0, 0, 1, 1]
    assert tokenizer.decode(task.train["input_ids"][1]) == (
        "[CLS]Ann met Bob in Paris. Bob left[SEP]Bob met a man, and Bob smiled[SEP]"
    )
    measured = task.evaluation[""]
    assert measured.examples == 2
    # Best entities: Paris (wrong) for the first query, "US" for the second, though "False" is predicted for both entities.
    outputs = np.array([[0, 1.0], [0, -1], [0, 3], [5, -1], [6, -1]])
    labels = np.array(measured.rows["labels"])
    assert measured.metrics(outputs, labels) == dict(exact_match=0.5, f1=0.5)
    right = np.array([[0, 9.0], [0, -1], [0, 3], [5, -1], [6, -1]])
    assert measured.metrics(right, labels) == dict(exact_match=1.0, f1=1.0)
    expected = [{"idx": 7, "label": "Paris"}, {"idx": 8, "label": "US"}]
    assert lines(task.test[""].write(outputs, tmp_path, "predict")) == ("ReCoRD.jsonl", expected)
    assert lines(measured.write(outputs, tmp_path, "eval")) == ("eval_predictions.jsonl", expected)
    # A checkpoint with another order of the labels.
    measured = encoded(data("record", validation=RECORD), tokenizer, {"true": 0, "false": 1}).evaluation[""]
    assert measured.rows["labels"][:] == [0, 1, 1, 0, 0]
    scores = measured.metrics(right[:, ::-1], np.array(measured.rows["labels"]))
    assert scores == dict(exact_match=1.0, f1=1.0)
    # --max_eval_samples counts queries, not entities.
    ours = data("record", train=RECORD, test=[{**RECORD[0], "answers": []}], max_train_samples=1)
    task = encoded(ours, tokenizer)
    assert (ours.num_train, len(task.train)) == (1, 3)
    assert (task.test[""].examples, len(task.test[""].rows), task.test[""].metrics) == (1, 3, None)


COPA = {"premise": "It rained.", "choice1": "It is wet.", "choice2": "It is dry.", "question": "effect"}


def test_copa_is_a_multiple_choice_with_a_file_for_the_server(data, tokenizer, tmp_path):
    """Bug: numbers of rows were counted from 0 instead of read from idx."""
    row = {**COPA, "idx": 7, "label": 0}
    ours = data("copa", train=[row], validation=[row], test=[{**COPA, "idx": 7}, {**COPA, "idx": 3}])
    assert (ours.name, ours.pipeline, ours.num_train, ours.num_evaluation) == ("copa", "multiple-choice", 1, 1)
    task = encoded(ours, tokenizer)
    assert len(task.train) == 1
    written = lines(task.test[""].write(logits(1, 0), tmp_path, "predict"))
    assert written == ("COPA.jsonl", [{"idx": 7, "label": 1}, {"idx": 3, "label": 0}])
    task = encoded(data("copa", test=[COPA, COPA]), tokenizer)
    _, written = lines(task.test[""].write(logits(1, 0), tmp_path, "predict"))
    assert [line["idx"] for line in written] == [0, 1]


def test_numbers_of_csv_are_numbers(tokenizer, tmp_path):
    """Bug: the file for the server had "5" instead of 5."""
    text = "idx,text,span1_text,span1_index,span2_text,span2_index\n5,Ann saw it,Ann,0,it,2\n6,Ann saw it,saw,1,it,2\n"
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    ours = read_superglue(TextClassificationArguments(task_name="wsc", test_file=[str(tmp_path / "a.csv")]))
    assert ours.parts["test"][""].rows["marked_text"][0] == "# Ann # saw * it *"
    _, written = lines(encoded(ours, tokenizer).test[""].write(logits(1, 0), tmp_path, "predict"))
    assert written == [{"idx": 5, "label": "True"}, {"idx": 6, "label": "False"}]


@pytest.mark.parametrize(
    ("task", "rows", "message"),
    [
        ("multirc", [MULTIRC[0], {**MULTIRC[1], "idx": {"paragraph": 0}}], "row 2 .*: idx must have paragraph"),
        ("wsc", [WSC | {"span1_text": "c"}], "row 1 of --validation_file must contain the words 'c', got 'a b'"),
        ("wsc", [WSC | {"span1_index": "first"}], "row 1 of --validation_file has 'first' in the column 'span1_index'"),
        ("record", [{**RECORD[0], "query": "no blank"}], "row 1 of --validation_file must have @placeholder in its query"),
        ("record", [RECORD[1], {**RECORD[0], "entities": []}], "row 2 of --validation_file must have .* entity"),
        ("record", [RECORD[1], {**RECORD[0], "answers": []}], "row 2 of --validation_file has no answers"),
        ("copa", [{**COPA, "question": "how", "label": 0}], "cause or effect"),
    ],
)
def test_what_is_wrong_with_data_is_said(data, task, rows, message):
    with pytest.raises(ValueError, match=message):
        data(task, validation=rows)


@needs_data
@pytest.mark.parametrize(
    ("name", "rows", "written"),
    [("boolq", 3270, 50), ("cb", 56, 50), ("multirc", 4848, 2), ("wic", 638, 50), ("wsc", 104, 50), ("copa", 100, 50)],
)
def test_real_files_are_read_by_the_name_of_their_task(name, rows, written, data, tokenizer, tmp_path):
    files = [*map(str, Path(DATA, "superglue", name).glob("validation*"))]
    flags = dict(validation_file=files, test_file=files, max_predict_samples=50)
    assert data(name, **flags).num_evaluation == rows
    ours = data(name, **flags, max_eval_samples=200)
    task = encoded(ours, tokenizer)
    measured = task.evaluation[""]
    labels = np.array(measured.rows["labels"])
    right = np.eye(max(labels) + 1)[labels]
    if name != "copa":
        assert {*labels.tolist()} == {*range(len(ours.labels.names))}
        assert measured.metrics(right, labels) == pytest.approx(dict.fromkeys(TASK_METRICS[name], 1.0))
    assert len(lines(task.test[""].write(right[:50], tmp_path, "predict"))[1]) == written
