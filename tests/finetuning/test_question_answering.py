# SPDX-License-Identifier: Apache-2.0
"""Question answering: windows by hand, round trip of gold spans with real tokenizers, files, SQuAD and invalid data."""

import json
import random

import numpy as np
import pytest
from datasets import Dataset
from task_files import write_lines
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, PreTrainedTokenizerFast

from hf_deberta_ext.finetuning.tasks.question_answering import (
    QuestionAnsweringArguments,
    QuestionAnsweringData,
    encode_windows,
    question_rows,
)
from hf_deberta_ext.pretraining.tokenizer_training import train_byte_level_bpe, train_unigram

SPECIAL = dict(pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]")
PAIR = "[CLS] $A [SEP] $B:1 [SEP]:1"


def words(pair=PAIR, **options):
    """Create a tokenizer of words, which only knows "q" and "a" to "j"."""
    vocabulary = {name: number for number, name in enumerate([*SPECIAL.values(), "q", *"abcdefghij"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([*SPECIAL.values()])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=pair, special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=names, **SPECIAL, **options)


def byte_level(texts, trim_offsets):
    tokenizer = train_byte_level_bpe(texts, vocab_size=400, show_progress=False)
    assert isinstance(tokenizer.backend_tokenizer.pre_tokenizer, pre_tokenizers.ByteLevel)
    special = [("[CLS]", tokenizer.cls_token_id), ("[SEP]", tokenizer.sep_token_id)]
    template = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair=PAIR, special_tokens=special)
    trim = processors.ByteLevel(trim_offsets=trim_offsets)
    tokenizer.backend_tokenizer.post_processor = processors.Sequence([trim, template])
    return tokenizer


def one(question="q", context="a b c d e f g h i j", answers=(("d e", 6),), name="n1"):
    """Create a row of SQuAD."""
    texts, starts = ([part[at] for part in answers] for at in (0, 1))
    return dict(id=name, title="t", context=context, question=question, answers=dict(text=texts, answer_start=starts))


def columns(*rows):
    """Return the questions that are read from rows."""
    return question_rows(Dataset.from_list(rows), ("question", "context", "answers"), source="here", optional=False)


def windows_of(questions, doc_stride, **options):
    return encode_windows(questions, QuestionAnsweringArguments(doc_stride=doc_stride), **options)


def write_nested(file, *rows):
    """Write the JSON of SQuAD's authors, one paragraph for each row."""
    articles = []
    for row in rows:
        spans = zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
        answers = [dict(text=text, answer_start=start) for text, start in spans]
        qas = dict(id=row["id"], question=row["question"], answers=answers, is_impossible=not answers)
        articles.append(dict(title="t", paragraphs=[dict(context=row["context"], qas=[qas])]))
    file.write_text(json.dumps(dict(version="v2.0", data=articles)), encoding="utf-8")


def data(**flags):
    return QuestionAnsweringData(QuestionAnsweringArguments(**flags))


def gold_logits(rows):
    """Return start and end logits: 5 for the labels, else 0; padded as in Trainer."""
    width = max(map(len, rows["input_ids"]))
    logits = np.full((2, len(rows), width), -100, dtype=np.float32)
    for row, ids in enumerate(rows["input_ids"]):
        logits[:, row, : len(ids)] = 0
    for part, name in enumerate(("start_positions", "end_positions")):
        logits[part, np.arange(len(rows)), rows[name][:]] = 5
    return logits[0], logits[1]


def test_windows_hold_the_question_and_overlap_by_the_stride():
    rows, windows = windows_of(columns(one()), tokenizer=words(), max_length=8, doc_stride=1)
    cls, sep, q, a = 1, 2, 4, 5
    assert rows["input_ids"][:] == [
        [cls, q, sep, a, a + 1, a + 2, a + 3, sep],
        [cls, q, sep, a + 3, a + 4, a + 5, a + 6, sep],
        [cls, q, sep, a + 6, a + 7, a + 8, a + 9, sep],
    ]
    assert rows["token_type_ids"][0] == [0, 0, 0, 1, 1, 1, 1, 1]
    # "d e" is truncated in the first window, complete in the second, and not in the third: the labels are [CLS] there.
    assert (rows["start_positions"][:], rows["end_positions"][:]) == ([0, 3, 0], [0, 4, 0])
    assert windows.examples.tolist() == [0, 0, 0] and windows.null.tolist() == [0, 0, 0]
    assert windows.bounds.tolist() == [0, 8, 16, 24]
    assert windows.first.tolist()[8:16] == [0, 0, 0, 6, 8, 10, 12, 0]
    assert windows.last.tolist()[8:16] == [0, 0, 0, 7, 9, 11, 13, 0]
    # Training rows only have inputs of the model.
    examples = columns(one(), one(name="n2", answers=()))
    rows, windows = windows_of(examples, tokenizer=words(), max_length=20, doc_stride=1, offsets=False)
    assert windows is None
    assert rows.column_names == ["input_ids", "token_type_ids", "attention_mask", "start_positions", "end_positions"]
    assert (rows["start_positions"][:], rows["end_positions"][:]) == ([6, 0], [7, 0])


def test_the_context_is_first_where_padding_is_on_the_left():
    """As in XLNet, [CLS] is at the end; "[CLS]" in the context is a word."""
    tokenizer = words("$A [SEP] $B:1 [SEP]:1 [CLS]:1", padding_side="left")
    row = one(context="[CLS] a b c d", answers=(("c d", 10),))
    rows, windows = windows_of(columns(row), tokenizer=tokenizer, max_length=8, doc_stride=1)
    assert rows["input_ids"][:] == [[1, 5, 6, 7, 2, 4, 2, 1], [7, 8, 2, 4, 2, 1]]
    assert windows.null.tolist() == [7, 5]
    assert (rows["start_positions"][:], rows["end_positions"][:]) == ([7, 0], [7, 1])
    assert windows.first.tolist()[8:] == [10, 12, 0, 0, 0, 0]
    # Without [CLS], its position is the first token.
    tokenizer = words("$A [SEP] $B:1 [SEP]:1", padding_side="left")
    _, windows = windows_of(columns(one(context="a b", answers=())), tokenizer=tokenizer, max_length=8, doc_stride=1)
    assert windows.null.tolist() == [0]


def test_a_batch_keeps_the_places_of_the_tokens_wherever_the_tokenizer_pads(tmp_path):
    """Bug: windows of different lengths were padded on the left, which shifted labels and answers by a few tokens."""
    tokenizer = words("$A [SEP] $B:1 [SEP]:1 [CLS]:1", padding_side="left")
    file = write_lines(tmp_path / "dev.jsonl", one(), one(name="n2", context="a b", answers=(("b", 2),)))
    flags = dict(train_file=[file], validation_file=[file], max_seq_length=20, doc_stride=1, pad_to_multiple_of=8)
    task = data(**flags).encode(tokenizer, BertConfig(max_position_embeddings=20))
    assert task.metric == "f1"
    rows = [task.train[number] for number in range(2)]
    assert len({len(row["input_ids"]) for row in rows}) == 2
    batch = task.collator([dict(row) for row in rows])
    assert batch["input_ids"].shape == (2, 16)
    for number, row in enumerate(rows):
        start = row["start_positions"]
        assert batch["input_ids"][number, start] == row["input_ids"][start] != 0
        assert batch["attention_mask"][number, start] == 1 and batch["start_positions"][number] == start
    assert tokenizer.padding_side == "left"


def test_answers_that_no_window_holds_are_counted(caplog):
    rows, _ = windows_of(columns(one(answers=(("c d e f g h", 4),))), tokenizer=words(), max_length=8, doc_stride=1)
    assert rows["start_positions"][:] == [0, 0, 0]
    [said] = caplog.messages
    assert "no window contains the whole answer of 1 questions" in said and "'n1'" in said


def test_questions_are_never_cut(caplog, tmp_path):
    """A question that leaves no room for a context is dropped with a warning, and its answer is ""."""
    long = one("q " * 9, name="long")
    _, windows = windows_of(columns(long, one(), long), tokenizer=words(), max_length=12, doc_stride=2)
    assert {*windows.examples.tolist()} == {1}
    [said] = caplog.messages
    assert "ignoring 2 questions" in said and "'long' with 9 tokens" in said
    file = write_lines(tmp_path / "dev.jsonl", long, one())
    task = data(validation_file=[file], max_seq_length=12, doc_stride=2).encode(words(), BertConfig())
    measured = task.evaluation[""]
    metrics = measured.metrics(gold_logits(measured.rows), None)
    assert measured.examples == 2 and metrics == dict(exact_match=50.0, f1=50.0)
    files = measured.write(gold_logits(measured.rows), tmp_path, "eval")
    assert json.loads(files[0].read_text(encoding="utf-8")) == {"long": "", "n1": "d e"}
    # White space needs no tokens: SQuAD 1.1 has a question that starts with 25,000 spaces.
    rows, _ = windows_of(columns(one(" " * 99 + "q\n")), tokenizer=words(), max_length=8, doc_stride=1)
    assert len(rows) == 3


ALPHABETS = ["abcdefghij", "aeiouáéïöû", "漢字仮名", "0123456789", "😀🎉é", "ﬁſ½Ω"]
SPACES = [" ", " ", " ", "  ", "\n", "\u00a0", "\t", "\u3000"]


def random_rows(count, seed):
    """Create contexts of words in several scripts, separated by various white space; answers are words of the contexts."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        context, starts, ends = draw.choice(["", " ", "\n "]), [], []
        for _ in range(draw.randint(1, 60)):
            starts.append(len(context))
            context += "".join(draw.choices(draw.choice(ALPHABETS), k=draw.randint(1, 7)))
            ends.append(len(context))
            context += draw.choice(SPACES)
        first = draw.randrange(len(starts))
        begin, end = starts[first], ends[min(first + draw.randint(0, 4), len(starts) - 1)]
        rows.append(one("abc édf", context, ((context[begin:end], begin),), str(number)))
    return rows


TOKENIZERS = {
    "byte-level": lambda texts: byte_level(texts, trim_offsets=True),
    "byte-level with spaces": lambda texts: byte_level(texts, trim_offsets=False),
    "unigram": lambda texts: train_unigram(texts, vocab_size=150, show_progress=False),
}


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_gold_spans_of_tokens_are_the_gold_texts(kind, side, tmp_path):
    """Offsets of SentencePiece tokens begin with the space before a word (transformers#14418)."""
    rows = random_rows(80, seed=len(kind))
    tokenizer = TOKENIZERS[kind]([row["context"] for row in random_rows(300, seed=0)])
    tokenizer.padding_side = side
    file = write_lines(tmp_path / "dev.jsonl", *rows)
    flags = dict(validation_file=[file], max_seq_length=120, doc_stride=80, max_answer_length=120)
    task = data(**flags).encode(tokenizer, BertConfig(max_position_embeddings=120))
    measured = task.evaluation[""]
    assert len(measured.rows) > 100
    [written, _] = measured.write(gold_logits(measured.rows), tmp_path, "eval")
    # Exactly equal, not only after the metric's normalisation.
    expected = {row["id"]: row["answers"]["text"][0] for row in rows}
    assert json.loads(written.read_text(encoding="utf-8")) == expected
    assert measured.metrics(gold_logits(measured.rows), None)["exact_match"] == 100.0


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv"])
def test_files_of_all_forms_give_the_same_questions(ending, tmp_path):
    rows = [one(), one(name="n2", context="é b", answers=()), one(name="n3", answers=((" b", 1), ("c", 4)))]
    file = tmp_path / f"dev.{ending}"
    if ending == "json":
        write_nested(file, *rows)
    elif ending == "csv":
        Dataset.from_list([row | dict(answers=json.dumps(row["answers"])) for row in rows]).to_csv(file)
    else:
        write_lines(file, *rows)
    read = data(validation_file=[str(file)], version_2_with_negative=True)
    found = read.sets["validation"]
    expected = zip(rows, [["d e"], [], [" b", "c"]], [(6, 9), (-1, -1), (2, 3)], strict=True)
    assert found == [(row["id"], "q", row["context"], texts, span) for row, texts, span in expected]
    assert read.dataset == file.name and read.name == "question-answering" and read.num_evaluation == 3


def test_one_set_of_version_2_by_hand(tmp_path):
    """Three questions: one is correct, one has an answer but gets none, one has no answer but gets one."""
    rows = [one(), one(name="n2"), one(name="n3", answers=())]
    flags = dict(validation_file=[write_lines(tmp_path / "a.jsonl", *rows)], version_2_with_negative=True)
    measured = data(**flags).encode(words(), BertConfig()).evaluation[""]
    start, end = np.zeros((2, 3, len(measured.rows["input_ids"][0])))
    # "d e" are positions 6 and 7; null odds: -2, 1, -1.
    start[:, 6], end[:, 7] = [4, 4, 4], [3, 3, 3]
    start[:, 0] = [5, 8, 6]
    metrics = measured.metrics((start, end), None)
    assert metrics["total"] == 3 and metrics["exact"] == pytest.approx(100 / 3)
    assert (metrics["HasAns_exact"], metrics["NoAns_exact"]) == (50.0, 0.0)
    # With a threshold above -2, the third is "", which is correct; above 1, the second and the third get an answer.
    assert metrics["best_exact"] == pytest.approx(200 / 3) and metrics["best_exact_thresh"] == -2.0
    files = measured.write((start, end), tmp_path, "eval")
    assert [file.name for file in files] == ["eval_predictions.json", "eval_nbest_predictions.json", "eval_null_odds.json"]
    predictions, nbest, odds = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    assert predictions == dict(n1="d e", n2="", n3="d e")
    table = measured.table((start, end)).to_pydict()
    assert [*table] == ["row", *rows[0], "gold", "predicted", "probability"]
    assert table["gold"] == [["d e"], ["d e"], []] and table["predicted"] == ["d e", "", "d e"]
    assert table["probability"][0] == round(nbest["n1"][0]["probability"], 6)
    assert odds == dict(n1=-2.0, n2=1.0, n3=-1.0)
    assert [list(entry) for entry in nbest["n1"][:1]] == [["text", "probability", "start_logit", "end_logit"]]
    # With the best threshold as flag, the score is the best score.
    again = data(**flags, null_score_diff_threshold=metrics["best_f1_thresh"]).encode(words(), BertConfig())
    assert again.evaluation[""].metrics((start, end), None)["f1"] == metrics["best_f1"]


def test_no_answer_is_the_baseline_where_some_questions_have_none_as_in_squad_2(tmp_path):
    file = write_lines(tmp_path / "a.jsonl", one(), one(name="n2", answers=()), one(name="n3", answers=()))
    found = data(train_file=[file], validation_file=[file], version_2_with_negative=True)
    assert found.label_counts == {"with an answer": 1, "without": 2}
    scores = found.baselines["no answer"]
    assert scores["exact"] == scores["f1"] == pytest.approx(200 / 3)
    assert (scores["HasAns_f1"], scores["NoAns_f1"]) == (0.0, 100.0)
    file = write_lines(tmp_path / "b.jsonl", one())
    first = data(train_file=[file], validation_file=[file])
    assert first.label_counts == first.baselines == {}
    file = write_lines(tmp_path / "a.jsonl", one(), one(name="n2", answers=()))
    found = data(task_name="squad_v2", train_file=[file])
    assert (found.name, found.with_null, found.dataset) == ("squad_v2", True, "a.jsonl")


def test_a_stride_that_leaves_no_room_is_refused(tmp_path):
    read = data(train_file=[write_lines(tmp_path / "a.jsonl", one())], max_seq_length=20, doc_stride=16)
    with pytest.raises(ValueError, match=r"--max_seq_length 20 must leave more than --doc_stride 16 .* smaller"):
        read.encode(words(), BertConfig())


@pytest.mark.parametrize("name, content, message", [
    ("a.csv", "id,question,context,answers\nn1,q,a b,b\n", r"\(id 'n1'\) has 'b' in the column 'answers', expected"),
    ("a.json", '{"data": [{"paragraphs": [{"context": "a"}]}]}', "not in the format of SQuAD's authors: KeyError.'qas'"),
    ("a.json", "", "has no rows"),
    ("a.jsonl", "{", "a.jsonl is not JSON"),
])  # fmt: skip
def test_files_with_mistakes_are_refused(name, content, message, tmp_path):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        data(train_file=[str(tmp_path / name)])
