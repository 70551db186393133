# SPDX-License-Identifier: Apache-2.0
"""The metrics of a SuperGLUE task; the config names it: "boolq", "cb", "copa", "multirc", "record", "wic", "wsc", ..."""

from typing import Any

import datasets
import evaluate
from datasets import Value

from hf_deberta_ext.finetuning.metrics import TASK_METRICS, compute
from hf_deberta_ext.finetuning.tasks.question_answering_metrics import by_id, record

__all__ = ["SuperGlue"]

TASKS = ("boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc", "wsc.fixed", "axb", "axg")


def _query(row: dict[str, Any]) -> tuple[int, int]:
    return row["idx"]["passage"], row["idx"]["query"]


class SuperGlue(evaluate.Metric):
    """predictions and references: labels (integers). As in `evaluate`'s own module, multirc's predictions are
    {"idx": {"paragraph", "question", "answer"}, "prediction": label}; record's are {"idx": {"passage", "query"},
    "prediction_text": text}, and its references {"idx": ..., "answers": [text, ...]}.
    """

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in TASKS:
            raise ValueError(f"name a task of SuperGLUE, one of {', '.join(TASKS)}; got {self.config_name!r}")
        # An integer column would cut 0.9 down to 0 without a word; so it is an error.
        prediction, reference = Value("float64"), Value("float64")
        if self.config_name == "multirc":
            index = {name: Value("int64") for name in ("answer", "paragraph", "question")}
            prediction = {"idx": index, "prediction": Value("float64")}
        elif self.config_name == "record":
            index = {name: Value("int64") for name in ("passage", "query")}
            prediction = {"idx": index, "prediction_text": Value("string")}
            reference = {"idx": index, "answers": datasets.Sequence(Value("string"))}
        return evaluate.MetricInfo(
            description=__doc__ or "",
            citation="",
            inputs_description=self.__doc__ or "",
            features=datasets.Features({"predictions": prediction, "references": reference}),
        )

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        names = TASK_METRICS[self.config_name]
        if self.config_name == "record":
            return record(
                by_id(((_query(row), row["prediction_text"]) for row in predictions), "predictions"),
                by_id(((_query(row), row["answers"]) for row in references), "references"),
            )
        if self.config_name == "multirc":
            groups = [(row["idx"]["paragraph"], row["idx"]["question"]) for row in predictions]
            return compute(names, [row["prediction"] for row in predictions], references, groups)
        return compute(names, predictions, references)
