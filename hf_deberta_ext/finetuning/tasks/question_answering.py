# SPDX-License-Identifier: Apache-2.0
"""Questions whose answer is a span of a text, or none: SQuAD 1.1 and 2.0, and data with the same columns.

A context that is too long is read in windows that overlap. The question stands whole in each of them; start and end of the
answer are token positions in the windows that hold all of it, and those of [CLS] in the others.
"""

import copy
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from datasets import Dataset, concatenate_datasets
from transformers import AutoModelForQuestionAnswering, DataCollatorWithPadding, PretrainedConfig, PreTrainedTokenizerBase
from transformers.utils import logging

from ...data.columns import cells, check_cells, check_columns, first
from ...data.files import FLAGS, file_kind, parse_json, read_rows
from ...training.flags import option
from ...training.hub_arguments import HubArguments
from ..arguments import DataArguments
from ..failures import Failures
from ..input_lengths import longest_input
from ..prediction_tables import prediction_table
from ..task import EncodedTask, EvaluationSet, TaskData, two_outputs
from .answer_spans import Answers, Windows, answers_from_logits
from .question_answering_metrics import squad_v1, squad_v2
from .span_failures import answer_failures
from .splits import SPLITS, HubData, read_splits

__all__ = ["HUB", "QuestionAnsweringArguments", "QuestionAnsweringData", "encode_windows"]

logger = logging.get_logger(__name__)

HUB = {"squad": HubData("rajpurkar/squad"), "squad_v2": HubData("rajpurkar/squad_v2")}
# Tokens of a window.
LENGTH = 384


class Question(NamedTuple):
    """A question about a text.

    Args:
        texts: all reference answers, none where it has no answer.
        span: where an answer stands in the context, [from, to) in characters without white space around it; (-1, -1) where
            there is none.
    """

    id: str
    question: str
    context: str
    texts: list[str]
    span: tuple[int, int]


def nested_rows(articles: Sequence[dict]) -> Dataset:
    """Return the rows of the nested JSON of SQuAD's authors: articles of paragraphs, each a context with its questions."""
    rows = []
    for article in articles:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                row = {"id": str(question["id"]), "question": question["question"], "context": paragraph["context"]}
                rows.append(row | {"answers": question.get("answers") or []})
    return Dataset.from_list(rows)


def question_rows(rows: Dataset, columns: Sequence[str], *, source: str, optional: bool) -> list[Question]:
    """Return the questions of rows; with `optional` there may be no answers.

    Args:
        columns: names of question, context and answers.
        source (`str`): where the rows are from, for messages.
    Raises:
        ValueError: a missing column, a cell that is None or of another type, an answer that its context does not have.
    """
    question_column, context_column, answer_column = columns
    needed, answers = ["id", question_column, context_column], [[]] * len(rows)
    has_answers = answer_column in rows.column_names or not optional
    if has_answers:
        needed.append(answer_column)
    check_columns(rows, needed, source=source, flag="--question_column, --context_column, --answer_column")
    for column, kinds in (("id", (str, int)), (question_column, str), (context_column, str)):
        check_cells(rows, column, kinds, source=source)
    if has_answers:
        answers = cells(rows, answer_column)
    questions = []
    texts = zip(map(str, cells(rows, "id")), cells(rows, question_column), cells(rows, context_column), strict=True)
    for number, ((name, question, context), cell) in enumerate(zip(texts, answers, strict=True), start=1):
        if cell is None and optional:
            cell = []
        try:
            questions.append(Question(name, question, context, *read_answers(cell, context)))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"row {number} of {source} (id {name!r}) has {str(cell)[:100]!r} in the column {answer_column!r}, expected "
                f'{{"text": [...], "answer_start": [...]}}, texts of the context and where they begin: {error}'
            ) from error
    return questions


def read_answers(cell: Any, context: str) -> tuple[list[str], tuple[int, int]]:
    """Return the texts of {"text": [...], "answer_start": [...]}, or of a list of such pairs (also as JSON), and the
    characters of the first one that stands at its start, without white space around it; (-1, -1) of none."""
    if isinstance(cell, str):
        cell = parse_json(cell, "the cell")
    if isinstance(cell, list):
        cell = {name: [answer[name] for answer in cell] for name in ("text", "answer_start")}
    texts, starts = list(cell["text"]), list(cell["answer_start"])
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("an answer is no text")
    for text, start in zip(texts, starts, strict=True):
        if text.strip() and start >= 0 and context.startswith(text, start):
            begin = start + len(text) - len(text.lstrip())
            return texts, (begin, begin + len(text.strip()))
    if texts:
        raise ValueError(f"the context does not have the answer {texts[0]!r} at character {starts[0]}")
    return [], (-1, -1)


@dataclass
class QuestionAnsweringArguments(DataArguments):
    """Flags of question answering, named as in transformers' run_qa."""

    max_seq_length: int | None = option(None, f"tokens of a window, with question and special tokens; default: {LENGTH}")
    doc_stride: int = option(128, "tokens that neighbouring windows of a context share")
    version_2_with_negative: bool = option(False, "some questions have no answer; set by itself for squad_v2")
    null_score_diff_threshold: float = option(0.0, 'the answer is "" where its score is better by more than this')
    n_best_size: int = option(20, "starts and ends that are tried in each window, and answers that are written")
    max_answer_length: int = option(30, "of an answer, in tokens")
    question_column: str = option("question", "column of the question")
    context_column: str = option("context", "column of the text that holds the answer")
    answer_column: str = option("answers", 'column of the answers: {"text": [...], "answer_start": [...]}')

    def __post_init__(self):
        super().__post_init__()
        for name, least in (("doc_stride", 0), ("n_best_size", 1), ("max_answer_length", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"--{name} must be at least {least}, got {getattr(self, name)}")
        if self.null_score_diff_threshold != self.null_score_diff_threshold:
            raise ValueError("--null_score_diff_threshold is NaN, expected a number")


class QuestionAnsweringData(TaskData):
    """Questions to train on, to evaluate and to answer; see `TaskData`.

    Read from the Hub (`--dataset_name` or `--task_name` squad, squad_v2 or any other id) or from files: rows with the
    columns id, question, context and answers, or the nested JSON of SQuAD's authors; both also .gz.

    Args:
        data_args (`QuestionAnsweringArguments`): the flags.
        hub (`HubArguments`, *optional*): those of downloads.
    Raises:
        ValueError: nothing to read, a missing column, a cell that is None or of another type, an id that stands twice, an
            answer that its context does not have, a question without an answer where all must have one.
    """

    pipeline = "question-answering"
    auto_class = AutoModelForQuestionAnswering

    def __init__(self, data_args: QuestionAnsweringArguments, hub: HubArguments | None = None):
        self.data_args = data_args
        short = {task.name: name for name, task in HUB.items()}
        source = data_args.dataset_name or data_args.task_name
        self.name = data_args.task_name or short.get(source, self.pipeline)
        if data_args.task_name is None and source in HUB:
            self.name = source
        self.with_null = data_args.version_2_with_negative or self.name == "squad_v2"
        columns = (data_args.question_column, data_args.context_column, data_args.answer_column)
        self.inputs: dict[str, list[Dataset]] = {split: [] for split in SPLITS}

        def from_rows(rows, place, split, columns=columns):
            self.inputs[split].append(rows)
            return question_rows(rows, columns, source=place, optional=split == "test")

        def from_file(file, split):
            source, articles = f"{FLAGS[split]} {file.name}", []
            if file_kind(file) == "json" and file.is_file():
                articles = [row for _, row in read_rows(file, encoding=data_args.encoding)]
            if not articles or "paragraphs" not in articles[0]:
                return from_rows(data_args.read(file, FLAGS[split]), source, split)
            try:
                rows = nested_rows(articles)
            except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
                raise ValueError(f"{source} is not as SQuAD's authors write theirs: {error!r}") from error
            return from_rows(rows, source, split, ("question", "context", "answers"))

        files, self.dataset = read_splits(data_args, hub, HUB, from_file, from_rows)
        self.sets: dict[str, list[Question]] = {}
        for split, questions in files.items():
            self.sets[split] = [*chain.from_iterable(questions)][: data_args.limits[split]]
            self.check_questions(split)
        self.num_train, self.num_evaluation = (len(self.sets.get(kind, ())) for kind in ("train", "validation"))

    def check_questions(self, split: str):
        """Check that each id is for one question, and that all have an answer where they must."""
        [(name, times)] = Counter(question.id for question in self.sets[split]).most_common(1)
        if times > 1:
            raise ValueError(f"the {split} set has the id {name!r} more than once: an id is for one question")
        unanswered = [question.id for question in self.sets[split] if not question.texts]
        if unanswered and not self.with_null and self.has_answers(split):
            raise ValueError(
                f"the {split} set has questions without an answer, such as {unanswered[0]!r}: give --version_2_with_negative"
            )

    def has_answers(self, split: str) -> bool:
        """Tell if a set has answers, which a test set may lack."""
        return split != "test" or any(question.texts for question in self.sets[split])

    @property
    def label_counts(self) -> dict[str, int]:
        """Return the number of training questions with an answer and without; empty where all have one."""
        if not self.with_null or "train" not in self.sets:
            return {}
        answered = [bool(question.texts) for question in self.sets["train"]]
        return {"with an answer": sum(answered), "without": len(answered) - sum(answered)}

    @cached_property
    def baselines(self) -> dict[str, dict[str, float]]:
        """Return the metrics of no answer to any question; nothing where all questions have an answer."""
        if not self.label_counts or "validation" not in self.sets:
            return {}
        references = {question.id: question.texts for question in self.sets["validation"]}
        scores = squad_v2(dict.fromkeys(references, ""), references)
        return {"no answer": {name: value for name, value in scores.items() if not name.endswith("total")}}

    def config_fields(self) -> dict[str, Any]:
        # The head has a logit for the start and one for the end, whatever the labels of a checkpoint are.
        return two_outputs()

    def encode(self, tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig) -> EncodedTask:
        """Return the features of all sets.

        A question that leaves no room for windows is left out of the training and answered with "" in the other sets, with a
        warning. The tokenizer must be a fast one, and --doc_stride leave room in --max_seq_length.
        """
        if not tokenizer.is_fast:
            raise ValueError(
                f"{type(tokenizer).__name__} does not tell which characters its tokens come from: give a fast tokenizer, "
                "one that is saved with a tokenizer.json"
            )
        arguments = self.data_args
        max_length = longest_input(tokenizer, config, arguments.max_seq_length, LENGTH)
        options = dict(tokenizer=tokenizer, max_length=max_length)
        sets = {}
        for split, questions in self.sets.items():
            more = dict(source=f"the {split} set", offsets=split != "train", positions=self.has_answers(split))
            sets[split], windows = encode_windows(questions, arguments, **options, **more)
            if split != "train":
                sets[split] = self.evaluation_set(split, sets[split], windows)
        # On the right, so that places of tokens, which labels and windows are, stay what they are.
        padding = copy.copy(tokenizer)
        padding.padding_side = "right"
        collator = DataCollatorWithPadding(padding, **arguments.padding(max_length))
        return EncodedTask.of_splits(sets, collator, "f1")

    def evaluation_set(self, split: str, rows: Dataset, windows: Windows) -> EvaluationSet:
        """Return a set, with `windows` whose features are `rows`."""
        threshold, questions = self.data_args.null_score_diff_threshold, self.sets[split]
        inputs = first(concatenate_datasets(self.inputs[split]), len(questions))
        references = {question.id: question.texts for question in questions}

        def answers(predictions: tuple[np.ndarray, ...]) -> Answers:
            return answers_from_logits(
                [question.id for question in questions],
                [question.context for question in questions],
                windows,
                *predictions[:2],
                n_best=self.data_args.n_best_size,
                max_answer_length=self.data_args.max_answer_length,
                with_null=self.with_null,
                null_threshold=threshold,
            )

        def metrics(predictions: tuple[np.ndarray, ...], labels: Any) -> dict[str, float]:
            best = answers(predictions)
            if not self.with_null:
                return squad_v1(best.predictions, references)
            # The best thresholds are those of all spans: a sweep over answers that a threshold has already made "" would
            # find none above it.
            return squad_v2(best.best, references, best.null_odds, threshold)

        def write(predictions: tuple[np.ndarray, ...], folder: Path, stem: str) -> list[Path]:
            best = answers(predictions)
            texts = {"predictions": best.predictions, "nbest_predictions": best.nbest}
            if self.with_null:
                texts["null_odds"] = best.null_odds
            files = []
            for name, value in texts.items():
                files.append(folder / f"{stem}_{name}.json")
                text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
                files[-1].write_text(text + "\n", encoding="utf-8")
            return files

        def failures(predictions: tuple[np.ndarray, ...]) -> Failures:
            best, texts = answers(predictions), {question.id: question.question for question in questions}
            probabilities = {}
            for name, options in best.nbest.items():
                given = [option["probability"] for option in options if option["text"] == best.predictions[name]]
                probabilities[name] = max(given, default=0.0)
            score = squad_v2 if self.with_null else squad_v1
            return answer_failures(texts, references, best.predictions, probabilities, score)

        def table(predictions: tuple[np.ndarray, ...]) -> pa.Table:
            best, scores = answers(predictions), []
            for text, entries in zip(best.predictions.values(), best.nbest.values(), strict=True):
                scores.append(next(round(entry["probability"], 6) for entry in entries if entry["text"] == text))
            gold = [question.texts for question in questions] if self.has_answers(split) else None
            return prediction_table(inputs, predicted=[*best.predictions.values()], gold=gold, probability=scores)

        scored = metrics if self.has_answers(split) else None
        return EvaluationSet(rows, scored, write, len(questions), failures=failures, table=table)


def encode_windows(
    questions: Sequence[Question],
    arguments: QuestionAnsweringArguments,
    *,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    offsets: bool = True,
    positions: bool = True,
    source: str = "the set",
) -> tuple[Dataset, Windows | None]:
    """Return the windows of questions, in order: what a model takes, and with `offsets` what is needed to read its answers.

    With `positions` there are the columns start_positions and end_positions: tokens of the first answer in the windows that
    hold all of it, the place of [CLS] in the others.

    Raises:
        ValueError: no question leaves more than --doc_stride tokens of a window for its context.
    """

    texts = [question.question.strip() for question in questions]
    doc_stride, room = arguments.doc_stride, max_length - tokenizer.num_special_tokens_to_add(pair=True)
    tokens = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
    columns: dict[str, list] = {name: [] for name in ("example", "question", "context", "span")}
    too_long = []
    for number, ids in enumerate(tokens):
        if room - len(ids) > doc_stride:
            row = (number, texts[number], questions[number].context, questions[number].span)
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value)
        else:
            too_long.append(number)
    if len(too_long) == len(texts):
        raise ValueError(
            f"--max_seq_length {max_length} leaves no more than --doc_stride {doc_stride} tokens beside any question of "
            f"{source} (the shortest has {min(map(len, tokens))}), which neighbouring windows share: give a smaller "
            "--doc_stride"
        )
    if too_long:
        logger.warning(
            f"{source}: {len(too_long)} questions are too long to leave more than --doc_stride {doc_stride} of "
            f"--max_seq_length {max_length} tokens for their context, and get no windows (the first is "
            f"{questions[too_long[0]].id!r}, {len(tokens[too_long[0]])} tokens)"
        )
    options = dict(max_length=max_length, doc_stride=doc_stride, offsets=offsets, positions=positions)
    encoded = arguments.tokenise(Dataset.from_dict(columns), encode_batch, source, tokenizer=tokenizer, **options)
    table = encoded.with_format("numpy")
    examples, null = table["example"][:], table["null"][:]
    if positions:
        held = {*examples[table["start_positions"][:] != null].tolist()}
        cut = [number for number in columns["example"] if questions[number].texts and number not in held]
        if cut:
            logger.warning(
                f"{source}: the answers of {len(cut)} questions are whole in no window, which all say that there is none "
                f"(the first is {questions[cut[0]].id!r}); a larger --doc_stride may help"
            )
    if not offsets:
        return encoded.remove_columns(["example", "null"]), None
    first, last = table["first"][:], table["last"][:]
    windows = Windows(examples, null, np.cumsum([0, *map(len, first)]), np.concatenate(first), np.concatenate(last))
    return encoded.remove_columns(["example", "null", "first", "last"]), windows


def encode_batch(
    batch: dict[str, list], *, tokenizer, max_length: int, doc_stride: int, offsets: bool, positions: bool
) -> dict[str, list]:
    """Return the windows of some questions. On the left is what is read first where padding is on the right."""
    question_first = tokenizer.padding_side == "right"
    pair, truncation = (batch["context"], batch["question"]), "only_first"
    if question_first:
        pair, truncation = (batch["question"], batch["context"]), "only_second"
    encoding = tokenizer(
        *pair,
        truncation=truncation,
        max_length=max_length,
        stride=doc_stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    # Several questions are about one context.
    edges = {context: word_edges(context) for context in {*batch["context"]}}
    windows = []
    for row, window in zip(encoding["overflow_to_sample_mapping"], encoding.encodings, strict=True):
        is_context = np.array(window.sequence_ids, dtype=object) == int(question_first)
        ahead, back = edges[batch["context"][row]]
        characters = np.where(is_context[:, None], np.array(window.offsets), 0)
        # White space that belongs to a token, as in SentencePiece vocabularies, is no part of an answer.
        first, last = np.where(is_context, ahead[characters[:, 0]], 0), np.where(is_context, back[characters[:, 1]], 0)
        null = cls_position(window, tokenizer.cls_token_id)
        features = {"example": batch["example"][row], "null": null}
        if offsets:
            features |= {"first": first, "last": last}
        if positions:
            start, end = answer_tokens(first, last, *batch["span"][row]) or (null, null)
            features |= {"start_positions": start, "end_positions": end}
        windows.append(features)
    inputs = {name: values for name, values in encoding.items() if name in tokenizer.model_input_names}
    return inputs | {name: [window[name] for window in windows] for name in windows[0]}


def word_edges(text: str) -> tuple[np.ndarray, np.ndarray]:
    """Return for each place of a text the next character that is no white space, and the end of the last before it."""
    is_space = np.array([character.isspace() for character in text], dtype=bool)
    places = np.arange(len(text))
    ahead = np.minimum.accumulate(np.append(np.where(is_space, len(text), places), len(text))[::-1])[::-1]
    back = np.maximum.accumulate(np.append(0, np.where(is_space, 0, places + 1)))
    return ahead, back


def cls_position(window: Any, cls_token_id: int | None) -> int:
    """Return the place of [CLS], wherever the tokenizer puts it; the first token that is not padding where there is none."""
    real = np.array(window.attention_mask) == 1
    is_cls = real & (np.array(window.ids) == cls_token_id) & np.array([part is None for part in window.sequence_ids])
    if not is_cls.any():
        is_cls = real
    return int(np.argmax(is_cls))


def answer_tokens(first: np.ndarray, last: np.ndarray, begin: int, end: int) -> tuple[int, int] | None:
    """Return the tokens of the characters [begin, end), all of which must be in the window; None where they are not."""
    tokens = np.flatnonzero(first < last)
    if begin < 0 or not len(tokens) or first[tokens[0]] > begin or last[tokens[-1]] < end:
        return None
    start, stop = tokens[last[tokens] > begin][0], tokens[first[tokens] < end][-1]
    if start > stop:
        return None
    return int(start), int(stop)


TASK = (QuestionAnsweringData, QuestionAnsweringArguments)
