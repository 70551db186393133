# SPDX-License-Identifier: Apache-2.0
"""Accuracy of multiple choice; with the config "groups" that of each group as well: RACE's middle and high."""

from typing import Any

import datasets
import evaluate
from datasets import Value

from hf_deberta_ext.finetuning.metrics import accuracy, grouped_accuracy

__all__ = ["MultipleChoice"]


class MultipleChoice(evaluate.Metric):
    """predictions and references: the number of the choice; with the config "groups" also groups: the name of the group."""

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in ("default", "groups"):
            raise ValueError(f"multiple_choice has the config 'groups' or none, got {self.config_name!r}")
        # An integer column would cut 0.9 down to 0 without a word; so it is an error.
        features = {"predictions": Value("float64"), "references": Value("float64")}
        if self.config_name == "groups":
            features["groups"] = Value("string")
        return evaluate.MetricInfo(
            description=__doc__ or "",
            citation="",
            inputs_description=self.__doc__ or "",
            features=datasets.Features(features),
        )

    def _compute(self, predictions: Any, references: Any, groups: Any = None) -> dict[str, float]:
        if groups is None:
            return {"accuracy": accuracy(predictions, references)}
        return grouped_accuracy(predictions, references, groups)
