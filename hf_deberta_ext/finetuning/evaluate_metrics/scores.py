# SPDX-License-Identifier: Apache-2.0
"""One metric, which the config names: accuracy, f1, macro_f1, micro_f1, matthews_correlation, pearson or spearmanr."""

from typing import Any

import datasets
import evaluate

from hf_deberta_ext.finetuning.metrics import METRICS, compute

__all__ = ["Scores"]


class Scores(evaluate.Metric):
    """predictions and references: labels (integers), numbers for pearson and spearmanr, lists of 0 and 1 for micro_f1."""

    @property
    def name(self) -> str:
        """What `evaluate.combine` tells results of the same name apart by."""
        return self.config_name

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in METRICS:
            raise ValueError(f"name a metric, one of {', '.join(METRICS)}; got {self.config_name!r}")
        # An integer column would cut 0.9 down to 0 without a word; so it is an error.
        value = datasets.Value("float64")
        feature = datasets.Sequence(value) if self.config_name == "micro_f1" else value
        return evaluate.MetricInfo(
            description=__doc__ or "",
            citation="",
            inputs_description=self.__doc__ or "",
            features=datasets.Features({"predictions": feature, "references": feature}),
        )

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        return compute(self.config_name, predictions, references)
