# SPDX-License-Identifier: Apache-2.0
"""The stages of every fine-tuning script: check, read, encode, train, evaluate, predict, report.

A script is the name of its data class: `main(TextClassificationData, TextClassificationArguments, description=__doc__)`.
"""

import copy
import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PretrainedConfig, set_seed
from transformers.utils import logging

from ..publishing.results import summarise_seeds, summary_table
from ..sift import embedding_norm
from ..training.distributed import leave_together
from ..training.run_folder import repeated_arguments
from ..training.user_errors import ExitOnUserError
from .arguments import DataArguments, FineTuningArguments, ModelArguments, parse
from .models import add_adapters, load_config, load_model, load_tokenizer_for, set_classifier_dropout, set_fields
from .recipes import divergence_warnings, find_recipe, recipe_hint
from .reports import PreparedRun, report_run, report_seeds
from .run_folders import begin_folder, begin_seed, check_overwrite, first_checkpoint, is_finished, seed_checkpoint
from .task import EncodedTask, TaskData
from .trainer import TaskTrainer, check_arguments, set_prefix

__all__ = ["main", "run"]

logger = logging.get_logger(__name__)


@dataclass(frozen=True)
class _Begun:
    """A run whose folder is made: what it works with, and where it goes on."""

    prepared: PreparedRun
    args: FineTuningArguments
    checkpoint: str | None
    model: nn.Module


def main(
    read: Callable[[Any, ModelArguments], TaskData],
    data_arguments: type[DataArguments],
    argv: Sequence[str] | None = None,
    *,
    description: str,
) -> dict[str, Any]:
    """Parse the flags of a script, then `run`. An error of the user ends the program as `ExitOnUserError` says, with a
    traceback once the training has begun.

    Args:
        read (`Callable`): (data arguments, model arguments) -> the task's data, read and checked.
        data_arguments: the class of the task's flags, a subclass of `DataArguments`.
        argv (`list[str]`, *optional*): flags; None = those of the command line.
        description (`str`): the script's docstring, of which `--help` shows the first paragraph.
    """
    with ExitOnUserError() as program:
        data_args, model_args, args, given = parse(argv, data_arguments, description=description)
        begun = _begin(read, data_args, model_args, args, given)
        program.show_traceback = True
        program.resume_advice = "; go on with --resume_from_checkpoint last if there is a checkpoint"
        return _work(begun)


def run(
    read: Callable[[Any, ModelArguments], TaskData],
    data_args: DataArguments,
    model_args: ModelArguments,
    args: FineTuningArguments,
    given: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """All stages; returns what was measured, of several seeds mean, standard deviation and values.

    Args:
        given (`dict`, *optional*): flags that were given, by name: defaults that depend on the task spare them.

    Raises:
        ValueError: whatever is wrong with flags, data, model or folder, before anything is written; or a loss that is not
            finite.
        OSError: a model that is not there.
        ImportError: a package that a flag needs is not installed.
    """
    return _work(_begin(read, data_args, model_args, args, given or {}))


def _begin(
    read: Callable[[Any, ModelArguments], TaskData],
    data_args: DataArguments,
    model_args: ModelArguments,
    args: FineTuningArguments,
    given: Mapping[str, Any],
) -> _Begun:
    """The stages before the training; the folder is made at their end."""
    if args.process_index:
        logging.set_verbosity_error()

    # 1. What is wrong shows here, before anything long begins.
    _check(data_args, model_args, args)
    check_overwrite(data_args, model_args, args)
    checkpoint = first_checkpoint(args)

    # 2. Data, model and tokenizer
    with args.main_process_first(desc="reading data and configuration"):
        data = read(data_args, model_args)
        _check_parts(args, dict(do_train=data.num_train, do_eval=data.num_evaluation))
        config = load_config(model_args, data_args)
        if hasattr(data, "use_label_order"):
            data.use_label_order(config.label2id)
        set_fields(config, data.config_fields())
        prefix_space = getattr(data, "needs_prefix_space", False)
        tokenizer = load_tokenizer_for(config, model_args, data_args, prefix_space=prefix_space)
    if args.recipe is not None:
        _use_recipe(args.recipe, config, data_args, model_args)
    if args.do_train:
        for warning in divergence_warnings(config, args, model_args.model_name_or_path, lora=model_args.lora):
            logger.warning(warning)

    # 3. Texts -> features
    with args.main_process_first(desc="tokenising"):
        task = data.encode(tokenizer, config)
    parts = dict(do_train=task.train, do_eval=task.evaluation, do_predict=task.test)
    _check_parts(args, {name: len(part or ()) for name, part in parts.items()})
    _choose_best_by(task, args, given)

    # 4. Model and folder
    prepared = PreparedRun(data, task, config, tokenizer, data_args, model_args)
    model = _get_model(prepared, args, [*args.seeds, args.seed][0])
    with args.main_process_first(local=False, desc="making the folder"):
        if args.should_save:
            begin_folder(args, repeated_arguments((data_args, model_args), args))
    return _Begun(prepared, args, checkpoint, model)


def _work(begun: _Begun) -> dict[str, Any]:
    """Train, evaluate, predict, report."""
    if begun.args.seeds:
        metrics = _run_seeds(begun.prepared, begun.args, begun.model)
    else:
        metrics = _run_one(begun.prepared, begun.args, begun.checkpoint, begun.model)
    leave_together()
    return metrics


# ------- what is checked first


def _check(data_args: DataArguments, model_args: ModelArguments, args: FineTuningArguments):
    """Flags that are wrong together.

    Raises:
        ValueError: says which.
    """
    if model_args.model_name_or_path is None:
        raise ValueError("--model_name_or_path is missing: give the folder or Hub id of a model")
    if model_args.dtype == "float16" and args.do_train:
        raise ValueError(
            "--dtype float16 would train float16 parameters, whose updates are lost and whose losses overflow: take "
            "float32, with --fp16 or --bf16 for speed"
        )
    if model_args.dtype == "bfloat16" and args.do_train:
        logger.warning("--dtype bfloat16: updates below 1/256 of a parameter are lost; --bf16 keeps parameters in float32")
    check_arguments(args)
    if model_args.lora and importlib.util.find_spec("peft") is None:
        raise ValueError("--lora needs peft: pip install peft")
    if model_args.lora and args.push_to_hub and Path(model_args.model_name_or_path).exists():
        raise ValueError(
            f"--push_to_hub of an adapter whose model {model_args.model_name_or_path} is on this machine: nobody could load "
            "it. Push that model first, and give its Hub id as --model_name_or_path"
        )
    if args.resume_from_checkpoint is not None and str(args.resume_from_checkpoint).lower() == "false":
        args.resume_from_checkpoint = None
    if args.resume_from_checkpoint is not None:
        if not args.do_train:
            raise ValueError("--resume_from_checkpoint is for training: give --do_train")


def _check_parts(args: FineTuningArguments, counts: Mapping[str, int]):
    """What is to be done has data to be done with; --eval_strategy sets do_eval."""
    files = dict(do_train="train_file", do_eval="validation_file", do_predict="test_file")
    for name, count in counts.items():
        if getattr(args, name) and not count:
            raise ValueError(f"--{name} has no data: give --{files[name]}, or a task or data set of the Hub that has some")


def _use_recipe(name: str, config: PretrainedConfig, data_args: DataArguments, model_args: ModelArguments):
    """The part of a recipe that is in the model: dropout, and a new head where it begins at a model of MNLI."""
    recipe = find_recipe(name, data_args.task_name)
    dropout = recipe.classifier_dropout
    given = {part.partition("=")[0].strip() for part in (model_args.config_overrides or "").split(",")}
    if not set_classifier_dropout(config, dropout, given):
        logger.warning(f"the recipe's dropout of {dropout} before the classifier has no field in {type(config).__name__}")
    if recipe.from_mnli:
        model_args.ignore_mismatched_sizes = True
    if hint := recipe_hint(name, data_args.task_name, model_args.model_name_or_path):
        logger.warning(hint)


def _choose_best_by(task: EncodedTask, args: FineTuningArguments, given: Mapping[str, Any]):
    """The task's own metric on its first set says which checkpoint is best, not the loss, unless a flag does."""
    if "metric_for_best_model" not in given and args.metric_for_best_model in (None, "loss"):
        prefix = set_prefix("eval", next(iter(task.evaluation), ""))
        args.metric_for_best_model, args.greater_is_better = f"{prefix}_{task.metric}", True
    known = {
        f"{set_prefix('eval', name)}_{metric}"
        for name, part in task.evaluation.items()
        for metric in (task.metric, *(["loss"] if "labels" in part.rows.column_names else []))
    }
    best = args.metric_for_best_model
    if args.eval_strategy != "no" and best is not None and not {best, f"eval_{best}"} & known:
        # Only an evaluation tells the names of all metrics: a wrong one is found before the first step.
        args.eval_on_start = True


# ------- one run, and several


def _get_model(prepared: PreparedRun, args: FineTuningArguments, seed: int) -> nn.Module:
    """The model as the training begins with it; new weights are drawn from the seed.

    Raises:
        ValueError: there are new weights, and no training.
    """
    model_args = prepared.model_args
    set_seed(seed)
    model, new_weights = load_model(model_args, prepared.data_args, copy.deepcopy(prepared.config), prepared.data.auto_class)
    if new_weights and not args.do_train:
        raise ValueError(
            f"{model_args.model_name_or_path} lacks {', '.join(new_weights)}: its answers would be random; give --do_train, "
            "or a model that is fine-tuned for this task"
        )
    if args.sift_weight:
        # Raises where there is none.
        embedding_norm(model, args.sift_layer_norm)
    if not model_args.lora or hasattr(model, "peft_config"):
        return model
    return add_adapters(model, new_weights, model_args, prepared.data.pipeline)


def _run_one(prepared: PreparedRun, args: FineTuningArguments, checkpoint: str | None, model: nn.Module) -> dict[str, float]:
    """Trains, evaluates and predicts as the flags say, into `args.output_dir`."""
    trainer = TaskTrainer(model, args, task=prepared.task, processing_class=prepared.tokenizer)
    measured = trainer.train_and_save(checkpoint, train_samples=prepared.data.num_train) if args.do_train else {}
    measured |= _measure(prepared, trainer, _stems(prepared.task, args))
    if args.do_train:
        _report(prepared, trainer)
        if args.push_to_hub:
            trainer.push_to_hub()
    return measured


def _report(prepared: PreparedRun, trainer: TaskTrainer):
    trainer.save_state()
    if trainer.args.should_save:
        report_run(prepared, trainer)


def _stems(task: EncodedTask, args: FineTuningArguments) -> list[str]:
    """What the results are called that --do_eval and --do_predict ask for."""
    evaluated = [set_prefix("eval", name) for name in task.evaluation] if args.do_eval else []
    return evaluated + ([set_prefix("predict", name) for name in task.test] if args.do_predict else [])


def _measure(prepared: PreparedRun, trainer: TaskTrainer, stems: Sequence[str]) -> dict[str, float]:
    """Evaluates and predicts on the sets whose results have these names, and writes both."""
    task, folder, measured = prepared.task, Path(trainer.args.output_dir), {}
    for name, evaluated in task.evaluation.items():
        if (stem := set_prefix("eval", name)) in stems:
            measured |= trainer.record(stem, trainer.evaluate({name: evaluated}))
            if trainer.args.should_save:
                evaluated.write(trainer.predictions[stem], folder, stem)
    for name, predicted in task.test.items():
        if (stem := set_prefix("predict", name)) in stems:
            output = trainer.predict_set(predicted, stem)
            measured |= trainer.record(stem, output.metrics)
            if trainer.args.should_save:
                predicted.write(output.predictions, folder, stem)
    return measured


def _run_seeds(prepared: PreparedRun, args: FineTuningArguments, model: nn.Module | None) -> dict[str, Any]:
    """A run in a folder of its own for each seed; those that are finished stay, and the one that was stopped goes on.

    Args:
        model: of the first seed.
    """
    results = {}
    for seed in args.seeds:
        own = copy.copy(args)
        own.seed, own.output_dir = seed, str(Path(args.output_dir, f"seed-{seed}"))
        with args.main_process_first(local=False, desc="making the folder"):
            if args.should_save:
                begin_seed(own, repeated_arguments((prepared.data_args, prepared.model_args), own))
        folder = Path(own.output_dir)
        if is_finished(folder):
            results[seed] = _complete(prepared, own, model)
        else:
            model = _get_model(prepared, own, seed) if model is None else model
            results[seed] = _run_one(prepared, own, seed_checkpoint(folder), model)
        model = None
    summary = summarise_seeds(results)
    if args.should_save:
        report_seeds(prepared, args, summary)
        print(f"\n{summary_table(summary)}\n", flush=True)
    return summary


def _complete(prepared: PreparedRun, args: FineTuningArguments, model: nn.Module | None) -> dict[str, Any]:
    """What a finished run has measured; what it was not asked for then is measured now, with the model that it saved."""
    folder = Path(args.output_dir)
    results = json.loads((folder / "all_results.json").read_text(encoding="utf-8"))
    missing = [stem for stem in _stems(prepared.task, args) if not (folder / f"{stem}_results.json").is_file()]
    if not missing:
        return results
    model = _get_model(prepared, args, args.seed) if model is None else model
    trainer = TaskTrainer(model, args, task=prepared.task, processing_class=prepared.tokenizer)
    trainer.restore(folder)
    results |= _measure(prepared, trainer, missing)
    _report(prepared, trainer)
    return results
