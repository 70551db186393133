# SPDX-License-Identifier: Apache-2.0
"""Our metrics as modules of `evaluate`: add, add_batch, compute, several processes, `evaluate.combine`; without a download.

    load_metric("glue", "mrpc").compute(predictions=[0, 1], references=[0, 1])
    evaluate.combine([load_metric("accuracy"), load_metric("macro_f1")])

Each file of this folder is a script for `evaluate.load` as well: evaluate.load("<this folder>/glue.py", "mrpc").
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..metrics import METRICS

if TYPE_CHECKING:
    import evaluate

__all__ = ["MODULES", "load_metric"]

MODULES = {
    "entities": "Entities",
    "glue": "Glue",
    "multiple_choice": "MultipleChoice",
    "scores": "Scores",
    "squad": "Squad",
    "squad_v2": "SquadV2",
    "super_glue": "SuperGlue",
}
"""The class in each file of this folder."""


def load_metric(name: str, config: str | None = None, **options: Any) -> "evaluate.EvaluationModule":
    """A metric of ours by name, or any other from `evaluate`.

    Args:
        name (`str`): "glue", "super_glue", "squad", "squad_v2", "entities", "multiple_choice"; a single metric ("accuracy",
            "f1", "macro_f1", "micro_f1", "matthews_correlation", "pearson", "spearmanr"); or what `evaluate.load` takes.
        config (`str`, *optional*): the task of "glue" and "super_glue"; "groups" for "multiple_choice".
        options: those of `evaluate.Metric`: num_process, process_id, experiment_id, cache_dir, keep_in_memory, ...
    Raises:
        ValueError: the metric is none of ours, and `evaluate` cannot reach it; or there is no such config.
        ImportError: `evaluate` is not installed.
    """
    try:
        import evaluate
    except ImportError as error:
        raise ImportError("metrics as modules need evaluate: pip install 'hf_deberta_ext[train]'") from error

    if name in METRICS:
        if config is not None:
            raise ValueError(f"{name} has no config, got {config!r}; those of a task are load_metric('glue', 'mrpc')")
        name, config = "scores", name
    if name in MODULES:
        return getattr(import_module(f".{name}", __name__), MODULES[name])(config_name=config, **options)
    try:
        return evaluate.load(name, config, **options)
    except OSError as error:
        ours = sorted({*METRICS, *MODULES} - {"scores"})
        raise ValueError(
            f"metric {name!r} is none of ours ({', '.join(ours)}), and evaluate.load did not find it: that takes a local "
            f"script, or any metric of the Hub, which needs the network ({error})"
        ) from error
