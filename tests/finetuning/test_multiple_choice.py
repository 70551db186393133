# SPDX-License-Identifier: Apache-2.0
"""Multiple choice: pairs and metrics by hand, missing choices, other models, files, real data and invalid data."""

import json

import numpy as np
import pytest
import torch
from datasets import Dataset
from task_files import write_lines
from toy_task import CONFIGS
from transformers import AutoModelForMultipleChoice, BertConfig, PreTrainedTokenizerBase

from hf_deberta_ext.finetuning.models import set_fields
from hf_deberta_ext.finetuning.tasks.multiple_choice import MultipleChoiceArguments, MultipleChoiceData
from hf_deberta_ext.finetuning.tasks.multiple_choice_formats import ChoiceColumns, choice_rows, known_columns
from hf_deberta_ext.pretraining.tokenizer_training import train_byte_level_bpe

WORDS = "the cat sat on a mat while some dog ran far away from it and barked"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return train_byte_level_bpe([WORDS] * 20, vocab_size=320)


def question(choices=2, label=0, **changes):
    words = WORDS.split()
    texts = [f"it {words[number]} {words[number + 3]}" for number in range(choices)]
    row = dict(id=f"q{choices}{label}", context="the cat sat on a mat", choices=texts, label=label, group=None)
    return row | changes


class Made(MultipleChoiceData):
    def __init__(self, arguments, answer_names=None, **questions):
        self.arguments, self.name, self.dataset, self.answer_names = arguments, "mine", "rows.jsonl", answer_names
        self.inputs = {split: [Dataset.from_list(rows)] for split, rows in questions.items()}
        self.set_questions(questions)


def task_of(questions, split="validation", arguments=None, **more):
    return Made(arguments or MultipleChoiceArguments(), **{split: questions}, **more)


def encoded(questions, tokenizer, **arguments):
    return task_of(questions, arguments=MultipleChoiceArguments(**arguments)).encode(tokenizer, None)


SWAG = {"sent1": "a", "sent2": "b", "ending0": "c", "ending1": "d", "label": 1}
C3 = {"context": "a", "question": "b", "choices": ["c", "d", "e"], "label": 2}
COPA = {"premise": "a", "choice1": "b", "choice2": "c", "question": "cause", "label": 0}
CODAH = {"question_propmt": "a", "candidate_answers": ["b", "c"], "correct_answer_idx": 1}
RACE = {"article": "a", "question": "b", "options": ["c", "d"], "answer": "A", "example_id": "high1.txt"}
CLUE = {"context": ["A: Hi.", "B: Hi."], "question": "Who?", "choice": ["A", "B"], "answer": "B"}
# (row; expected id, context, choices and label)
KNOWN = {
    "swag": (SWAG | {"ending2": "NA", "label": 2}, ("0", "a", ["b c", "b d", "b NA"], 2)),
    # Endings are sorted by number; labels of CSV files are text; SWAG's test set has no labels.
    "numbers": (SWAG | {"ending10": "e", "ending2": "f", "label": "1"}, ("0", "a", ["b c", "b d", "b f", "b e"], 1)),
    "no label": (SWAG | {"sent1": "", "label": -1}, ("0", "", ["b c", "b d"], None)),
    "c3": (C3 | {"id": 7}, ("7", "a", ["b c", "b d", "b e"], 2)),
    "no question": (C3 | {"question": ""}, ("0", "a", ["c", "d", "e"], 2)),
    # The context is a list of turns; the answer is the text of a choice.
    "clue": (CLUE, ("0", "A: Hi.\nB: Hi.", ["Who? A", "Who? B"], 1)),
    "codah": (CODAH, ("0", "a", ["b", "c"], 1)),
    "cause": (COPA | {"idx": 4}, ("4", "a", ["What was the cause? b", "What was the cause? c"], 0)),
    "effect": (COPA | {"question": "effect"}, ("0", "a", [f"What happened as a result? {way}" for way in "bc"], 0)),
}


@pytest.mark.parametrize(("row", "expected"), KNOWN.values(), ids=KNOWN)
def test_rows_of_known_data_by_hand(row, expected):
    rows = Dataset.from_list([row])
    [read] = choice_rows(rows, known_columns(rows, source="here"), source="here")
    assert read.pop("group") is None
    assert tuple(read[name] for name in ("id", "context", "choices", "label")) == expected


def test_column_rows_by_hand():
    rows = Dataset.from_list([{"story": ["It is", "wet."], "ask": "Why?", "a": "Rain.", "b": "Sun.", "key": "A"}])
    assert choice_rows(rows, ChoiceColumns(["a", "b"], "story", "ask", "key"), source="here") == [
        {"id": "0", "context": "It is\nwet.", "choices": ["Why? Rain.", "Why? Sun."], "label": 0, "group": None}
    ]
    # As in .csv
    rows = Dataset.from_list([{"ask": "Why?", "ways": '["so", "or so", "NA"]', "n": "2"}])
    [row] = choice_rows(rows, ChoiceColumns(["ways"], None, "ask", "n"), source="here")
    assert (row["context"], row["choices"], row["label"]) == ("", ["Why? so", "Why? or so", "Why? NA"], 2)


def test_rows_of_a_file_are_checked_beyond_the_limit(tmp_path):
    file = write_lines(tmp_path / "rows.jsonl", SWAG, SWAG | {"ending0": None})
    with pytest.raises(ValueError, match="ending0"):
        MultipleChoiceData(MultipleChoiceArguments(train_file=[file], max_train_samples=1))


def test_a_choice_is_the_context_which_alone_is_cut_and_the_question_with_the_choice(tokenizer):
    rows = encoded([question(choices=3, label=2)], tokenizer).evaluation[""].rows
    texts = [tokenizer.decode(ids) for ids in rows[0]["input_ids"]]
    assert texts == [f"[CLS]the cat sat on a mat[SEP]it {choice}[SEP]" for choice in ("the on", "cat a", "sat mat")]
    types = rows[0]["token_type_ids"][0]
    second = len(tokenizer("it the on", add_special_tokens=False)["input_ids"]) + 1
    assert types == [0] * (len(types) - second) + [1] * second
    assert rows[0]["labels"] == 2
    assert rows[0]["length"] == max(map(len, rows[0]["input_ids"]))
    long = question(context=WORDS, choices=3)
    pair = tokenizer("", long["choices"][0])["input_ids"]
    length = max(len(tokenizer("", choice)["input_ids"]) for choice in long["choices"]) + 2
    whole = tokenizer(WORDS, add_special_tokens=False)["input_ids"]
    rows = encoded([long], tokenizer, max_seq_length=length).evaluation[""].rows
    for ids, choice in zip(rows[0]["input_ids"], long["choices"], strict=True):
        second = tokenizer(choice, add_special_tokens=False)["input_ids"]
        kept = length - len(second) - 3
        assert ids == [pair[0], *whole[:kept], pair[1], *second, pair[-1]]


def test_metrics_and_files_by_hand(tokenizer, tmp_path):
    questions = [
        question(2, 1, id="a", group="middle"),
        question(3, 0, id="b", group="high"),
        question(4, 3, id="c", group="high"),
    ]
    measured = task_of(questions, answer_names="ABCD").encode(tokenizer, None).evaluation[""]
    # The highest logits of the first two rows belong to missing choices.
    logits = np.array([[0.0, 1.0, 5.0, 5.0], [2.0, 1.0, 0.0, 5.0], [9.0, 0.0, 0.0, 1.0]])
    assert measured.metrics(logits, None) == {
        "accuracy": pytest.approx(2 / 3), "middle_accuracy": 1.0, "high_accuracy": 0.5,
    }  # fmt: skip
    files = measured.write(logits, tmp_path, "predict")
    assert [file.name for file in files] == ["predict_answers.json", "predict_answers.tsv"]
    assert json.loads(files[0].read_text(encoding="utf-8")) == {"a": "B", "b": "A", "c": "A"}
    assert files[1].read_text(encoding="utf-8") == "a\tB\nb\tA\nc\tA\n"
    table = measured.table(np.log([[1.0, 3, 9, 9], [2, 1, 1, 9], [6, 1, 1, 2]])).to_pydict()
    assert [*table] == ["row", "id", "context", "choices", "label", "group", "gold", "predicted", "probability"]
    assert (table["gold"], table["predicted"]) == (["B", "A", "D"], ["B", "A", "A"])
    assert table["probability"] == [0.75, 0.5, 0.6]
    # Without letters, answers are numbers of choices. Equal ids are numbered, else the last one would overwrite the others.
    questions = [question(2, 1, id="x"), question(2, 0, id="x"), question(2, 0, id="y")]
    file, _ = encoded(questions, tokenizer).evaluation[""].write(np.eye(2)[[1, 0, 1]], tmp_path, "eval")
    assert json.loads(file.read_text(encoding="utf-8")) == {"x-0": 1, "x-1": 0, "y": 1}


def test_the_commonest_answer_is_the_baseline():
    train = [question(label=label) for label in (1, 0, 1)]
    validation = [question(label=1, group="high"), question(label=0, group="middle"), question(label=0, group="middle")]
    data = task_of(train, split="train", validation=validation, answer_names="ABCD")
    assert data.label_counts == {"A": 1, "B": 2}
    scores = {"accuracy": 1 / 3, "high_accuracy": 1.0, "middle_accuracy": 0.0}
    assert data.baselines == {"majority class": scores}
    assert task_of(validation).baselines == task_of(validation).label_counts == {}


def test_a_batch_has_the_choices_of_its_longest_row(tokenizer):
    task = encoded([question(2, 1), question(4, 2), question(3, 0)], tokenizer, pad_to_multiple_of=8)
    rows = [task.evaluation[""].rows[number] for number in range(3)]
    batch = task.collator(rows)
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (3, 4, 16)
    assert batch["labels"].tolist() == [[0, 1, -100, -100], [0, 0, 1, 0], [1, 0, 0, -100]]
    # Missing choices repeat the first choice, so that no row is empty.
    assert torch.equal(batch["input_ids"][0, 2:], batch["input_ids"][0, :1].expand(2, -1))
    assert batch["attention_mask"].any(-1).all()
    assert task.collator([{name: row[name] for name in row if name != "labels"} for row in rows]).keys() == (
        batch.keys() - {"labels"}
    )
    task = encoded([question()], tokenizer, pad_to_max_length=True, max_seq_length=40)
    assert task.collator([task.evaluation[""].rows[0]])["input_ids"].shape == (1, 2, 40)


def losses_and_gradients(model, loss):
    model.zero_grad()
    loss.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert any(gradient.any() for gradient in gradients.values())
    return loss.item(), gradients


@pytest.mark.parametrize("family", ["ours", "v2", "bert", "roberta", "electra", "albert"])
def test_choices_that_are_not_there_change_neither_loss_nor_gradient(family, shake, tokenizer):
    """The loss of a batch with 2, 3 and 4 choices equals the mean of the model's losses of single rows."""
    config = CONFIGS[family]()
    config.vocab_size, config.pad_token_id = len(tokenizer), tokenizer.pad_token_id
    model = shake(AutoModelForMultipleChoice.from_config(config)).double()
    questions = [question(2, 1), question(4, 2), question(3, 0)]
    task = encoded(questions, tokenizer)
    batch = task.collator([task.evaluation[""].rows[number] for number in range(3)])
    labels = batch.pop("labels")
    loss, gradients = losses_and_gradients(model, task.loss(model(**batch), labels))

    alone = []
    for one in questions:
        own = encoded([one], tokenizer)
        assert own.loss is None
        alone.append(model(**own.collator([own.evaluation[""].rows[0]])).loss)
    expected, expected_gradients = losses_and_gradients(model, sum(alone) / 3)
    assert loss == pytest.approx(expected, rel=1e-6)
    assert gradients.keys() == expected_gradients.keys()
    largest = max(gradient.abs().max() for gradient in expected_gradients.values())
    for name, gradient in gradients.items():
        assert (gradient - expected_gradients[name]).abs().max() <= 1e-6 * largest, name


@pytest.mark.parametrize(
    "row, own, label",
    [
        (SWAG, "label", 0),
        (C3, "label", 0),
        (COPA | {"label": 1}, "label", 0),
        (CODAH, "correct_answer_idx", 0),
        (RACE, "answer", "B"),
        (CLUE | {"context": "a"}, "answer", 0),
    ],
    ids=["swag", "c3", "copa", "codah", "race", "clue"],
)
def test_the_columns_of_a_file_tell_its_form_and_its_label_can_be_named(row, own, label, tmp_path):
    file = write_lines(tmp_path / "rows.jsonl", *[row | {"gold": label}] * 2)
    data = MultipleChoiceData(MultipleChoiceArguments(train_file=[file], validation_file=[file], max_train_samples=1))
    assert (data.name, data.dataset, data.num_train, data.num_evaluation) == ("multiple-choice", "rows.jsonl", 1, 2)
    assert [*data.label_counts] == ["A" if "article" in row else str(data.questions["train"][0]["label"])]
    plain = data.questions["train"][0]
    named = MultipleChoiceData(MultipleChoiceArguments(train_file=[file], label_column="gold")).questions["train"][0]
    assert plain["context"] == "a"
    assert plain["label"] != named["label"] and plain | {"label": None} == named | {"label": None}
    test = write_lines(tmp_path / "test.jsonl", {name: row[name] for name in row if name != own})
    arguments = MultipleChoiceArguments(test_file=[test], label_column="gold")
    assert MultipleChoiceData(arguments).questions["test"][0]["label"] is None
    with pytest.raises(ValueError, match=r"--train_file rows.jsonl must have the columns 'best', .*--label_column"):
        MultipleChoiceData(MultipleChoiceArguments(train_file=[file], label_column="best"))


def test_the_labels_of_another_task_do_not_stay_in_the_configuration():
    """Bug: a RACE model that was trained from an MNLI model was saved with the labels of MNLI."""
    config, fresh = BertConfig(id2label={0: "entailment", 1: "neutral", 2: "contradiction"}), BertConfig()
    set_fields(config, task_of([question()]).config_fields())
    for field in ("num_labels", "id2label", "label2id", "problem_type"):
        assert getattr(config, field) == getattr(fresh, field), field


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_question_that_leaves_no_room_is_named_with_the_tokens_that_it_needs(number, tokenizer):
    long = question(id="high7.txt-2", choices=3)
    long["choices"][number - 1] = WORDS
    needed = len(tokenizer("", WORDS)["input_ids"]) + 1
    questions = [question(), long]
    with pytest.raises(ValueError, match=rf"high7.txt-2: .* with choice {number} needs {needed} tokens.*{needed} or more"):
        encoded(questions, tokenizer, max_seq_length=needed - 1)
    rows = encoded(questions, tokenizer, max_seq_length=needed).evaluation[""].rows
    assert len(rows[1]["input_ids"][number - 1]) == needed
    # Without a context, no token is reserved for it.
    rows = encoded([long | {"context": ""}], tokenizer, max_seq_length=needed - 1).evaluation[""].rows
    assert len(rows[0]["input_ids"][number - 1]) == needed - 1
