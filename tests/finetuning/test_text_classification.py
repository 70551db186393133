# SPDX-License-Identifier: Apache-2.0
"""Text classification on own data: columns, labels, sets, features, metrics, predictions and invalid data."""

from collections import Counter

import numpy as np
import pytest
import task_files
import torch
from datasets import ClassLabel, Dataset
from task_files import TINY_BERT, write_lines
from transformers import BertConfig, DebertaV2Config

from hf_deberta_ext.finetuning.tasks.splits import hold_out
from hf_deberta_ext.finetuning.tasks.text_classification import TextClassificationArguments, TextClassificationData
from hf_deberta_ext.training.hub_arguments import HubArguments

tokenizer = task_files.tokenizer
SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
GOOD = [
    {"text": "so good", "label": "pos"},
    {"text": "a bad one", "label": "neg"},
    {"text": 'a\nlong  "one"', "label": "pos"},
]
PAIRS = [{"premise": "it rains", "hypothesis": "wet", "label": 1}, {"premise": "a", "hypothesis": "b", "label": 0}]
BLANK = [{"text": "", "label": "pos"}, {"text": " \t\u3000", "label": "neg"}]
TINY = TINY_BERT | dict(max_position_embeddings=32)


@pytest.fixture
def data(tmp_path):
    """data(train=rows, validation=rows or {name: rows}, ..., **flags): write rows to files and read them."""

    def build(**flags):
        for kind in ("train", "validation", "test"):
            sets = flags.pop(kind, [])
            entries = []
            for name, rows in sets.items() if isinstance(sets, dict) else [("", sets)] if sets else []:
                file = tmp_path / f"{kind}{name}.jsonl"
                entries.append("=".join(filter(None, (name, write_lines(file, *rows)))))
            flags[f"{kind}_file"] = entries
        return TextClassificationData(TextClassificationArguments(**flags))

    return build


def rows(*labels, **more):
    return [{"text": f"text {n}", "label": label, **more} for n, label in enumerate(labels)]


def encoded(data, tokenizer, config=None):
    config = BertConfig(**TINY) if config is None else config
    data.use_config(config)
    for name, value in data.config_fields().items():
        setattr(config, name, value)
    return data.encode(tokenizer, config)


def test_texts_become_rows_and_labels_names(data, tokenizer):
    ours = data(train=GOOD, validation=GOOD[:2], test=[{"text": "it"}])
    assert (ours.name, ours.pipeline, ours.num_train, ours.num_evaluation) == ("text-classification",) * 2 + (3, 2)
    assert ours.dataset == "train.jsonl, validation.jsonl, test.jsonl"
    assert ours.config_fields() == dict(
        num_labels=2, id2label={0: "neg", 1: "pos"}, label2id={"neg": 0, "pos": 1}, problem_type=SINGLE
    )
    task = encoded(ours, tokenizer)
    assert task.metric == "accuracy"
    assert task.train["labels"][:] == [1, 0, 1]
    assert [tokenizer.decode(ids) for ids in task.train["input_ids"]] == [f"[CLS]{row['text']}[SEP]" for row in GOOD]
    assert "labels" not in task.test[""].rows.column_names
    assert task.test[""].metrics is None
    assert (task.evaluation[""].examples, task.test[""].examples) == (2, 1)
    assert {*task.train.column_names} == {"input_ids", "token_type_ids", "attention_mask", "labels"}


def test_pairs_have_two_segments_the_longer_one_is_cut_and_one_may_be_empty(data, tokenizer):
    long = [{"premise": "it rains so good a long one " * 9, "hypothesis": "wet", "label": n} for n in range(2)]
    task = encoded(data(train=PAIRS + long, max_seq_length=16), tokenizer)
    assert [len(ids) for ids in task.train["input_ids"]][2:] == [16, 16]
    assert tokenizer.decode(task.train["input_ids"][0]) == "[CLS]it rains[SEP]wet[SEP]"
    assert tokenizer.decode(task.train["input_ids"][2]).endswith("[SEP]wet[SEP]")
    assert {*task.train["token_type_ids"][0]} == {0, 1}
    pairs = [{"premise": "it rains", "hypothesis": "", "label": 1}, {"premise": "a", "hypothesis": "b", "label": 0}]
    assert data(train=pairs, test=[{"premise": "", "hypothesis": ""}]).num_train == 2


def test_metrics_and_predictions_by_hand(data, tokenizer, tmp_path):
    ours = data(train=rows("b", "a", "c"), validation=rows("a", "b", "c", "a"))
    measured = encoded(ours, tokenizer).evaluation[""]
    logits = np.eye(3)[[0, 1, 0, 1]]
    # a: one of two hit, two predicted; b: hit, two predicted; c: not hit.
    expected = dict(accuracy=0.5, macro_f1=(0.5 + 2 / 3 + 0) / 3)
    assert measured.metrics(logits, np.array(measured.rows["labels"])) == pytest.approx(expected)
    assert measured.write(logits, tmp_path, "eval") == []
    table = measured.table(np.log([[2.0, 1, 1], [1, 2, 1], [2, 1, 1], [1, 2, 1]])).to_pydict()
    assert table == dict(
        row=[1, 2, 3, 4], text=[f"text {number}" for number in range(4)], label=[*"abca"],
        gold=[*"abca"], predicted=[*"abab"],
        probability_a=[0.5, 0.25] * 2, probability_b=[0.25, 0.5] * 2, probability_c=[0.25] * 4,
    )  # fmt: skip


def test_scores_are_a_regression(data, tokenizer):
    ours = data(train=rows(0.5, 1, 2.25), validation=rows(1.0, 2.0, 4.5))
    assert ours.config_fields() == dict(num_labels=1, problem_type=REGRESSION)
    task = encoded(ours, tokenizer)
    assert task.metric == "pearson"
    batch = task.collator([task.train[0], task.train[1]])
    assert batch["labels"].dtype == torch.float32
    assert batch["labels"].tolist() == [0.5, 1.0]
    measured = task.evaluation[""]
    for logits in (np.array([[2.0], [4.0], [9.0]]), np.array([2.0, 4.0, 9.0])):
        scores = measured.metrics(logits, np.array(measured.rows["labels"]))
        assert scores == pytest.approx(dict(pearson=1.0, spearmanr=1.0))
    table = measured.table(np.array([[1 / 3], [2], [3e6]]))
    assert table.column_names == ["row", "text", "label", "gold", "predicted"]
    assert table["predicted"].to_pylist() == [0.333333, 2, 3e6] and table["gold"].to_pylist() == [1, 2, 4.5]


def test_lists_are_multi_label(data, tokenizer):
    ours = data(train=rows(["x", "y"], [], ["z"]), validation=rows(["x"], ["y", "z"]))
    assert ours.config_fields()["problem_type"] == MULTI
    task = encoded(ours, tokenizer)
    assert task.metric == "micro_f1"
    assert task.collator([task.train[0], task.train[1]])["labels"].tolist() == [[1, 1, 0], [0, 0, 0]]
    measured = task.evaluation[""]
    logits = np.array([[1.0, 1, -1], [-1, 1, -1]])
    # Three predicted, two of them correct, three true.
    assert measured.metrics(logits, np.array(measured.rows["labels"])) == pytest.approx(dict(micro_f1=2 / 3))
    table = measured.table(logits)
    assert table["predicted"].to_pylist() == [["x", "y"], ["y"]]
    assert table["probability_y"].to_pylist() == [round(1 / (1 + np.exp(-1)), 6)] * 2


@pytest.mark.parametrize(
    ("columns", "taken"),
    [
        ("sentence1 sentence2 sentence", "sentence1 sentence2"),
        ("question sentence", "question sentence"),
        ("question passage text", "question passage"),
        ("title text", "text"),
        ("paragraph", "paragraph"),
    ],
)
def test_columns_of_texts_are_those_of_known_data(data, columns, taken):
    own = [dict.fromkeys(columns.split(), "x") | {"label": n} for n in range(2)]
    assert data(train=own).text_columns == tuple(taken.split())
    assert data(train=own, text_columns=[columns.split()[-1]]).text_columns == (columns.split()[-1],)


@pytest.mark.parametrize("labels", [["a", "b"], [["a"], ["a", "b"]], [0.5, 1.25]], ids=[SINGLE, MULTI, REGRESSION])
def test_a_share_of_the_training_rows_is_the_validation_set(data, tokenizer, labels):
    """Rows with equal texts stay together, and the training rows have all labels."""
    own = [{"text": f"text {n // 2}", "label": labels[n // 2 % 2]} for n in range(40)]
    rare = [{"text": f"rare {n}", "label": [f"c{n}"] if isinstance(labels[0], list) else f"c{n}"} for n in range(8)]
    if isinstance(labels[0], float):
        rare = []
    ours = data(train=own + rare, validation_share=0.25, max_train_samples=20)
    train, held_out = (ours.parts[kind][""].rows for kind in ("train", "validation"))
    assert len(train) == 20 and 4 <= len(held_out) == ours.num_evaluation <= 14
    assert not {*train["text"]} & {*held_out["text"]}
    for text in held_out["text"]:
        assert list(held_out["text"]).count(text) == 2 and not text.startswith("rare")
    table = encoded(ours, tokenizer).evaluation[""].table(np.zeros((len(held_out), len(ours.labels.names) or 1)))
    assert [(own + rare)[row - 1]["text"] for row in table["row"].to_pylist()] == table["text"].to_pylist()
    # Bug: messages named the whole file, which has other rows.
    assert ours.parts["validation"][""].source == "--train_file, held out"
    whole = data(train=own + rare, validation_share=0.25)
    assert [*whole.parts["validation"][""].rows] == [*held_out] and whole.num_train + len(held_out) == len(own + rare)
    assert encoded(whole, tokenizer).evaluation[""].metrics is not None


def test_a_share_is_stratified_and_repeats_with_its_seed():
    labels = [*"a" * 100, *"b" * 31, *"c" * 7, "d"]
    texts = [*range(len(labels))]
    train, held_out = hold_out(texts, labels, 0.2, seed=3)
    assert sorted(train + held_out) == texts and held_out == sorted(held_out)
    counts = Counter(labels[row] for row in held_out)
    assert len(held_out) == 27 and abs(counts["a"] - 20) <= 1 and abs(counts["b"] - 6.2) <= 1 and counts["c"] in (1, 2)
    # A class with one row is not held out.
    assert counts["d"] == 0
    assert hold_out(texts, labels, 0.2, seed=3) == (train, held_out) != hold_out(texts, labels, 0.2, seed=4)


MESSY = [
    *({"text": f"parcel {n}", "label": "delivery"} for n in range(4)),
    {"text": "parcel 0", "label": "delivery"},
    {"text": "parcel 1", "label": "payment"},
    {"text": "held out", "label": "payment"},
    {"text": " ", "label": "payment"},
    {"text": "no label", "label": None},
    {"text": "only one", "label": "refund"},
]
HELD_OUT = [{"text": "held out", "label": "payment"}, {"text": "other", "label": "delivery"}]


def test_what_is_irregular_is_shown_and_duplicates_are_left_out_by_flag(data, caplog):
    ours = data(train=MESSY, validation=HELD_OUT, on_empty="drop")
    assert (ours.num_train, ours.num_evaluation) == (8, 2)
    assert caplog.messages == [
        "data checks                               training  evaluation\n"
        "rows                                             8           2\n"
        "dropped rows                                     2           0\n"
        "rows with the text of an earlier row             2           0\n"
        "texts with several labels                        1           0\n"
        "rows with a text of the evaluation data          1           0\n"
        "labels with fewer than 2 training rows: refund 1\n"
        "labels with fewer than 2 evaluation rows: delivery 1, payment 1, refund 0\n"
        "(see --on_empty, --on_duplicates, --class_weights, --balanced_sampling)"
    ]
    caplog.clear()
    data(train=[{"text": "a", "label": 0.5}, {"text": "a", "label": 1.5}])
    assert caplog.messages[0].endswith("\n(see --on_empty, --on_duplicates)")
    caplog.clear()
    regular = [{"text": f"text {n}", "label": n % 2} for n in range(8)]
    data(train=regular[:4], validation=regular[4:])
    assert not caplog.messages
    # A text with two different labels is kept twice, because the correct label is unknown.
    ours = data(train=MESSY, validation=HELD_OUT, on_empty="drop", on_duplicates="drop")
    train = ours.parts["train"][""]
    assert train.left_out == 4
    assert [*train.rows["text"]] == ["parcel 0", "parcel 1", "parcel 2", "parcel 3", "parcel 1", "only one"]
    assert ours.labels.shown(np.array(train.labels)) == [*["delivery"] * 4, "payment", "refund"]
    assert ours.num_evaluation == 2


def test_rows_are_numbered_as_in_the_file(data, tokenizer):
    """The surest errors had their row in the evaluation set, eval_predictions.csv had the row of the file."""
    texts = [" ", "a", "a", "b", "b", " ", *"cdefghij"]
    own = [{"text": text, "label": n % 2} for n, text in enumerate(texts) if n not in (2, 4)]
    own[2:2] = [own[1], own[2]]
    ours = data(train=own, on_empty="drop", on_duplicates="drop", validation_share=0.4)
    for part in (ours.parts["train"][""], ours.parts["validation"][""]):
        assert [own[number - 1] for number in part.numbers] == [*part.rows]
    # Duplicates go before the split: none is in the evaluation.
    held_out = ours.parts["validation"][""]
    assert len({*held_out.rows["text"]}) == len(held_out.rows) == 4
    evaluated = encoded(ours, tokenizer).evaluation[""]
    wrong = 8 * np.eye(2)[1 - np.array(held_out.labels)]
    assert {(own[error["row"] - 1]["text"], error["text"]) for error in evaluated.failures(wrong).errors} == {
        (text, text) for text in held_out.rows["text"]
    }
    with pytest.raises(ValueError, match=r"the first is row 3\): remove them"):
        data(train=own, on_empty="drop", on_duplicates="refuse")


def test_messy_data_are_refused(data):
    empty = "2 of 10 rows of --train_file have no text or no label .the first is row 8.: fill them, .*on_empty drop"
    with pytest.raises(ValueError, match=empty):
        data(train=MESSY, validation=HELD_OUT)
    repeated = (
        "2 of 8 rows of --train_file without its empty rows repeat an earlier row .* .the first is row 5.: remove them"
    )
    with pytest.raises(ValueError, match=repeated):
        data(train=MESSY, validation=HELD_OUT, on_empty="drop", on_duplicates="refuse")
    message = "2 of 2 rows of --train_file repeat .* a text of the evaluation data .* give --on_duplicates keep"
    with pytest.raises(ValueError, match=message):
        data(train=HELD_OUT, validation=HELD_OUT, on_duplicates="drop")


@pytest.mark.parametrize(
    ("labels", "weights"),
    [("aaab", [4 / 6, 4 / 2]), ([["a"], ["a", "b"], ["a"], []], [1 / 3, 3.0])],
    ids=[SINGLE, MULTI],
)
def test_class_weights_stand_in_the_order_of_the_model(labels, weights, data, tokenizer):
    config = BertConfig(**TINY, id2label={0: "b", 1: "a"}, label2id=dict(b=0, a=1))
    task = encoded(data(train=rows(*labels), class_weights="balanced"), tokenizer, config)
    assert task.loss.weights.tolist() == pytest.approx(weights[::-1])
    assert task.loss.multi_label == isinstance(labels, list)


def test_weights_without_classes_are_refused(data, tokenizer):
    with pytest.raises(ValueError, match=r"--class_weights cannot be used for regression.* got a regression task"):
        encoded(data(train=rows(0.5, 1.5), class_weights="balanced"), tokenizer)
    with pytest.raises(ValueError, match="--balanced_sampling requires one class per text, got a multi_label"):
        encoded(data(train=rows(["a"], ["b"]), balanced_sampling=True), tokenizer)


def test_names_are_taken_from_the_flag_or_from_the_data_set(data, tmp_path):
    assert data(train=rows(0, 1, 2), label_names=["no", "maybe", "yes"]).labels.names == ("no", "maybe", "yes")
    folder = tmp_path / "hub"
    folder.mkdir()
    rows_ = Dataset.from_list(rows(1, 0)).cast_column("label", ClassLabel(names=["no", "yes"]))
    rows_.to_parquet(folder / "train.parquet")
    flags = dict(dataset_name=str(folder))
    ours = TextClassificationData(TextClassificationArguments(**flags), HubArguments(cache_dir=str(tmp_path / "cache")))
    assert ours.labels.names == ("no", "yes")
    assert (ours.dataset, ours.num_train, ours.num_evaluation) == (str(folder), 2, 0)


def test_the_order_of_a_checkpoint_changes_numbers_and_no_result(data, tokenizer):
    flags = dict(train=rows("b", "a", "c"), validation=rows("a", "b", "c", "a"))
    plain, kept = data(**flags), data(**flags)
    ours = encoded(plain, tokenizer).evaluation[""]
    theirs = encoded(kept, tokenizer, BertConfig(**TINY, id2label={0: "C", 1: "A", 2: "B"}, label2id=dict(C=0, A=1, B=2)))
    assert theirs.train["labels"][:] == [2, 1, 0]
    assert kept.config_fields()["id2label"] == {0: "c", 1: "a", 2: "b"}
    theirs = theirs.evaluation[""]
    logits = np.random.default_rng(0).normal(size=(4, 3))
    moved = logits[:, [2, 0, 1]]
    assert theirs.metrics(moved, np.array(theirs.rows["labels"])) == ours.metrics(logits, np.array(ours.rows["labels"]))
    assert ours.table(logits) == theirs.table(moved)


def test_too_long_rows_are_cut_with_a_warning(data, tokenizer, caplog):
    flags = dict(train=[{"text": "it rains " * 40, "label": 0}, {"text": "so", "label": 1}], max_seq_length=64)
    task = encoded(data(**flags), tokenizer)
    assert [len(ids) for ids in task.train["input_ids"]] == [32, 3]
    assert [message for message in caplog.messages if "--max_seq_length" in message] == [
        "--max_seq_length 64 exceeds the model's limit; using 32 tokens",
        "--train_file: truncated 1 of 2 rows to 32 tokens (--max_seq_length)",
    ]
    caplog.clear()
    config = DebertaV2Config(**TINY, relative_attention=True, position_biased_input=False)
    assert max(len(ids) for ids in encoded(data(**flags), tokenizer, config).train["input_ids"]) == 64
    messages = [message for message in caplog.messages if "--max_seq_length" in message]
    assert messages[0] == "--max_seq_length 64 exceeds the model's pre-training length of 32 tokens"
    assert len(messages) == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (dict(train=GOOD[::2]), "--train_file must have two or more labels, got 'pos'"),
        # Bug: scikit-learn's "empty vocabulary" was shown.
        (dict(train=BLANK, validation=GOOD), r"--train_file \S*train.jsonl only has blank texts in 'text': give"),
        (dict(train=GOOD, validation=rows("pos", "odd")), "row 2 of --validation_file has the label 'odd', expected"),
        (dict(train=GOOD, validation=GOOD, validation_share=0.5), "--validation_share 0.5 .* and no validation set"),
        (dict(train=GOOD, task_name="sst2", text_columns=["text"], validation_share=0.5), "needs your own training data"),
        (dict(train=GOOD, validation_share=0.2), "0.2 holds out none of the 3 rows of --train_file: add rows"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_data_is_said_before_a_model_is_loaded(data, flags, message):
    with pytest.raises(ValueError, match=message):
        data(**flags)
