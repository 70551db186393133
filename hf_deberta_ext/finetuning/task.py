# SPDX-License-Identifier: Apache-2.0
"""Interface of fine-tuning tasks: `TaskData` reads and checks the data, then encodes it for a tokenizer and a model."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from datasets import Dataset
from transformers import PretrainedConfig, PreTrainedTokenizerBase

if TYPE_CHECKING:
    # Imports scikit-learn, which is slow.
    from .failures import Failures

__all__ = ["EncodedTask", "EvaluationSet", "TaskData", "cache_last", "label_fields", "two_outputs"]


@dataclass(frozen=True)
class EvaluationSet:
    """Rows to evaluate or predict.

    Args:
        rows (`Dataset`): encoded inputs of the model's `forward`, and "labels" if the data has labels.
        metrics (`Callable`, *optional*): (predictions, labels) -> metrics by name, without a prefix such as "eval_"; None if
            the data has no labels. Both arguments are for all rows, in the format of `EvalPrediction`.
        write (`Callable`): (predictions, folder, stem) -> paths of the files written to `folder`. File names start with
            `stem`: "eval" or "predict", followed by the name of the set if it is not the main one ("eval_mm").
        examples (`int`): number of examples; an example can have several rows (windows).
        failures (`Callable`, *optional*): predictions -> the model's errors (`Failures`); only called if `metrics` is set.
        table (`Callable`, *optional*): predictions -> result of `prediction_table`, one row for each example.
    """

    rows: Dataset
    metrics: Callable[[Any, Any], dict[str, float]] | None
    write: Callable[[Any, Path, str], list[Path]]
    examples: int
    failures: "Callable[[Any], Failures] | None" = None
    table: Callable[[Any], pa.Table] | None = None


def cache_last(decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap `decode`, so that a call with the same predictions object as the previous call returns the cached result.

    The metrics, files, error analysis and table of an evaluation set all decode the same predictions.
    """
    last: list[Any] = [None, None]

    @functools.wraps(decode)
    def cached(predictions: Any) -> Any:
        if last[0] is not predictions:
            last[:] = predictions, decode(predictions)
        return last[1]

    return cached


@dataclass(frozen=True)
class EncodedTask:
    """Encoded data, collator and metric of a task, as needed by `TaskTrainer`.

    Args:
        train (`Dataset`, *optional*): training rows.
        evaluation, test (`dict[str, EvaluationSet]`): sets by name. The main set is "", with metrics such as
            "eval_accuracy"; a set "mm" has metrics such as "eval_mm_accuracy".
        collator (`Callable`): rows -> batch, for all sets.
        metric (`str`): metric that selects the best checkpoint, without a prefix; higher is better.
        loss (`Callable`, *optional*): (outputs, labels) -> mean loss of a batch; default: the model's loss.
        balanced_sampling (`bool`, defaults to `False`): draw training rows so that all classes are equally frequent.
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
        """Build an `EncodedTask` from `sets` ("train", "validation", "test"; all optional). `options` are the values of the
        other fields: collator, metric, loss and balanced_sampling, in this order."""
        evaluation, test = ({"": sets[split]} if split in sets else {} for split in ("validation", "test"))
        return cls(sets.get("train"), evaluation, test, *options)


class TaskData:
    """Base class for the data of a task; constructors of subclasses read the data, and raise a ValueError if it is invalid.

    The constructors take the flags of the task (`DataArguments`) and of downloads (`HubArguments`, *optional*).

    Attributes:
        name (`str`): "sst2", "squad_v2", ..., or the name of the pipeline for user data.
        pipeline (`str`): name of the task's pipeline on the Hub ("text-classification", "question-answering", ...).
        auto_class: transformers' Auto class for models of the task, such as `AutoModelForTokenClassification`.
        dataset (`str`): source of the data for the model card: a Hub id, or file names without folders.
        num_train, num_evaluation (`int`): number of training and of evaluation examples.
        text_columns (`tuple[str]`): names of the text columns for the model card; empty if the card does not name them.
        baselines (`dict[str, dict[str, float]]`): metrics of baselines without pre-training, by name of the baseline.
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
        """Use the labels of `config` if there is no training data; use only their order if the data has the same labels."""

    def config_fields(self) -> dict[str, Any]:
        """Return the configuration fields that the task sets: any of num_labels, id2label, label2id and problem_type."""
        raise NotImplementedError

    def encode(self, tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig) -> EncodedTask:
        """Encode all sets as inputs of the model; raise a ValueError if the task cannot use the tokenizer."""
        raise NotImplementedError


def label_fields(names: Sequence[str]) -> dict[str, Any]:
    """Return the configuration fields num_labels, id2label and label2id for the names of the labels."""
    id2label = dict(enumerate(names))
    return dict(num_labels=len(names), id2label=id2label, label2id={name: number for number, name in id2label.items()})


def two_outputs() -> dict[str, Any]:
    """Return transformers' default label fields. Tasks without labels use them instead of the checkpoint's label fields."""
    return label_fields(["LABEL_0", "LABEL_1"])
