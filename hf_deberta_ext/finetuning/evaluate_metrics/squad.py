# SPDX-License-Identifier: Apache-2.0
"""Exact match and F1 of SQuAD 1.1, in percent."""

from typing import Any

import datasets
import evaluate
from datasets import Value

from hf_deberta_ext.finetuning.tasks.question_answering_metrics import by_id, squad_v1

__all__ = ["Squad"]


class Squad(evaluate.Metric):
    """predictions: {"id", "prediction_text"}; references: {"id", "answers": {"text": [...], "answer_start": [...]}}."""

    def _info(self) -> evaluate.MetricInfo:
        answers = datasets.Sequence({"text": Value("string"), "answer_start": Value("int32")})
        return evaluate.MetricInfo(
            description=__doc__ or "",
            citation="",
            inputs_description=self.__doc__ or "",
            features=datasets.Features(
                {
                    "predictions": {"id": Value("string"), "prediction_text": Value("string")},
                    "references": {"id": Value("string"), "answers": answers},
                }
            ),
        )

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        return squad_v1(
            by_id(((row["id"], row["prediction_text"]) for row in predictions), "predictions"),
            by_id(((row["id"], row["answers"]["text"]) for row in references), "references"),
        )
