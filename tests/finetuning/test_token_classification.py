# SPDX-License-Identifier: Apache-2.0
"""Token classification: files, tokens and metrics by hand, words without tokens, other models, real and invalid data."""

import gzip
import json
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, List, Value
from task_files import write_lines
from transformers import AutoTokenizer, BertTokenizer, RobertaTokenizer

from hf_deberta_ext.finetuning.tasks.labelled_words import are_entities, read_conll, sorted_labels
from hf_deberta_ext.finetuning.tasks.token_classification import (
    TokenClassificationArguments,
    TokenClassificationCollator,
    TokenClassificationData,
    take_prefix_space,
    word_positions,
)
from hf_deberta_ext.pretraining.tokenizer_training import train_byte_level_bpe
from hf_deberta_ext.tokenization import load_tokenizer

ROWS = [
    {"tokens": ["Ada", "Lovelace", "smiles"], "ner_tags": ["B-PER", "I-PER", "O"]},
    {"tokens": ["Paris", "sleeps"], "ner_tags": ["B-LOC", "O"]},
]


@pytest.fixture(scope="module")
def wordpiece():
    """Create a tokenizer with a few words and else one token per letter, as in BERT; invisible characters are dropped."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ada", "love", "paris", "##lace", ".", *letters]
    words += [f"##{letter}" for letter in letters]
    return BertTokenizer(vocab={word: index for index, word in enumerate(words)}, do_lower_case=True)


def byte_level():
    return train_byte_level_bpe(["Ada Lovelace smiles while Paris sleeps"] * 20, vocab_size=330)


def data_of(tmp_path, rows=ROWS, *, split="train", **arguments):
    file = write_lines(tmp_path / f"{split}.jsonl", *rows)
    data = TokenClassificationData(TokenClassificationArguments(**{f"{split}_file": [file]} | arguments))
    if split != "train":
        # A checkpoint with these labels
        labels = sorted_labels(label for row in rows for label in row.get("ner_tags", ()))
        data.use_config(SimpleNamespace(label2id={label: number for number, label in enumerate(labels)}))
    return data


def logits_of(positions, tags, labels):
    """Return logits [n, N, C] that predict `tags` at the positions of the words, and another label at other positions."""
    N = max(position for row in positions for position in row) + 2
    logits = np.zeros((len(positions), N, len(labels)))
    logits[..., -1] = 1
    for number, (row, names) in enumerate(zip(positions, tags, strict=True)):
        for position, name in zip(row, names, strict=True):
            if position >= 0:
                logits[number, position, labels.index(name)] = 2
    return logits


CONLL = """-DOCSTART- -X- O O

Ada NNP I-NP B-PER
smiles VBZ O O

Paris\tNNP\tI-NP\tB-LOC \r

-DOCSTART- -X- O O

. . O O"""


@pytest.mark.parametrize("name", ["rows.txt", "rows.conll", "rows.txt.gz"])
def test_read_conll_by_hand(name, tmp_path):
    data = ("\ufeff" + CONLL).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    read = read_conll(tmp_path / name, source="--train_file")
    assert read == [(["Ada", "smiles"], ["B-PER", "O"]), (["Paris"], ["B-LOC"]), (["."], ["O"])]


def test_numbers_get_the_names_of_the_data_set_or_of_the_user(tmp_path, wordpiece):
    tags = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    numbers = [{**row, "ner_tags": [tags.index(tag) for tag in row["ner_tags"]]} for row in ROWS]
    features = Features({"tokens": List(Value("string")), "ner_tags": List(ClassLabel(names=tags))})
    Dataset.from_list(numbers, features=features).to_parquet(tmp_path / "rows.parquet")
    of_parquet = TokenClassificationData(TokenClassificationArguments(train_file=[str(tmp_path / "rows.parquet")]))
    of_user = data_of(tmp_path, numbers, label_names=tags)
    for data in (of_parquet, of_user):
        assert data.sets["train"] == [tuple(row.values()) for row in ROWS]
    # All names of the flag are labels, also names that do not occur in the data.
    assert of_user.labels == sorted_labels(tags)
    for names in ([], ["O"]):
        with pytest.raises(ValueError, match=r"row 1 .* has the labels .*, expected names: give the names"):
            data_of(tmp_path, numbers, label_names=names)


def test_the_first_token_of_a_word_carries_its_label_or_all_go_on_with_the_inside_of_the_entity(tmp_path, wordpiece):
    # Sentences without a token are dropped from training: the mean loss of a batch with only such sentences would be NaN.
    task = data_of(tmp_path, [*ROWS, {"tokens": ["\u200b"], "ner_tags": ["O"]}]).encode(wordpiece, None)
    assert wordpiece.convert_ids_to_tokens(task.train[0]["input_ids"])[:5] == ["[CLS]", "ada", "love", "##lace", "s"]
    # "smiles" and "sleeps" are split into letters.
    assert task.train["word_tokens"][:] == [[1, 2, 4], [1, 2]]
    assert task.train["labels"][:] == [[-100, 2, 3, -100, 0, *[-100] * 6], [-100, 1, 0, *[-100] * 6]]
    task = data_of(tmp_path, pad_to_max_length=True, max_seq_length=30).encode(wordpiece, None)
    assert task.collator([task.train[1]])["input_ids"].shape == (1, 30)
    rows = [{"tokens": ["Lovelace", "Love", "Lovelace"], "ner_tags": ["B-PER", "I-PER", "B-LOC"]}]
    task = data_of(tmp_path, rows, label_all_tokens=True).encode(wordpiece, None)
    assert wordpiece.convert_ids_to_tokens(task.train[0]["input_ids"])[1:-1] == ["love", "##lace", "love", "love", "##lace"]
    # There is no I-LOC: the labels are B-LOC, B-PER, I-PER.
    assert task.train[0]["labels"] == [-100, 1, 2, 2, 0, 0, -100]


def test_words_without_a_token_count_as_outside_and_long_sentences_are_read_in_windows(tmp_path, wordpiece, caplog):
    rows = [
        {"tokens": ["Ada", "\u200b", "Ada", "Ada", "Paris"], "ner_tags": ["B-PER", "B-PER", "O", "B-PER", "B-LOC"]},
        {"tokens": ["Ada"], "ner_tags": ["B-PER"]},
        {"tokens": ["\u200b"], "ner_tags": ["O"]},
    ]
    data = data_of(tmp_path, rows, split="validation", max_seq_length=5)
    measured = data.encode(wordpiece, None).evaluation[""]
    assert caplog.messages == [
        "1 of 3 sentences of --validation_file have more than 5 tokens (--max_seq_length), such as sentence 1 with 5 words: "
        "they are split into overlapping windows (--long_sentences)",
        "2 words of --validation_file are dropped by the tokenizer and predicted as 'O'",
    ]
    # [CLS] ada ada ada [SEP], [CLS] ada paris [SEP]
    assert measured.rows["sentence"][:] == [0, 0, 1, 2] and measured.examples == 3
    assert measured.rows["word_tokens"][:] == [[1, -1, 2, 3, -1], [-1, -1, -1, -1, 2], [1], [-1]]
    tags = [rows[number]["ner_tags"] for number in measured.rows["sentence"]]
    logits = logits_of(measured.rows["word_tokens"], tags, data.labels)
    # 4 of 5 entities and 6 of 7 words are correct.
    assert measured.metrics(logits, None) == {
        "precision": 1.0, "recall": pytest.approx(4 / 5), "f1": pytest.approx(8 / 9), "accuracy": pytest.approx(6 / 7),
    }  # fmt: skip
    file = measured.write(logits, tmp_path, "eval")[0]
    table = measured.table(logits).to_pydict()
    assert [*table] == ["row", "tokens", "ner_tags", "gold", "predicted", "probability"]
    assert table["predicted"] == [["B-PER", "O", "O", "B-PER", "B-LOC"], ["B-PER"], ["O"]]
    assert [[score is None for score in scores] for scores in table["probability"]] == [
        [False, True, False, False, False], [False], [True]
    ]  # fmt: skip
    assert file.name == "eval_predictions.txt"
    assert file.read_text(encoding="utf-8") == (
        "Ada B-PER\n\u200b O\nAda O\nAda B-PER\nParis B-LOC\n\nAda B-PER\n\n\u200b O\n\n"
    )


def test_a_word_belongs_to_the_window_in_which_it_has_most_context():
    """If the context is equal, the word belongs to the first window."""
    first, second = [None, 0, 1, 2, 2, 3, None], [None, 2, 2, 3, 4, None]
    # Word 3 has one token on its shorter side in the first window, two in the second.
    assert word_positions([(0, first), (0, second)], [5]) == [[1, 2, 3, -1, -1], [-1, -1, -1, 3, 4]]
    # Word 1 is longer than a window; word 0 of another sentence is a different word.
    windows = [(0, [None, 0, 1, None]), (0, [None, 1, 1, None]), (1, [None, 0, None])]
    assert word_positions(windows, [2, 2]) == [[1, 2], [-1, -1], [1, -1]]


@pytest.mark.parametrize("length", [3, 5, 16, 40])
@pytest.mark.parametrize("all_tokens", [False, True])
def test_each_word_is_trained_on_and_predicted_once(length, all_tokens, tmp_path, wordpiece):
    rows = [{"tokens": ["Ada", "smiles"] * 30, "ner_tags": ["B-PER", "O"] * 30}, *ROWS]
    file = write_lines(tmp_path / "validation.jsonl", *rows)
    flags = dict(validation_file=[file], max_seq_length=length, label_all_tokens=all_tokens)
    data = data_of(tmp_path, rows, **flags)
    task = data.encode(wordpiece, None)
    assert max(map(len, task.train["input_ids"])) == length
    labels = [label for row in task.train["labels"] for label in row if label != -100]
    if not all_tokens:
        assert sorted(labels) == sorted(data.labels.index(tag) for row in rows for tag in row["ner_tags"])
    measured = task.evaluation[""]
    tags = [rows[number]["ner_tags"] for number in measured.rows["sentence"]]
    scores = measured.metrics(logits_of(measured.rows["word_tokens"], tags, data.labels), None)
    assert scores["f1"] == scores["accuracy"] == 1.0


def test_words_of_rare_classes_weigh_more(tmp_path, wordpiece):
    task = data_of(tmp_path, class_weights="balanced").encode(wordpiece, None)
    # O occurs twice, the others once.
    assert task.loss.weights.tolist() == pytest.approx([5 / 8, 5 / 4, 5 / 4, 5 / 4])
    given = data_of(tmp_path, class_weights='{"O": 0.1}').encode(wordpiece, None)
    assert given.loss.weights.tolist() == pytest.approx([0.1, 1, 1, 1])


def test_metrics_of_each_type_when_asked(tmp_path, wordpiece):
    data = data_of(tmp_path, split="validation", return_entity_level_metrics=True)
    measured = data.encode(wordpiece, None).evaluation[""]
    tags = [["B-PER", "I-PER", "B-LOC"], ["B-LOC", "O"]]
    assert measured.metrics(logits_of(measured.rows["word_tokens"], tags, data.labels), None) == {
        "precision": pytest.approx(2 / 3), "recall": 1.0, "f1": pytest.approx(4 / 5), "accuracy": pytest.approx(4 / 5),
        "PER_precision": 1.0, "PER_recall": 1.0, "PER_f1": 1.0,
        "LOC_precision": 0.5, "LOC_recall": 1.0, "LOC_f1": pytest.approx(2 / 3),
    }  # fmt: skip


def test_labels_that_are_no_entities_have_accuracy(tmp_path, wordpiece):
    assert are_entities(["O", "B-PER", "S-x-y"]) and not are_entities(["O", "NOUN"]) and not are_entities([])
    rows = [{"tokens": ["Ada", "smiles", "\u200b"], "ner_tags": ["NOUN", "VERB", "NOUN"]}]
    data = data_of(tmp_path, rows, split="validation")
    task = data.encode(wordpiece, None)
    assert task.metric == "accuracy"
    right = logits_of(task.evaluation[""].rows["word_tokens"], [["NOUN", "VERB", "NOUN"]], data.labels)
    assert task.evaluation[""].metrics(right, None) == {"accuracy": pytest.approx(2 / 3)}
    with pytest.raises(ValueError, match=r"labels other than O must be all entity tags .*, got both 'PER' and"):
        are_entities(["O", "B-PER", "PER"])


def test_the_commonest_label_of_words_is_the_baseline(tmp_path):
    """Without the baseline, an accuracy of 0.6 would look good, although always predicting O reaches it."""
    spaced = [{"tokens": ["Ada", "smiles", "."], "ner_tags": ["B-PER ", " O", "O\r"]}]
    file = write_lines(tmp_path / "validation.jsonl", *ROWS)
    data = data_of(tmp_path, rows=[*ROWS, *spaced], validation_file=[file])
    assert data.label_counts == {"O": 4, "B-LOC": 1, "B-PER": 2, "I-PER": 1}
    assert data.baselines == {"majority class": dict(precision=0.0, recall=0.0, f1=0.0, accuracy=0.4)}
    assert data_of(tmp_path).baselines == {}


def test_batches_are_padded_on_the_right_whatever_the_tokenizer_does(wordpiece):
    wordpiece.padding_side = "left"
    try:
        collator = TokenClassificationCollator(wordpiece, pad_to_multiple_of=4)
    finally:
        wordpiece.padding_side = "right"
    rows = [
        {"input_ids": [2, 5, 3], "attention_mask": [1, 1, 1], "labels": [-100, 1, -100], "word_tokens": [1]},
        {"input_ids": [2, 5, 5, 5, 3], "attention_mask": [1] * 5, "labels": [-100, 1, 0, 1, -100], "word_tokens": [1, 2, 3]},
    ]
    batch = collator(rows)
    assert batch.keys() == {"input_ids", "attention_mask", "labels"}
    assert batch["input_ids"].tolist() == [[2, 5, 3, 0, 0, 0, 0, 0], [2, 5, 5, 5, 3, 0, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 1, *[-100] * 6], [-100, 1, 0, 1, *[-100] * 4]]


def test_words_are_read_as_within_a_text(tmp_path, wordpiece):
    """Without a space before it, a word would be encoded as the end of another word."""
    tokenizer = byte_level()
    within = tokenizer(" Ada Lovelace smiles")["input_ids"]
    assert tokenizer(ROWS[0]["tokens"], is_split_into_words=True)["input_ids"] != within
    task = data_of(tmp_path).encode(tokenizer, None)
    assert task.train[0]["input_ids"] == within
    # Other tokenizers are not changed.
    before = wordpiece.backend_tokenizer.to_str()
    take_prefix_space(wordpiece)
    assert wordpiece.backend_tokenizer.to_str() == before


def roberta():
    """Create a tokenizer of a class that rebuilds its backend when it is loaded."""
    source = byte_level()
    state = json.loads(source.backend_tokenizer.to_str())
    vocab = source.get_vocab()
    vocab |= {word: len(vocab) + number for number, word in enumerate(["<s>", "</s>", "<pad>", "<unk>", "<mask>"])}
    return RobertaTokenizer(vocab=vocab, merges=[tuple(merge) for merge in state["model"]["merges"]])


@pytest.mark.parametrize(
    "build, load",
    [(byte_level, load_tokenizer), (byte_level, AutoTokenizer.from_pretrained), (roberta, AutoTokenizer.from_pretrained)],
    ids=["ours", "auto", "rebuilt"],
)
def test_the_space_before_words_is_saved(build, load, tmp_path):
    tokenizer = build()
    take_prefix_space(tokenizer)
    tokenizer.save_pretrained(tmp_path)
    expected = tokenizer(" Ada Lovelace smiles")["input_ids"]
    assert load(tmp_path)(ROWS[0]["tokens"], is_split_into_words=True)["input_ids"] == expected


@pytest.mark.parametrize("known", [{"LABEL_0": 0, "LABEL_1": 1}, {"O": 0, "B-x": 1}, {"O": 0, "B-x": 1, "I-x": 2, "B-y": 3}])
def test_the_order_of_a_checkpoint_with_the_same_labels_is_taken(known, tmp_path, wordpiece):
    data = data_of(tmp_path)
    data.use_config(SimpleNamespace(label2id=known))
    assert data.labels == ["O", "B-LOC", "B-PER", "I-PER"]
    data.use_config(SimpleNamespace(label2id={"I-PER": 0, "B-LOC": 1, "O": 2, "B-PER": 3}))
    assert data.config_fields()["id2label"] == {0: "I-PER", 1: "B-LOC", 2: "O", 3: "B-PER"}
    assert data.encode(wordpiece, None).train[1]["labels"][:3] == [-100, 1, 2]


CONLL_U = """# newdoc
# sent_id = 1
1	Ada	Ada	PROPN	_	_	3	nsubj	_	_
2-3	won't	_	_	_	_	_	_	_	_
2	wo	will	AUX	_	_	3	aux	_	_
3	n't	not	PART	_	_	2	advmod	_	_
3.1	go	go	VERB	_	_	_	_	_	_

1	.	.	PUNCT	_	_	0	root	_	_
"""
GERMEVAL = "#\tn-tv.de [2005]\n1\tAda\tB-PER\tO\n2\tsmiles\tO\tO\n"
NUMBERED = "got word numbers as in CoNLL-U"


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("rows.txt", b"a O\nb\n", "all lines of .* or none must have a tag, got 'b' without a tag"),
        ("rows.txt", b"\n-DOCSTART- O\n\n", "must have at least one word"),
        # Bug: word numbers were read as words.
        ("rows.conll", CONLL_U.encode(), NUMBERED),
        ("rows.conll", GERMEVAL.encode(), NUMBERED),
        ("plain.txt.gz", b"a O", "is damaged, or not a gzip file"),
    ],
)
def test_conll_files_that_are_wrong_are_named(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_conll(tmp_path / name, source="--train_file")


def test_files_without_labels_are_for_prediction_alone(tmp_path):
    (tmp_path / "rows.txt").write_text("a\nb\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"--train_file: .* must have tags, got only words: give .* --test_file"):
        TokenClassificationData(TokenClassificationArguments(train_file=[str(tmp_path / "rows.txt")]))
    labelled = write_lines(tmp_path / "rows.jsonl", *ROWS)
    with pytest.raises(ValueError, match="--test_file: either all files or none must have labels"):
        data_of(tmp_path, test_file=[labelled, str(tmp_path / "rows.txt")])
