# SPDX-License-Identifier: Apache-2.0
"""Our metrics as modules of `evaluate`: add, add_batch, compute, several processes, `evaluate.combine`; without a download.

    load_metric("glue", "mrpc").compute(predictions=[0, 1], references=[0, 1])
    evaluate.combine([load_metric("accuracy"), load_metric("macro_f1")])

This file is a script for `evaluate.load` as well, whose config is the name: evaluate.load("<this file>", "glue/mrpc").
"""

from collections.abc import Callable
from functools import partial
from typing import Any

try:
    import datasets
    import evaluate
    from datasets import Sequence, Value
except ImportError as error:
    raise ImportError("metrics as modules need evaluate: pip install 'hf_deberta_ext[train]'") from error

from hf_deberta_ext.finetuning.metrics import METRICS, TASK_METRICS, compute, grouped_accuracy
from hf_deberta_ext.finetuning.tasks.entity_metrics import entity_scores
from hf_deberta_ext.finetuning.tasks.question_answering_metrics import by_id, record, squad_v1, squad_v2

__all__ = ["NAMES", "TaskMetric", "load_metric"]

GLUE = (
    "cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "mnli_matched", "mnli_mismatched", "qnli", "rte", "wnli", "ax", "xnli",
)  # fmt: skip
SUPER_GLUE = ("boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc", "wsc.fixed", "axb", "axg")
# Labels as well: an integer column would truncate a probability of 0.9 to 0 silently, while a float is refused as a label.
NUMBER, TEXT, INDEX = Value("float64"), Value("string"), Value("int64")
NUMBERS = {"predictions": NUMBER, "references": NUMBER}
ANSWERS = {"id": TEXT, "answers": Sequence({"text": TEXT, "answer_start": Value("int32")})}
QUERY = {"passage": INDEX, "query": INDEX}


def _answers(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    return by_id(((row["id"], row["answers"]["text"]) for row in rows), "references")


def _column(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return by_id(((row["id"], row[name]) for row in rows), "predictions")


def _squad(predictions: Any, references: Any) -> dict[str, float]:
    return squad_v1(_column(predictions, "prediction_text"), _answers(references))


def _squad_v2(predictions: Any, references: Any, no_answer_threshold: float = 1.0) -> dict[str, float]:
    probabilities = _column(predictions, "no_answer_probability")
    return squad_v2(_column(predictions, "prediction_text"), _answers(references), probabilities, no_answer_threshold)


def _multirc(predictions: Any, references: Any) -> dict[str, float]:
    groups = [(row["idx"]["paragraph"], row["idx"]["question"]) for row in predictions]
    return compute(TASK_METRICS["multirc"], [row["prediction"] for row in predictions], references, groups)


def _record(predictions: Any, references: Any) -> dict[str, float]:
    texts, answers = (
        by_id(((tuple(row["idx"].values()), row[name]) for row in rows), side)
        for rows, name, side in ((predictions, "prediction_text", "predictions"), (references, "answers", "references"))
    )
    return record(texts, answers)


# Name of a metric or "benchmark/config" -> (features of predictions and references, function of both).
_SCORERS: dict[str, tuple[dict[str, Any], Callable]] = {
    **{name: (NUMBERS, partial(compute, name)) for name in METRICS},
    "micro_f1": ({"predictions": Sequence(NUMBER), "references": Sequence(NUMBER)}, partial(compute, "micro_f1")),
    **{
        f"{benchmark}/{task}": (NUMBERS, partial(compute, TASK_METRICS[task]))
        for benchmark, tasks in (("glue", GLUE), ("super_glue", SUPER_GLUE))
        for task in tasks
    },
    "super_glue/multirc": (
        {
            "predictions": {"idx": dict.fromkeys(("answer", "paragraph", "question"), INDEX), "prediction": NUMBER},
            "references": NUMBER,
        },
        _multirc,
    ),
    "super_glue/record": (
        {"predictions": {"idx": QUERY, "prediction_text": TEXT}, "references": {"idx": QUERY, "answers": Sequence(TEXT)}},
        _record,
    ),
    "multiple_choice": (NUMBERS, partial(compute, "accuracy")),
    "multiple_choice/groups": (NUMBERS | {"groups": TEXT}, grouped_accuracy),
    "entities": ({"predictions": Sequence(TEXT), "references": Sequence(TEXT)}, entity_scores),
    "squad": ({"predictions": {"id": TEXT, "prediction_text": TEXT}, "references": ANSWERS}, _squad),
    "squad_v2": (
        {"predictions": {"id": TEXT, "prediction_text": TEXT, "no_answer_probability": NUMBER}, "references": ANSWERS},
        _squad_v2,
    ),
}
NAMES = tuple(_SCORERS)
"""Names of all metrics, with the config behind a slash."""


class TaskMetric(evaluate.Metric):
    """A metric of `NAMES`, named by its config. Rows are those of `evaluate`'s own modules of the same name: labels
    (integers), numbers, lists of tags, or dictionaries for SQuAD, MultiRC and ReCoRD; compute of squad_v2 takes
    no_answer_threshold (1.0).
    """

    @property
    def name(self) -> str:
        """Prefix by which `evaluate.combine` distinguishes results of the same name."""
        return self.config_name.partition("/")[0]

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in _SCORERS:
            raise ValueError(f"there is no metric {self.config_name!r}; there are {', '.join(NAMES)}")
        features = datasets.Features(_SCORERS[self.config_name][0])
        return evaluate.MetricInfo(
            description=__doc__ or "", citation="", inputs_description=self.__doc__ or "", features=features
        )

    def _compute(self, predictions: Any, references: Any, *groups: Any, **options: Any) -> dict[str, Any]:
        return _SCORERS[self.config_name][1](predictions, references, *groups, **options)


def load_metric(name: str, config: str | None = None, **options: Any) -> evaluate.EvaluationModule:
    """Load a metric of ours by name, or any other from `evaluate`.

    Args:
        name (`str`): "glue", "super_glue", "squad", "squad_v2", "entities", "multiple_choice"; a single metric ("accuracy",
            "f1", "macro_f1", "micro_f1", "matthews_correlation", "pearson", "spearmanr"); or what `evaluate.load` takes.
        config (`str`, *optional*): the task of "glue" and "super_glue"; "groups" for "multiple_choice".
        options: those of `evaluate.Metric`: num_process, process_id, experiment_id, cache_dir, keep_in_memory, ...
    Raises:
        ValueError: the metric is none of ours, and `evaluate` cannot reach it; or there is no such config.
    """
    own_name = name if config is None else f"{name}/{config}"
    if own_name in _SCORERS:
        return TaskMetric(config_name=own_name, **options)
    configs = [candidate.partition("/")[2] for candidate in NAMES if candidate.partition("/")[0] == name]
    if configs:
        choices = ", ".join(choice or "none" for choice in configs)
        raise ValueError(f"the config of {name} must be one of: {choices}; got {config or 'none'}")
    try:
        return evaluate.load(name, config, **options)
    except OSError as error:
        names = ", ".join(sorted({metric.partition("/")[0] for metric in NAMES}))
        raise ValueError(
            f"metric {name!r} is none of ours ({names}), and evaluate.load did not find it: that takes a local "
            f"script, or any metric of the Hub, which needs the network ({error})"
        ) from error
