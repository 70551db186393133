# SPDX-License-Identifier: Apache-2.0
"""Precision, recall and F1 of entities, over all and for each type, as seqeval counts them by default."""

from typing import Any

import datasets
import evaluate

from hf_deberta_ext.finetuning.tasks.entity_metrics import entity_scores

__all__ = ["Entities"]


class Entities(evaluate.Metric):
    """predictions and references: for each sentence a list of tags, one a word, such as "B-PER", "I-PER", "O"."""

    def _info(self) -> evaluate.MetricInfo:
        tags = datasets.Sequence(datasets.Value("string"))
        return evaluate.MetricInfo(
            description=__doc__ or "",
            citation="",
            inputs_description=self.__doc__ or "",
            features=datasets.Features({"predictions": tags, "references": tags}),
        )

    def _compute(self, predictions: Any, references: Any) -> dict[str, Any]:
        return entity_scores(predictions, references)
