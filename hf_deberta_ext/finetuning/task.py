# SPDX-License-Identifier: Apache-2.0
"""Interface of a fine-tuning task: data that is read and checked first, then encoded for a tokenizer and a model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from datasets import Dataset
from transformers import PretrainedConfig, PreTrainedTokenizerBase

if TYPE_CHECKING:
    # It imports scikit-learn.
    from .failures import Failures

__all__ = ["EncodedTask", "EvaluationSet", "TaskData", "label_fields", "two_outputs"]


@dataclass(frozen=True)
class EvaluationSet:
    """Rows to evaluate or predict on.

    Args:
        rows (`Dataset`): columns that the model's forward takes, labels among them where there are any.
        metrics (`Callable`, *optional*): (predictions, labels), as in `EvalPrediction` and in the order of `rows` -> metrics
            by name, without a prefix; None where the data has no labels.
        write (`Callable`): (predictions, folder, stem) -> the files that it wrote there; `stem` begins their names: "eval",
            "predict", or these with the name of the set ("eval_mm").
        examples (`int`): how many examples the rows are, where an example is several rows (windows).
        failures (`Callable`, *optional*): predictions -> the `Failures` of the model; called where there are metrics.
        table (`Callable`, *optional*): predictions -> the result of `prediction_table`, a row for each example.
    """

    rows: Dataset
    metrics: Callable[[Any, Any], dict[str, float]] | None
    write: Callable[[Any, Path, str], list[Path]]
    examples: int
    failures: "Callable[[Any], Failures] | None" = None
    table: Callable[[Any], pa.Table] | None = None


@dataclass(frozen=True)
class EncodedTask:
    """Everything that a Trainer needs of a task.

    Args:
        train (`Dataset`, *optional*): rows to train on.
        evaluation, test (`dict[str, EvaluationSet]`): by name, "" for the main one: its metrics are "eval_accuracy",
            those of "mm" "eval_mm_accuracy".
        collator (`Callable`): rows -> batch, for all sets.
        metric (`str`): the one that says which checkpoint is best, without a prefix; higher is better.
        loss (`Callable`, *optional*): (outputs, labels) -> mean loss of a batch, in place of the model's own.
        balanced_sampling (`bool`): draw training rows so that all classes are equally frequent.
    """

    train: Dataset | None
    evaluation: Mapping[str, EvaluationSet]
    test: Mapping[str, EvaluationSet]
    collator: Callable[[list[dict[str, Any]]], dict[str, Any]]
    metric: str
    loss: Callable[..., Any] | None = None
    balanced_sampling: bool = False

    @classmethod
    def of_splits(cls, sets: Mapping[str, Any], *options: Any) -> "EncodedTask":
        """Return a task with one set of each kind: "train" (rows), "validation" and "test" (`EvaluationSet`), as far as
        there are; `options` are collator, metric and loss."""
        evaluation, test = ({"": sets[split]} if split in sets else {} for split in ("validation", "test"))
        return cls(sets.get("train"), evaluation, test, *options)


class TaskData:
    """The data of a task, read and checked: whatever is wrong with it was raised as a ValueError when it was made.

    Attributes:
        name (`str`): "sst2", "squad_v2", ..., or "text-classification" and the like for a user's own files.
        pipeline (`str`): the Hub's name of the kind of task ("text-classification", "question-answering", ...).
        auto_class: the Auto class whose models do it.
        dataset (`str`): what it was read from: a Hub id, or names of files without their folders; for the model card.
        num_train, num_evaluation (`int`): examples.
        text_columns (`tuple[str]`): names of the columns of texts, where a model card shows them.
        baselines (`dict[str, dict[str, float]]`): metrics of classifiers without pre-training, by their name.
        label_counts (`dict[str, int]`): number of training examples of each label.
    """

    name: str
    pipeline: str
    auto_class: Any
    dataset: str
    num_train: int
    num_evaluation: int
    text_columns: Sequence[str] = ()
    baselines: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    label_counts: Mapping[str, int] = MappingProxyType({})

    def use_config(self, config: PretrainedConfig):
        """Take over what the checkpoint knows of the labels; refuse other labels where nothing is trained on."""

    def config_fields(self) -> dict[str, Any]:
        """Return fields of the configuration: num_labels, id2label, label2id, problem_type, as far as the task has them."""
        raise NotImplementedError

    def encode(self, tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig) -> EncodedTask:
        """Return the features of all sets; a tokenizer that cannot serve the task is a ValueError."""
        raise NotImplementedError


def label_fields(names: Sequence[str]) -> dict[str, Any]:
    """Return fields of a configuration for labels by their names."""
    id2label = dict(enumerate(names))
    return dict(num_labels=len(names), id2label=id2label, label2id={name: number for number, name in id2label.items()})


def two_outputs() -> dict[str, Any]:
    """Return fields of a configuration for heads whose outputs are no labels: transformers' own, which replace the labels
    that the checkpoint has learned for another task."""
    return label_fields(["LABEL_0", "LABEL_1"])
