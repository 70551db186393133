# SPDX-License-Identifier: Apache-2.0
"""Exact match and F1 of SQuAD 2.0, in percent, with and without an answer apart, and the best thresholds."""

from typing import Any

import datasets
import evaluate
from datasets import Value

from hf_deberta_ext.finetuning.tasks.question_answering_metrics import by_id, squad_v2

__all__ = ["SquadV2"]


class SquadV2(evaluate.Metric):
    """predictions: {"id", "prediction_text", "no_answer_probability"}; references: {"id", "answers": {"text": [...],
    "answer_start": [...]}}, both lists empty for no answer; compute takes no_answer_threshold (1.0).
    """

    def _info(self) -> evaluate.MetricInfo:
        answers = datasets.Sequence({"text": Value("string"), "answer_start": Value("int32")})
        prediction = {"id": Value("string"), "prediction_text": Value("string"), "no_answer_probability": Value("float64")}
        return evaluate.MetricInfo(
            description=__doc__ or "",
            citation="",
            inputs_description=self.__doc__ or "",
            features=datasets.Features(
                {"predictions": prediction, "references": {"id": Value("string"), "answers": answers}}
            ),
        )

    def _compute(self, predictions: Any, references: Any, no_answer_threshold: float = 1.0) -> dict[str, float]:
        return squad_v2(
            by_id(((row["id"], row["prediction_text"]) for row in predictions), "predictions"),
            by_id(((row["id"], row["answers"]["text"]) for row in references), "references"),
            by_id(((row["id"], row["no_answer_probability"]) for row in predictions), "predictions"),
            no_answer_threshold,
        )
