# SPDX-License-Identifier: Apache-2.0
"""SuperGLUE: BoolQ, CB, MultiRC, ReCoRD, RTE, WiC and WSC as text classification, COPA as multiple choice.

Inputs of the tasks:

- MultiRC: paragraph | question and answer; each answer is classified as correct or not.
- ReCoRD: passage | query with an entity in its blank; each entity is classified, and the best one answers the query.
- WiC: "word: first sentence" | second sentence. The positions of the word are not used.
- WSC: the text with the noun between # and the pronoun between *.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from ...data.columns import as_numbers, cells, check_cells, check_columns
from ...training.hub_arguments import HubArguments
from ..metrics import TASK_METRICS, compute
from ..task import TaskData
from .glue import KnownTask, glue_task
from .labels import check_logits
from .multiple_choice import MultipleChoiceData
from .question_answering_metrics import record
from .text_classification import Part, TextClassificationArguments, TextClassificationData

__all__ = ["SUPERGLUE", "SuperGlueArguments", "SuperGlueData", "mark_spans", "read_superglue"]

FALSE_TRUE = ("False", "True")
ENTAILMENT = ("entailment", "not_entailment")
BLANK = "@placeholder"


_task = partial(glue_task, dataset="aps/super_glue", texts=True)
# Diagnostic sets without training data, to predict with a model that was fine-tuned on RTE.
_diagnostic = partial(_task, labels=ENTAILMENT, diagnostic=True, max_seq_length=256)

SUPERGLUE: Mapping[str, KnownTask] = {
    "boolq": _task("boolq", ("question", "passage"), FALSE_TRUE, "BoolQ.jsonl", max_seq_length=256),
    "cb": _task("cb", ("premise", "hypothesis"), ("entailment", "contradiction", "neutral"), "CB.jsonl", max_seq_length=256),
    "multirc": _task(
        "multirc", ("paragraph", "question_and_answer"), FALSE_TRUE, "MultiRC.jsonl", max_seq_length=512, metric="f1_a"
    ),
    "record": _task("record", ("passage", "filled_query"), FALSE_TRUE, "ReCoRD.jsonl", max_seq_length=512, metric="f1"),
    "rte": _task("rte", ("premise", "hypothesis"), ENTAILMENT, "RTE.jsonl", max_seq_length=256),
    "wic": _task("wic", ("word_and_sentence1", "sentence2"), FALSE_TRUE, "WiC.jsonl"),
    # The configuration "wsc" has wrong positions of some spans.
    "wsc": _task("wsc.fixed", ("marked_text",), FALSE_TRUE, "WSC.jsonl"),
    "axb": _diagnostic("axb", ("sentence1", "sentence2"), file="AX-b.jsonl", metric="matthews_correlation"),
    "axg": _diagnostic("axg", ("premise", "hypothesis"), file="AX-g.jsonl"),
}
"""Text classification tasks of SuperGLUE, by --task_name."""


class SuperGlueArguments(TextClassificationArguments):
    """Flags of SuperGLUE: those of text classification, but the flags in `refused` (user data, XNLI) raise an error."""

    refused = "validation_share text_columns label_names problem_type language train_language eval_languages".split()


def read_superglue(data_args: TextClassificationArguments, hub: HubArguments | None = None) -> TaskData:
    """Read the data of a SuperGLUE task from the Hub, or from files with the same columns."""
    name = data_args.task_name
    if name not in (*SUPERGLUE, "copa"):
        raise ValueError(f"--task_name must be one of {', '.join(sorted([*SUPERGLUE, 'copa']))}, got {name!r}")
    if flags := [f"--{flag}" for flag in SuperGlueArguments.refused if getattr(data_args, flag)]:
        raise ValueError(f"the text columns, labels and language of {name} are fixed: remove {' and '.join(flags)}")
    if name == "copa":
        if data_args.class_weights or data_args.balanced_sampling:
            raise ValueError("--class_weights and --balanced_sampling need classes, but copa has choices; remove the flags")
        return CopaData(data_args, hub)
    return SuperGlueData(data_args, hub)


class SuperGlueData(TextClassificationData):
    """Data of a SuperGLUE text classification task; see `TextClassificationData`.

    Raises:
        ValueError: if a file, column, cell or label is invalid.
    """

    def known_task(self) -> KnownTask:
        return SUPERGLUE[self.data_args.task_name]

    def examples(self, rows: Dataset, source: str) -> Dataset:
        texts, make = MADE.get(self.name, ((), None))
        if make is not None:
            check_columns(rows, texts, source=source)
            for column in texts:
                check_cells(rows, column, str, source=source)
            rows = make(rows, source)
        return super().examples(rows, source)

    def count(self, rows: Dataset) -> int:
        if self.name == "record":
            return len({*cells(rows, "query")})
        return len(rows)

    def scores(self, part: Part, logits: np.ndarray) -> dict[str, float]:
        if self.name == "record":
            answers = dict(zip(cells(part.rows, "query"), cells(part.rows, "answers"), strict=True))
            return record(self._best_entities(part, logits), answers)
        groups = None
        if self.name == "multirc":
            groups = [(paragraph, question) for paragraph, question, _ in cells(part.rows, "numbers")]
        return compute(TASK_METRICS[self.name], self.labels.predicted(logits), part.labels, groups)

    def write(self, part: Part, set_name: str, logits: np.ndarray, folder: Path, stem: str) -> list[Path]:
        """Write {stem}_predictions.jsonl, or for test sets the file for SuperGLUE's server, in the server's format."""
        rows, predicted = part.rows, self.labels.predicted(logits)
        if self.name == "record":
            lines = answer_lines(self._best_entities(part, logits).items())
        elif self.name == "multirc":
            lines = nested_answers(rows, predicted)
        else:
            shown = self.labels.shown(predicted)
            # The server expects lower case.
            if self.name in ("boolq", "wic"):
                shown = [*map(str.lower, shown)]
            numbers = [*range(len(rows))]
            if "idx" in rows.column_names:
                # .csv files have texts instead of numbers.
                numbers = cells(as_numbers(rows, "idx"), "idx")
            lines = answer_lines(zip(numbers, shown, strict=True))
        file = f"{stem}_predictions.jsonl"
        if part.test:
            file = self.task.files.get(set_name, file)
        return [_write_jsonl(folder / file, lines)]

    def _best_entities(self, part: Part, logits: np.ndarray) -> dict[int, str]:
        """Return {query: entity} with the entity whose logit of "True" minus logit of "False" is largest."""
        false, true = self.labels.order
        best: dict[int, tuple[float, str]] = {}
        logits = check_logits(logits)
        margins = (logits[:, true] - logits[:, false]).tolist()
        for query, entity, margin in zip(cells(part.rows, "query"), cells(part.rows, "entity"), margins, strict=True):
            if query not in best or margin > best[query][0]:
                best[query] = (margin, entity)
        return {query: entity for query, (_, entity) in best.items()}


class CopaData(MultipleChoiceData):
    """COPA as multiple choice; writes the file for SuperGLUE's server."""

    def write(self, answers: Mapping[str, int], folder: Path, stem: str) -> list[Path]:
        if not stem.startswith("predict"):
            return super().write(answers, folder, stem)
        numbers = [int(idx) if idx.isdecimal() else idx for idx in answers]
        return [_write_jsonl(folder / "COPA.jsonl", answer_lines(zip(numbers, answers.values(), strict=True)))]


def _with_texts(rows: Dataset, **columns: list) -> Dataset:
    """Add columns to rows, or replace columns with the same name."""
    return Dataset.from_dict(rows.to_dict() | columns)


def _multirc(rows: Dataset, source: str) -> Dataset:
    paragraphs, questions, answers = (cells(rows, column) for column in ("paragraph", "question", "answer"))
    numbers: list[Any] = []
    if "idx" in rows.column_names:
        check_cells(rows, "idx", dict, source=source)
        numbers = [[idx.get(name) for name in ("paragraph", "question", "answer")] for idx in cells(rows, "idx")]
        for number, three in enumerate(numbers, start=1):
            if None in three:
                raise ValueError(f"row {number} of {source}: idx must have paragraph, question and answer, got {three}")
    else:
        # Rows with the same paragraph and question are answers to one question.
        known: dict[Any, int] = {}
        for answer, texts in enumerate(zip(paragraphs, questions, strict=True)):
            numbers.append([known.setdefault(text, len(known)) for text in (texts[0], texts)] + [answer])
    texts = [f"{question} {answer}" for question, answer in zip(questions, answers, strict=True)]
    return _with_texts(rows, paragraph=paragraphs, question_and_answer=texts, numbers=numbers)


def _record(rows: Dataset, source: str) -> Dataset:
    check_columns(rows, ["entities"], source=source)
    check_cells(rows, "entities", list, source=source)
    all_answers = [()] * len(rows)
    if "answers" in rows.column_names:
        all_answers = cells(rows, "answers")
    # Lists of columns, because a dictionary for each of ReCoRD's million entities takes too much memory.
    columns = {name: [] for name in ("passage", "filled_query", "label", "query", "entity", "answers")}
    for number, (row, answers) in enumerate(zip(rows, all_answers, strict=True)):
        if BLANK not in row["query"] or not row["entities"]:
            raise ValueError(f"row {number + 1} of {source} must have {BLANK} in its query, and at least one entity")
        if not answers and any(all_answers):
            raise ValueError(f"row {number + 1} of {source} has no answers: give queries without answers as --test_file")
        # "@highlight" separates the bullet points at the end of a passage.
        passage = re.sub(r"\s*@highlight\s*", " ", row["passage"]).strip()
        query = number
        if isinstance(row.get("idx"), Mapping):
            query = row["idx"]["query"]
        for entity in dict.fromkeys(row["entities"]):
            label = entity in answers if answers else None
            values = (passage, row["query"].replace(BLANK, entity), label, query, entity, answers or [])
            for column, value in zip(columns.values(), values, strict=True):
                column.append(value)
    return Dataset.from_dict(columns)


def _wic(rows: Dataset, source: str) -> Dataset:
    texts = [f"{word}: {sentence}" for word, sentence in zip(cells(rows, "word"), cells(rows, "sentence1"), strict=True)]
    return _with_texts(rows, word_and_sentence1=texts, sentence2=cells(rows, "sentence2"))


def _wsc(rows: Dataset, source: str) -> Dataset:
    check_columns(rows, ["span1_index", "span2_index"], source=source)
    for column in ("span1_index", "span2_index"):
        rows = as_numbers(rows, column)
        check_cells(rows, column, int, source=source)
    marked = []
    for number, row in enumerate(rows, start=1):
        spans = [(row[f"span{n}_index"], row[f"span{n}_text"], mark) for n, mark in ((1, "#"), (2, "*"))]
        marked.append(mark_spans(row["text"], spans, place=f"row {number} of {source}"))
    return _with_texts(rows, marked_text=marked)


# Tasks with text columns computed from other columns: the source columns, and the function (rows, source) -> rows.
MADE = {
    "multirc": (("paragraph", "question", "answer"), _multirc),
    "record": (("passage", "query"), _record),
    "wic": (("word", "sentence1", "sentence2"), _wic),
    "wsc": (("text", "span1_text", "span2_text"), _wsc),
}


def mark_spans(text: str, spans: Sequence[tuple[int, str, str]], *, place: str = "the text") -> str:
    """Put marks around words of a text: "Mary saw # Ann # ; * she * waved".

    Args:
        spans: (index of the first word, from 0; the words; the mark) of each span. Words are separated by spaces. If the
            words are not at the index, their nearest occurrence is marked, because some published indices are wrong.
    """
    words = text.split()
    plain = [*map(plain_word, words)]
    # In reverse order, so that the marks of the first span are outside if both spans begin at the same word.
    for index, span, mark in reversed(spans):
        target = [*map(plain_word, span.split())]
        places = [n for n in range(len(words) - len(target) + 1) if plain[n : n + len(target)] == target]
        if not places or not target:
            raise ValueError(f"{place} must contain the words {span!r}, got {text!r}")
        start = min(places, key=lambda number: abs(number - index))
        end = start + len(target) - 1
        words[start] = f"{mark} {words[start]}"
        words[end] = f"{words[end]} {mark}"
    return " ".join(words)


def plain_word(word: str) -> str:
    """Lower-case a word; remove punctuation around it and a final "'s", because published spans and texts differ in them."""
    return re.sub(r"(?<=\w)['\u2019]s$", "", re.sub(r"^\W+|\W+$", "", word).lower()) or word


def answer_lines(answers: Iterable[tuple[Any, Any]]) -> list[dict[str, Any]]:
    """Convert pairs (row number, answer) to the objects that SuperGLUE's server expects: {"idx": 0, "label": "True"}."""
    return [dict(idx=idx, label=label) for idx, label in answers]


def nested_answers(rows: Dataset, predicted: np.ndarray) -> list[dict[str, Any]]:
    """Convert predictions of MultiRC to the server's format: one object per paragraph, with the answers to its questions."""
    paragraphs: dict[int, dict[int, list[dict[str, int]]]] = {}
    for (paragraph, question, answer), label in zip(cells(rows, "numbers"), predicted.tolist(), strict=True):
        paragraphs.setdefault(paragraph, {}).setdefault(question, []).append(dict(idx=answer, label=label))
    lines = []
    for paragraph, by_question in paragraphs.items():
        questions = [dict(idx=question, answers=answers) for question, answers in by_question.items()]
        lines.append(dict(idx=paragraph, passage=dict(questions=questions)))
    return lines


def _write_jsonl(file: Path, lines: Sequence[Mapping[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return file


TASK = (read_superglue, SuperGlueArguments)
