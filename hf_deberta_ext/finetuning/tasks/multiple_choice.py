# SPDX-License-Identifier: Apache-2.0
"""Multiple choice: RACE, SWAG, CODAH, C3, COPA and their like, with any number of choices, for any multiple choice model.

A choice is a pair of segments, [CLS] context [SEP] question and choice [SEP], and the context alone is cut where a pair is
too long. A batch has as many choices as its longest row: the others repeat their first choice there, which no loss and no
answer counts.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, concatenate_datasets
from scipy.special import softmax
from torch.nn import functional
from transformers import AutoModelForMultipleChoice, DataCollatorWithPadding, PretrainedConfig, PreTrainedTokenizerBase

from ...data.columns import first
from ...data.files import FLAGS
from ...training.flags import option
from ...training.hub_arguments import HubArguments
from ..arguments import DataArguments
from ..baselines import MAJORITY
from ..input_lengths import longest_input
from ..metrics import grouped_accuracy
from ..prediction_tables import prediction_table
from ..task import EncodedTask, EvaluationSet, TaskData, two_outputs
from .labels import check_logits
from .multiple_choice_formats import LETTERS, ChoiceColumns, choice_rows, known_columns, race_level, read_raw_race
from .splits import SPLITS, HubData, read_splits

__all__ = ["MultipleChoiceArguments", "MultipleChoiceData", "choice_loss", "masked_answers"]

HUB = {
    "race": HubData("ehovy/race", "all"),
    "swag": HubData("allenai/swag", "regular"),
    "codah": HubData("jaredfern/codah", "fold_0"),
    "c3": HubData("clue/clue", "c3"),
    "copa": HubData("aps/super_glue", "copa"),
}
ABSENT = -100


@dataclass
class MultipleChoiceArguments(DataArguments):
    """Flags of multiple choice. Without them the columns are those of a known data set."""

    context_column: str | None = option(None, "the column of the text that your own questions are about; it is cut if long")
    question_column: str | None = option(None, "the column of the question, which stands before each choice")
    choice_columns: list[str] = option(
        list, "the column with the list of choices (of csv: a JSON list), or one column for each choice"
    )
    label_column: str | None = option(None, "the column of the right choice: its number from 0, or its letter")

    def __post_init__(self):
        super().__post_init__()
        texts = self.context_column or self.question_column
        if bool(texts) != bool(self.choice_columns):
            raise ValueError("--choice_columns needs --context_column or --question_column, or both, and these need it")
        columns = [*self.choice_columns, *filter(None, (self.context_column, self.question_column, self.label_column))]
        if twice := next((column for column in columns if columns.count(column) > 1), None):
            raise ValueError(f"the column {twice!r} is named twice: text, choices and label must be apart")


class MultipleChoiceCollator:
    """Rows -> batch of [B, C, N] inputs, C = most choices of a row, N = longest pair.

    A row of fewer choices repeats its first one. `labels` [B] are the right choices; where rows hold a list of 0 and 1 in
    their place, `labels` [B, C] are these, and -100 for choices that are not there: see `choice_loss`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, **padding: Any):
        """Take arguments of transformers' `DataCollatorWithPadding`."""
        self.pad = DataCollatorWithPadding(tokenizer, **padding)

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        names = rows[0].keys() & self.pad.tokenizer.model_input_names
        C = max(len(row["input_ids"]) for row in rows)
        pairs = []
        for row in rows:
            count = len(row["input_ids"])
            for choice in [*range(count), *[0] * (C - count)]:
                pairs.append({name: row[name][choice] for name in names})
        # [B * C, N] -> [B, C, N]
        batch = {name: values.unflatten(0, (len(rows), C)) for name, values in self.pad(pairs).items()}
        if "labels" in rows[0]:
            labels = [row["labels"] for row in rows]
            if isinstance(labels[0], Sequence):
                labels = [[*choices, *[ABSENT] * (C - len(choices))] for choices in labels]
            batch["labels"] = torch.tensor(labels)
        return batch


def choice_loss(outputs: Any, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean over the rows of the cross-entropy of those choices that are there.

    Args:
        outputs: of a multiple choice model: logits [B, C].
        labels (`torch.LongTensor`): [B, C], 1 = the right choice, 0 = another one, -100 = not there.
    """
    logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return functional.cross_entropy(logits.masked_fill(labels == ABSENT, -torch.inf), labels.argmax(-1))


def masked_answers(logits: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """Return the best choice of each row among those that are there, [n] ints.

    Args:
        logits (`np.ndarray`): [n, C].
        counts: [n], how many choices each row has.
    """
    logits = check_logits(np.asarray(logits, dtype=np.float64))
    exists = np.arange(logits.shape[1]) < np.asarray(counts)[:, None]
    return np.where(exists, logits, -np.inf).argmax(-1)


class MultipleChoiceData(TaskData):
    """Questions with their choices; see `TaskData`.

    Read from the Hub (--task_name race, swag, codah, c3 or copa, or --dataset_name) or from files in the form of one of
    them, whose columns tell; others are named by --choice_columns and its like. Folders of RACE's raw release are read, too.
    Whether an article of RACE is of a middle or a high school, its example_id says, or else the file's name, its folder's,
    or the configuration.

    Args:
        arguments (`DataArguments`): flags; those of `MultipleChoiceArguments` count as far as they are there.
        hub (`HubArguments`, *optional*): those of downloads.
    Raises:
        ValueError: the data cannot be had, or something in it is wrong: it is named with its row.
    """

    pipeline = "multiple-choice"
    auto_class = AutoModelForMultipleChoice
    metric = "accuracy"

    def __init__(self, arguments: DataArguments, hub: HubArguments | None = None):
        if not isinstance(arguments, MultipleChoiceArguments):
            names = [flag.name for flag in dataclasses.fields(MultipleChoiceArguments) if hasattr(arguments, flag.name)]
            arguments = MultipleChoiceArguments(**{name: getattr(arguments, name) for name in names})
        self.arguments, self.name = arguments, arguments.task_name or self.pipeline
        self.inputs: dict[str, list[Dataset]] = {split: [] for split in SPLITS}
        # The choices in the files of answers; None = their numbers, from 0.
        self.answer_names = LETTERS if arguments.task_name == "race" else None
        sets, self.dataset = read_splits(arguments, hub, HUB, self.from_file, self.from_hub)
        limits = arguments.limits
        self.set_questions({split: [*chain.from_iterable(rows)][: limits[split]] for split, rows in sets.items()})

    def set_questions(self, questions: Mapping[str, Sequence[Mapping[str, Any]]]):
        """Set the questions of "train", "validation" and "test", as `choice_rows` returns them."""
        self.questions = {split: checked_questions(rows, split) for split, rows in questions.items()}
        self.num_train, self.num_evaluation = (len(self.questions.get(split, ())) for split in ("train", "validation"))
        counts = {len(row["choices"]) for rows in self.questions.values() for row in rows}
        self.loss = None
        if len(counts) > 1:
            # With one number of choices the model's own loss is the loss.
            self.loss = choice_loss

    def from_file(self, file: Path, split: str) -> list[dict[str, Any]]:
        """Return the questions of a file, or of a folder of RACE."""
        rows = read_raw_race(file, source=FLAGS[split]) if file.is_dir() else self.arguments.read(file, FLAGS[split])
        return self.from_rows(rows, f"{FLAGS[split]} {file.name}", split, race_level(str(file)))

    def from_hub(self, rows: Dataset, place: str, split: str) -> list[dict[str, Any]]:
        """Return the questions of a split."""
        rows = first(rows, self.arguments.limits[split])
        return self.from_rows(rows, place, split, race_level(self.arguments.dataset_config_name))

    def from_rows(self, rows: Dataset, place: str, split: str, level: str | None) -> list[dict[str, Any]]:
        """Return the questions of rows, whose columns are named by flags or known."""
        arguments = self.arguments
        self.inputs[split].append(rows)
        if arguments.choice_columns:
            columns = ChoiceColumns(arguments.choice_columns, arguments.context_column, arguments.question_column)
        else:
            columns = known_columns(rows, source=place)
        if columns.by_article:
            self.answer_names = LETTERS
        if arguments.label_column is not None:
            columns = dataclasses.replace(columns, label=arguments.label_column, by_text=False)
        has_flags = arguments.choice_columns or arguments.label_column
        columns = dataclasses.replace(columns, needs_label=bool(has_flags) and split != "test")
        return choice_rows(rows, columns, source=place, level=level)

    @property
    def label_counts(self) -> dict[str, int]:
        """Return the number of training questions of each answer, a letter or the number of a choice."""
        counts = Counter(row["label"] for row in self.questions.get("train", ()))
        return {str(self.shown(label)): counts[label] for label in sorted(counts)}

    def shown(self, answer: int) -> str | int:
        """Return the letter of an answer, or its number where answers have none."""
        return self.answer_names[answer] if self.answer_names else answer

    @cached_property
    def baselines(self) -> dict[str, dict[str, float]]:
        """Return the metrics of the commonest answer of the training data for every question."""
        train, evaluated = self.questions.get("train"), self.questions.get("validation")
        if not train or not evaluated:
            return {}
        [(answer, _)] = Counter(row["label"] for row in train).most_common(1)
        labels, groups = ([row[name] for row in evaluated] for name in ("label", "group"))
        return {MAJORITY: grouped_accuracy([answer] * len(labels), labels, groups)}

    def config_fields(self) -> dict[str, Any]:
        # The head scores one choice at a time and has no labels.
        return two_outputs() | dict(problem_type=None)

    def encode(self, tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig) -> EncodedTask:
        """Return the features of all sets."""

        arguments = self.arguments
        max_length = longest_input(tokenizer, config, arguments.max_seq_length, default=512)
        sets = {}
        for split, questions in self.questions.items():
            rows = Dataset.from_list(questions)
            if any(row["label"] is None for row in questions):
                rows = rows.remove_columns("label")
            options = dict(tokenizer=tokenizer, max_length=max_length, has_one_count=self.loss is None)
            sets[split] = arguments.tokenise(rows, encode_pairs, split, **options)
            if split != "train":
                inputs = concatenate_datasets(self.inputs[split])
                sets[split] = self.evaluation_set(sets[split], questions, first(inputs, len(questions)))
        collator = MultipleChoiceCollator(tokenizer, **arguments.padding(max_length))
        return EncodedTask.of_splits(sets, collator, self.metric, self.loss)

    def evaluation_set(self, rows: Dataset, questions: Sequence[Mapping[str, Any]], inputs: Dataset) -> EvaluationSet:
        """Return the set of `questions`, whose features are `rows`, and which were read from `inputs`."""
        counts = [len(row["choices"]) for row in questions]

        def metrics(predictions, labels):
            labels, groups = ([row[name] for row in questions] for name in ("label", "group"))
            return grouped_accuracy(masked_answers(predictions, counts), labels, groups)

        def write(predictions, folder, stem):
            answers = masked_answers(predictions, counts).tolist()
            return self.write({row["id"]: answer for row, answer in zip(questions, answers, strict=True)}, folder, stem)

        def table(predictions):
            answers = masked_answers(predictions, counts).tolist()
            gold = [None if row["label"] is None else self.shown(row["label"]) for row in questions]
            rows = zip(predictions, counts, answers, strict=True)
            scores = [softmax(logits[:count].astype(np.float64))[answer].round(6) for logits, count, answer in rows]
            return prediction_table(inputs, predicted=[*map(self.shown, answers)], gold=gold, probability=scores)

        return EvaluationSet(rows, metrics if "labels" in rows.column_names else None, write, len(questions), table=table)

    def write(self, answers: Mapping[str, int], folder: Path, stem: str) -> list[Path]:
        """Write `{stem}_answers.json` and .tsv: id and answer of each question, a letter (RACE) or the number of a choice.

        Args:
            answers (`dict[str, int]`): by the id of the question, in the order of the data.
        """
        answers = {name: self.shown(answer) for name, answer in answers.items()}
        files = [Path(folder, f"{stem}_answers.json"), Path(folder, f"{stem}_answers.tsv")]
        files[0].write_text(json.dumps(answers, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        files[1].write_text("".join(f"{name}\t{answer}\n" for name, answer in answers.items()), encoding="utf-8")
        return files


def checked_questions(questions: Sequence[Mapping[str, Any]], split: str) -> list[dict[str, Any]]:
    """Return the questions of a set, equal ids of which are numbered."""
    totals, counts = Counter(row["id"] for row in questions), Counter()
    checked = []
    for number, row in enumerate(questions, start=1):
        name, choices, label = row["id"], row["choices"], row["label"]
        place = f"row {number} of the data of {FLAGS[split]} ({name})"
        checked.append(dict(row) | {"id": name if totals[name] == 1 else f"{name}-{counts[name]}"})
        counts[name] += 1
        if len(choices) < 2:
            raise ValueError(f"{place} has {len(choices)} choices, it must have two or more")
        if label is None and split != "test":
            raise ValueError(f"{place} has no label; rows without are for --test_file")
    return checked


def encode_pairs(
    batch: Mapping[str, list], *, tokenizer: PreTrainedTokenizerBase, max_length: int, has_one_count: bool
) -> dict[str, list]:
    """Return the features of questions: for each a list of pairs, of context and choice."""
    choices = [*chain.from_iterable(batch["choices"])]
    ends = [*accumulate(map(len, batch["choices"]), initial=0)]

    def by_row(values: Sequence[Any]) -> list[Sequence[Any]]:
        return [values[start:end] for start, end in pairwise(ends)]

    special = tokenizer.num_special_tokens_to_add(pair=True)
    tokens = by_row(tokenizer(choices, add_special_tokens=False)["input_ids"])
    contexts: list[str] = []
    for name, context, row in zip(batch["id"], batch["context"], tokens, strict=True):
        lengths = [*map(len, row)]
        # One token of the context at the least.
        needed = max(lengths) + special + bool(context)
        if needed > max_length:
            raise ValueError(
                f"{name}: its question with choice {lengths.index(max(lengths)) + 1} needs {needed} tokens, special ones "
                "and one of the context with it. Questions and choices are never cut: give --max_seq_length "
                f"{needed} or more (it is {max_length}), and a model that takes as many"
            )
        contexts += [context] * len(row)
    encoding = tokenizer(contexts, choices, truncation="only_first", max_length=max_length)
    features = {name: by_row(values) for name, values in encoding.items()}
    features["length"] = [max(map(len, row)) for row in features["input_ids"]]
    if "label" in batch:
        features["labels"] = batch["label"]
        if not has_one_count:
            features["labels"] = []
            for label, row in zip(batch["label"], tokens, strict=True):
                features["labels"].append([int(number == label) for number in range(len(row))])
    return features


TASK = (MultipleChoiceData, MultipleChoiceArguments)
