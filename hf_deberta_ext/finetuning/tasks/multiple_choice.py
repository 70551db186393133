# SPDX-License-Identifier: Apache-2.0
"""Multiple choice (RACE, SWAG, CODAH, C3, COPA, user data) with any number of choices and any multiple choice model.

A choice is encoded as a pair of segments, [CLS] context [SEP] question and choice [SEP]; only the context is truncated. In a
batch, rows with fewer choices than others are filled up with copies of their first choice, which the loss and the
predictions ignore.
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
import pyarrow as pa
import torch
from datasets import Dataset, concatenate_datasets
from scipy.special import softmax
from torch.nn import functional
from transformers import AutoModelForMultipleChoice, DataCollatorWithPadding, PretrainedConfig, PreTrainedTokenizerBase

from ...data.columns import cells, first
from ...data.files import FLAGS
from ...training.flags import option
from ...training.hub_arguments import HubArguments
from ..arguments import DataArguments
from ..baselines import MAJORITY
from ..input_lengths import longest_input
from ..metrics import grouped_accuracy
from ..prediction_tables import prediction_table
from ..task import EncodedTask, EvaluationSet, TaskData, cache_last, two_outputs
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
    """Flags of multiple choice; if no flag names columns, the data must have the columns of a known data set."""

    context_column: str | None = option(None, "column of the text that the questions are about; truncated if too long")
    question_column: str | None = option(None, "column of the question, which is put in front of each choice")
    choice_columns: list[str] = option(
        list, "column with the list of choices (csv: a JSON list), or one column for each choice"
    )
    label_column: str | None = option(None, "column of the correct choice: its number, from 0, or its letter")

    def __post_init__(self):
        super().__post_init__()
        texts = self.context_column or self.question_column
        if bool(texts) != bool(self.choice_columns):
            raise ValueError("--choice_columns must be given together with --context_column or --question_column")
        columns = [*self.choice_columns, *filter(None, (self.context_column, self.question_column, self.label_column))]
        if twice := next((column for column in columns if columns.count(column) > 1), None):
            raise ValueError(f"text, choices and label must be in different columns, got {twice!r} twice")


class MultipleChoiceCollator:
    """Collate rows to inputs [B, C, N], with C the largest number of choices and N the longest pair.

    A row with fewer choices repeats its first choice. `labels` are the numbers of the correct choices, [B]. If the labels of
    rows are lists of 0 and 1, `labels` are [B, C], with -100 for missing choices: see `choice_loss`.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): tokenizer that pads.
        padding: other arguments of transformers' `DataCollatorWithPadding`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, **padding: Any):
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
    """Compute the mean cross-entropy over the rows, ignoring missing choices.

    Args:
        outputs: outputs of a multiple choice model, with logits [B, C].
        labels (`torch.LongTensor`): [B, C], 1 = correct choice, 0 = other choice, -100 = missing choice.
    """
    logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return functional.cross_entropy(logits.masked_fill(labels == ABSENT, -torch.inf), labels.argmax(-1))


def masked_logits(logits: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """Return the logits [n, C] in float64, -inf for missing choices; `counts` [n] are the numbers of choices of the rows."""
    logits = check_logits(np.asarray(logits, dtype=np.float64))
    exists = np.arange(logits.shape[1]) < np.asarray(counts)[:, None]
    return np.where(exists, logits, -np.inf)


def masked_answers(logits: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """Return the best choice of each row, [n] ints, ignoring missing choices; see `masked_logits` for the arguments."""
    return masked_logits(logits, counts).argmax(-1)


class MultipleChoiceData(TaskData):
    """Questions with choices; see `TaskData`.

    Reads data sets on the Hub (--task_name race, swag, codah, c3 or copa, or --dataset_name), files, and folders of RACE's
    raw release. Files have the columns of one of these five data sets, unless --choice_columns and related flags name other
    columns. The school of a RACE article (middle or high) is read from its example_id, or else from the name of the file,
    folder or configuration.

    Raises:
        ValueError: if the data cannot be read or is invalid; the message names the row.
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
        # Names of the choices in answer files: letters, or numbers from 0 (None).
        self.answer_names = LETTERS if arguments.task_name == "race" else None
        sets, self.dataset = read_splits(arguments, hub, HUB, self.from_file, self.from_hub)
        limits = arguments.limits
        self.set_questions({split: rows[: limits[split]] for split, rows in sets.items()})

    def set_questions(self, questions: Mapping[str, Sequence[Mapping[str, Any]]]):
        """Check and set the questions of "train", "validation" and "test", which are in the format of `choice_rows`."""
        self.questions = {split: checked_questions(rows, split) for split, rows in questions.items()}
        self.num_train, self.num_evaluation = (len(self.questions.get(split, ())) for split in ("train", "validation"))
        counts = {len(row["choices"]) for rows in self.questions.values() for row in rows}
        self.loss = None
        if len(counts) > 1:
            # The model's own loss needs the same number of choices in all rows.
            self.loss = choice_loss

    def from_file(self, file: Path, split: str) -> list[dict[str, Any]]:
        """Read the questions of a file, or of a folder with RACE's raw release."""
        rows = read_raw_race(file, source=FLAGS[split]) if file.is_dir() else self.arguments.read(file, FLAGS[split])
        return self.from_rows(rows, f"{FLAGS[split]} {file.name}", split, race_level(str(file)))

    def from_hub(self, rows: Dataset, place: str, split: str) -> list[dict[str, Any]]:
        """Return the questions in the rows of a split on the Hub."""
        rows = first(rows, self.arguments.limits[split])
        return self.from_rows(rows, place, split, race_level(self.arguments.dataset_config_name))

    def from_rows(self, rows: Dataset, place: str, split: str, level: str | None) -> list[dict[str, Any]]:
        """Convert rows to questions; the columns are named by flags, or are those of a known data set."""
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
        """Return the number of training questions by correct answer (letter or number of the choice)."""
        counts = Counter(row["label"] for row in self.questions.get("train", ()))
        return {str(self.shown(label)): counts[label] for label in sorted(counts)}

    def shown(self, answer: int) -> str | int:
        """Return the letter of an answer, or its number if answers have no letters."""
        return self.answer_names[answer] if self.answer_names else answer

    @cached_property
    def baselines(self) -> dict[str, dict[str, float]]:
        """Return the metrics of always predicting the most common answer of the training data."""
        train, evaluated = self.questions.get("train"), self.questions.get("validation")
        if not train or not evaluated:
            return {}
        [(answer, _)] = Counter(row["label"] for row in train).most_common(1)
        labels, groups = ([row[name] for row in evaluated] for name in ("label", "group"))
        return {MAJORITY: grouped_accuracy([answer] * len(labels), labels, groups)}

    def config_fields(self) -> dict[str, Any]:
        # The head scores one choice at a time; it has no labels.
        return two_outputs() | dict(problem_type=None)

    def encode(self, tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig) -> EncodedTask:
        """Encode the questions of all sets, with a pair (context, choice) for each choice."""
        arguments = self.arguments
        max_length = longest_input(tokenizer, config, arguments.max_seq_length, default=512)
        sets = {}
        options = dict(tokenizer=tokenizer, max_length=max_length, has_one_count=self.loss is None)
        for split, rows in self.questions.items():
            questions = Dataset.from_list(rows)
            labelled = questions
            if None in cells(questions, "label"):
                labelled = questions.remove_columns("label")
            sets[split] = arguments.tokenise(labelled, encode_pairs, split, **options)
            if split != "train":
                inputs = first(concatenate_datasets(self.inputs[split]), len(questions))
                sets[split] = self.evaluation_set(sets[split], questions, inputs)
        collator = MultipleChoiceCollator(tokenizer, **arguments.padding(max_length))
        return EncodedTask.of_splits(sets, collator, self.metric, self.loss)

    def evaluation_set(self, rows: Dataset, questions: Dataset, inputs: Dataset) -> EvaluationSet:
        """Return the evaluation set of `questions` from the tokenised `rows` and the rows of the data file, `inputs`."""
        counts, labels = [*map(len, cells(questions, "choices"))], cells(questions, "label")

        @cache_last
        def answers(predictions: np.ndarray) -> list[int]:
            return masked_answers(predictions, counts).tolist()

        def metrics(predictions: np.ndarray, _: Any) -> dict[str, float]:
            return grouped_accuracy(answers(predictions), labels, cells(questions, "group"))

        def write(predictions: np.ndarray, folder: Path, stem: str) -> list[Path]:
            return self.write(dict(zip(cells(questions, "id"), answers(predictions), strict=True)), folder, stem)

        def table(predictions: np.ndarray) -> pa.Table:
            chosen = [*map(self.shown, answers(predictions))]
            scores = softmax(masked_logits(predictions, counts), axis=-1).max(-1).round(6)
            gold = [None if label is None else self.shown(label) for label in labels]
            return prediction_table(inputs, predicted=chosen, gold=gold, probability=scores)

        return EvaluationSet(rows, metrics if "labels" in rows.column_names else None, write, len(questions), table=table)

    def write(self, answers: Mapping[str, int], folder: Path, stem: str) -> list[Path]:
        """Write {stem}_answers.json and {stem}_answers.tsv with the answer to each question: letter (RACE) or number."""
        answers = {name: self.shown(answer) for name, answer in answers.items()}
        files = [Path(folder, f"{stem}_answers.json"), Path(folder, f"{stem}_answers.tsv")]
        files[0].write_text(json.dumps(answers, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        files[1].write_text("".join(f"{name}\t{answer}\n" for name, answer in answers.items()), encoding="utf-8")
        return files


def checked_questions(questions: Sequence[Mapping[str, Any]], split: str) -> list[dict[str, Any]]:
    """Check the questions of a set; return them with "-0", "-1", ... appended to ids that occur several times."""
    totals, counts = Counter(row["id"] for row in questions), Counter()
    checked = []
    for number, row in enumerate(questions, start=1):
        name, choices, label = row["id"], row["choices"], row["label"]
        place = f"row {number} of the data of {FLAGS[split]} ({name})"
        checked.append(dict(row) | {"id": name if totals[name] == 1 else f"{name}-{counts[name]}"})
        counts[name] += 1
        if len(choices) < 2:
            raise ValueError(f"{place} must have two or more choices, got {len(choices)}")
        if label is None and split != "test":
            raise ValueError(f"{place} must have a label, got none: give rows without labels as --test_file")
    return checked


def encode_pairs(
    batch: Mapping[str, list], *, tokenizer: PreTrainedTokenizerBase, max_length: int, has_one_count: bool
) -> dict[str, list]:
    """Return the features of questions: a list of encoded pairs (context, choice) for each question."""
    choices = [*chain.from_iterable(batch["choices"])]
    ends = [*accumulate(map(len, batch["choices"]), initial=0)]

    def by_row(values: Sequence[Any]) -> list[Sequence[Any]]:
        return [values[start:end] for start, end in pairwise(ends)]

    special = tokenizer.num_special_tokens_to_add(pair=True)
    tokens = by_row(tokenizer(choices, add_special_tokens=False)["input_ids"])
    contexts: list[str] = []
    for name, context, row in zip(batch["id"], batch["context"], tokens, strict=True):
        lengths = [*map(len, row)]
        # At least one token of the context
        needed = max(lengths) + special + bool(context)
        if needed > max_length:
            raise ValueError(
                f"{name}: the question with choice {lengths.index(max(lengths)) + 1} needs {needed} tokens (including "
                f"special tokens and at least one token of the context), got a limit of {max_length}. Questions and choices "
                f"are not truncated: give --max_seq_length {needed} or more, with a model that accepts this length"
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
