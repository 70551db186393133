# SPDX-License-Identifier: Apache-2.0
"""The metrics of a GLUE task, or of XNLI; the config names it: "cola", "sst2", "mrpc", ..."""

from typing import Any

import datasets
import evaluate

from hf_deberta_ext.finetuning.metrics import TASK_METRICS, compute

__all__ = ["Glue"]

TASKS = (
    "cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "mnli_matched", "mnli_mismatched", "qnli", "rte", "wnli", "ax", "xnli",
)  # fmt: skip


class Glue(evaluate.Metric):
    """predictions and references: labels (integers), for stsb numbers."""

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in TASKS:
            raise ValueError(f"name a task of GLUE, one of {', '.join(TASKS)}; got {self.config_name!r}")
        # An integer column would cut 0.9 down to 0 without a word; so it is an error.
        value = datasets.Value("float64")
        return evaluate.MetricInfo(
            description=__doc__ or "",
            citation="",
            inputs_description=self.__doc__ or "",
            features=datasets.Features({"predictions": value, "references": value}),
        )

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        return compute(TASK_METRICS[self.config_name], predictions, references)
