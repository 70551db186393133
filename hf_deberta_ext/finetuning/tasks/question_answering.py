# SPDX-License-Identifier: Apache-2.0
"""Extractive question answering, with or without unanswerable questions: SQuAD 1.1 and 2.0, and data with their columns.

A long context is split into overlapping windows, each with the whole question. Labels are the positions of the answer's
first and last token if the window contains the whole answer, else the position of [CLS].
"""

import copy
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
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
from ..input_lengths import check_fast, longest_input
from ..prediction_tables import prediction_table
from ..task import EncodedTask, EvaluationSet, TaskData, cache_last, two_outputs
from .answer_spans import Answers, Windows, answers_from_logits
from .question_answering_metrics import squad_v1, squad_v2
from .span_failures import answer_failures
from .splits import SPLITS, HubData, read_splits

__all__ = ["HUB", "QuestionAnsweringArguments", "QuestionAnsweringData", "encode_windows"]

logger = logging.get_logger(__name__)

HUB = {"squad": HubData("rajpurkar/squad"), "squad_v2": HubData("rajpurkar/squad_v2")}
# Default length of a window in tokens.
LENGTH = 384


class Question(NamedTuple):
    """Question about a text.

    Args:
        texts: all reference answers; empty if the question has no answer.
        span: start and end of an answer in the context, in characters, without white space around it; (-1, -1) if the
            question has no answer.
    """

    id: str
    question: str
    context: str
    texts: list[str]
    span: tuple[int, int]


def nested_rows(articles: Sequence[dict]) -> Dataset:
    """Convert the nested JSON of SQuAD's authors (articles, paragraphs, questions) to rows."""
    rows = []
    for article in articles:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                row = {"id": str(question["id"]), "question": question["question"], "context": paragraph["context"]}
                rows.append(row | {"answers": question.get("answers") or []})
    return Dataset.from_list(rows)


def question_rows(rows: Dataset, columns: Sequence[str], *, source: str, optional: bool) -> list[Question]:
    """Check rows and convert them to questions.

    `columns` are the names of the columns question, context and answers; if `optional`, rows need no answers.
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
                f'{{"text": [answers], "answer_start": [character offsets of the answers in the context]}}: {error}'
            ) from error
    return questions


def read_answers(cell: Any, context: str) -> tuple[list[str], tuple[int, int]]:
    """Return the texts of all answers, and the span of the first answer with a correct "answer_start".

    "answer_start" is correct if the answer's text begins at this character of the context. The cell is {"text": [...],
    "answer_start": [...]}, or a list of {"text", "answer_start"}, or JSON of either. The span is in characters, without
    white space around the text; (-1, -1) if there are no answers.
    """
    if isinstance(cell, str):
        cell = parse_json(cell, "the cell")
    if isinstance(cell, list):
        cell = {name: [answer[name] for answer in cell] for name in ("text", "answer_start")}
    texts, starts = list(cell["text"]), list(cell["answer_start"])
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("an answer is not text")
    for text, start in zip(texts, starts, strict=True):
        if text.strip() and start >= 0 and context.startswith(text, start):
            begin = start + len(text) - len(text.lstrip())
            return texts, (begin, begin + len(text.strip()))
    if texts:
        raise ValueError(f"the answer {texts[0]!r} is not at character {starts[0]} of the context")
    return [], (-1, -1)


@dataclass
class QuestionAnsweringArguments(DataArguments):
    """Flags of question answering, named as in transformers' run_qa."""

    max_seq_length: int | None = option(
        None, f"maximum length of a window in tokens, including question and special tokens; default: {LENGTH}"
    )
    doc_stride: int = option(128, "overlap of neighbouring windows of a context in tokens")
    version_2_with_negative: bool = option(False, "some questions have no answer; always set for squad_v2")
    null_score_diff_threshold: float = option(
        0.0, 'predict "" if the score of "no answer" exceeds the score of the best span by more than this number'
    )
    n_best_size: int = option(
        20, "number of starts and ends to try in each window, and maximum number of answers to save for each question"
    )
    max_answer_length: int = option(30, "maximum length of an answer in tokens")
    question_column: str = option("question", "column of the question")
    context_column: str = option("context", "column of the text that contains the answer")
    answer_column: str = option("answers", 'column of the answers: {"text": [...], "answer_start": [...]}')

    def __post_init__(self):
        super().__post_init__()
        for name, least in (("doc_stride", 0), ("n_best_size", 1), ("max_answer_length", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"--{name} must be at least {least}, got {getattr(self, name)}")
        if self.null_score_diff_threshold != self.null_score_diff_threshold:
            raise ValueError("--null_score_diff_threshold must be a number, got NaN")


class QuestionAnsweringData(TaskData):
    """Questions about texts, for training, evaluation and prediction; see `TaskData`.

    Reads data sets on the Hub (`--task_name` squad or squad_v2, or `--dataset_name` with one of these names or any Hub id)
    or files: rows with the columns id, question, context and answers, or the nested JSON of SQuAD's authors; both also .gz.

    Raises:
        ValueError: if there is no data; a column is missing; a cell is None or of another type; an id occurs twice; a
            context does not contain its answer; or a required answer is missing.
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
                raise ValueError(f"{source} is not in the format of SQuAD's authors: {error!r}") from error
            return from_rows(rows, source, split, ("question", "context", "answers"))

        sets, self.dataset = read_splits(data_args, hub, HUB, from_file, from_rows)
        self.sets: dict[str, list[Question]] = {}
        for split, questions in sets.items():
            self.sets[split] = questions[: data_args.limits[split]]
            self.check_questions(split)
        self.num_train, self.num_evaluation = (len(self.sets.get(kind, ())) for kind in ("train", "validation"))

    def check_questions(self, split: str):
        """Check that ids are unique, and that no required answer is missing."""
        [(name, times)] = Counter(question.id for question in self.sets[split]).most_common(1)
        if times > 1:
            raise ValueError(f"ids of the {split} set must be unique, got {name!r} {times} times")
        unanswered = [question.id for question in self.sets[split] if not question.texts]
        if unanswered and not self.with_null and self.has_answers(split):
            raise ValueError(
                f"the {split} set has questions without an answer, such as {unanswered[0]!r}: give --version_2_with_negative"
            )

    def has_answers(self, split: str) -> bool:
        """Return True if a set has answers; only a test set can have none."""
        return split != "test" or any(question.texts for question in self.sets[split])

    @property
    def label_counts(self) -> dict[str, int]:
        """Return the number of training questions with and without an answer; empty if all questions must have one."""
        if not self.with_null or "train" not in self.sets:
            return {}
        answered = [bool(question.texts) for question in self.sets["train"]]
        return {"with an answer": sum(answered), "without": len(answered) - sum(answered)}

    @cached_property
    def baselines(self) -> dict[str, dict[str, float]]:
        """Return the metrics of always predicting "no answer"; empty if all questions must have an answer."""
        if not self.label_counts or "validation" not in self.sets:
            return {}
        references = {question.id: question.texts for question in self.sets["validation"]}
        scores = squad_v2(dict.fromkeys(references, ""), references)
        return {"no answer": {name: value for name, value in scores.items() if not name.endswith("total")}}

    def config_fields(self) -> dict[str, Any]:
        # The head has one logit for the start and one for the end, regardless of the checkpoint's labels.
        return two_outputs()

    def encode(self, tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig) -> EncodedTask:
        """Encode the questions of all sets as windows.

        A question that is too long for windows is dropped from the training set, and answered with "" in other sets; a
        warning gives the number of such questions.
        """
        check_fast(tokenizer, "question answering", "which has no character offsets")
        arguments = self.data_args
        max_length = longest_input(tokenizer, config, arguments.max_seq_length, LENGTH)
        options = dict(tokenizer=tokenizer, max_length=max_length)
        sets = {}
        for split, questions in self.sets.items():
            more = dict(source=f"the {split} set", offsets=split != "train", positions=self.has_answers(split))
            sets[split], windows = encode_windows(questions, arguments, **options, **more)
            if split != "train":
                sets[split] = self.evaluation_set(split, sets[split], windows)
        # Padding on the right does not move the positions of tokens in labels and windows.
        padding = copy.copy(tokenizer)
        padding.padding_side = "right"
        collator = DataCollatorWithPadding(padding, **arguments.padding(max_length))
        return EncodedTask.of_splits(sets, collator, "f1")

    def evaluation_set(self, split: str, rows: Dataset, windows: Windows) -> EvaluationSet:
        """Return an evaluation set; `rows` are the features of its `windows`."""
        threshold, questions = self.data_args.null_score_diff_threshold, self.sets[split]
        inputs = first(concatenate_datasets(self.inputs[split]), len(questions))
        ids, texts, contexts, true_answers, _ = zip(*questions, strict=True)
        references = dict(zip(ids, true_answers, strict=True))

        @cache_last
        def answers(predictions: tuple[np.ndarray, ...]) -> Answers:
            return answers_from_logits(
                ids,
                contexts,
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
            # The search for the best threshold needs the best spans: `predictions` already depend on `threshold`.
            return squad_v2(best.best, references, best.null_odds, threshold)

        def write(predictions: tuple[np.ndarray, ...], folder: Path, stem: str) -> list[Path]:
            best = answers(predictions)
            contents = {"predictions": best.predictions, "nbest_predictions": best.nbest}
            if self.with_null:
                contents["null_odds"] = best.null_odds
            files = []
            for name, value in contents.items():
                files.append(folder / f"{stem}_{name}.json")
                text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
                files[-1].write_text(text + "\n", encoding="utf-8")
            return files

        def failures(predictions: tuple[np.ndarray, ...]) -> Failures:
            best, probabilities = answers(predictions), {}
            for name, options in best.nbest.items():
                given = [option["probability"] for option in options if option["text"] == best.predictions[name]]
                probabilities[name] = max(given, default=0.0)
            score = squad_v2 if self.with_null else squad_v1
            return answer_failures(dict(zip(ids, texts, strict=True)), references, best.predictions, probabilities, score)

        def table(predictions: tuple[np.ndarray, ...]) -> pa.Table:
            best, scores = answers(predictions), []
            for text, entries in zip(best.predictions.values(), best.nbest.values(), strict=True):
                scores.append(next(round(entry["probability"], 6) for entry in entries if entry["text"] == text))
            gold = [*true_answers] if self.has_answers(split) else None
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
    """Encode questions as windows, in order; return the features and, if `offsets`, the `Windows` to read answers from.

    If `positions`, the features have start_positions and end_positions: in windows that contain the first answer, its first
    and last token; in all other windows, the position of [CLS].
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
            f"--max_seq_length {max_length} must leave more than --doc_stride {doc_stride} tokens for the context, but the "
            f"shortest question of {source} has {min(map(len, tokens))} tokens: give a smaller --doc_stride or a larger "
            "--max_seq_length"
        )
    if too_long:
        logger.warning(
            f"{source}: ignoring {len(too_long)} questions that are too long: a window of --max_seq_length {max_length} "
            f"must have more than --doc_stride {doc_stride} tokens left for the context (the first question is "
            f"{questions[too_long[0]].id!r} with {len(tokens[too_long[0]])} tokens)"
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
                f"{source}: no window contains the whole answer of {len(cut)} questions, so they are labelled as having no "
                f"answer (the first is {questions[cut[0]].id!r}); a larger --doc_stride may help"
            )
    if not offsets:
        return encoded.remove_columns(["example", "null"]), None
    first, last = table["first"][:], table["last"][:]
    windows = Windows(examples, null, np.cumsum([0, *map(len, first)]), np.concatenate(first), np.concatenate(last))
    return encoded.remove_columns(["example", "null", "first", "last"]), windows


def encode_batch(
    batch: dict[str, list], *, tokenizer, max_length: int, doc_stride: int, offsets: bool, positions: bool
) -> dict[str, list]:
    """Encode questions as windows; the question comes first if the tokenizer pads on the right, else the context."""
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
    # Computed once for each context, because several questions share one.
    edges = {context: word_edges(context) for context in {*batch["context"]}}
    windows = []
    for row, window in zip(encoding["overflow_to_sample_mapping"], encoding.encodings, strict=True):
        is_context = np.array(window.sequence_ids, dtype=object) == int(question_first)
        ahead, back = edges[batch["context"][row]]
        characters = np.where(is_context[:, None], np.array(window.offsets), 0)
        # White space in a token, as in SentencePiece vocabularies, does not belong to an answer.
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
    """Return, for each position of a text, where the next non-space character starts, and where the previous one ends."""
    is_space = np.array([character.isspace() for character in text], dtype=bool)
    places = np.arange(len(text))
    ahead = np.minimum.accumulate(np.append(np.where(is_space, len(text), places), len(text))[::-1])[::-1]
    back = np.maximum.accumulate(np.append(0, np.where(is_space, 0, places + 1)))
    return ahead, back


def cls_position(window: Any, cls_token_id: int | None) -> int:
    """Return the position of [CLS] (anywhere in the window), or of the first non-padding token if there is no [CLS]."""
    real = np.array(window.attention_mask) == 1
    is_cls = real & (np.array(window.ids) == cls_token_id) & np.array([part is None for part in window.sequence_ids])
    if not is_cls.any():
        is_cls = real
    return int(np.argmax(is_cls))


def answer_tokens(first: np.ndarray, last: np.ndarray, begin: int, end: int) -> tuple[int, int] | None:
    """Return the first and last token of the characters [begin, end); None if the window does not contain all of them."""
    tokens = np.flatnonzero(first < last)
    if begin < 0 or not len(tokens) or first[tokens[0]] > begin or last[tokens[-1]] < end:
        return None
    start, stop = tokens[last[tokens] > begin][0], tokens[first[tokens] < end][-1]
    if start > stop:
        return None
    return int(start), int(stop)


TASK = (QuestionAnsweringData, QuestionAnsweringArguments)
