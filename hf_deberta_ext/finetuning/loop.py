# SPDX-License-Identifier: Apache-2.0
"""Run the stages of a fine-tuning script: check, read, encode, train, evaluate, predict, report.

A script only names its task: `main(load_task("glue"), description=__doc__)`.
"""

import copy
import dataclasses
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PretrainedConfig, set_seed
from transformers.utils import logging

from ..analysis.results import summarise_seeds
from ..sift import embedding_norm
from ..training.distributed import release_folder
from ..training.flags import command_line, overrides
from ..training.hub_arguments import HubArguments
from ..training.run_folder import repeated_arguments
from ..training.user_errors import ExitOnUserError, resume_advice
from .arguments import DataArguments, FineTuningArguments, ModelArguments, parse
from .models import add_adapters, load_config, load_model, load_tokenizer_for, set_classifier_dropout, set_fields
from .recipes import divergence_warnings, find_recipe
from .reports import PreparedRun, check_thresholds, print_baselines, report_run, report_seeds
from .run_folders import begin_folder, begin_seed, check_overwrite, first_checkpoint, is_finished, seed_checkpoint
from .task import EncodedTask, TaskData
from .tasks import Task, load_task
from .trainer import check_losses, set_prefix

__all__ = ["fine_tune", "main", "prepare", "train_and_report"]

logger = logging.get_logger(__name__)


def main(task: Task, argv: Sequence[str] | None = None, *, description: str, program: str = "%(prog)s") -> dict[str, Any]:
    """Parse the flags of a script and run the stages that they select: train, evaluate, predict and report.

    A user error ends the program with a one-line message (see `ExitOnUserError`). If the error occurs after the preparation,
    a traceback is shown above this message.

    Args:
        task (`Task`): result of `load_task`.
        argv (`list[str]`, *optional*): flags; default: the command line.
        description (`str`): docstring of the script; `--help` shows its first paragraph.
        program (`str`): name of the program in `--help`.
    """
    with ExitOnUserError() as errors:
        prepared = prepare(task.read, *parse(argv, task.arguments, description=description, program=program))
        errors.show_traceback = True
        errors.resume_advice = resume_advice(argv, program)
        return train_and_report(prepared)


def fine_tune(task: str, **flags: Any) -> dict[str, Any]:
    """Fine-tune a model, as `deberta-ext finetune TASK` does.

    Args:
        task (`str`): classification, glue, superglue, ner, qa, race or multiple-choice.
        flags: flags of the command by name; `deberta-ext finetune TASK --help` lists them.

    Returns:
        Metrics by name; with several seeds, the mean, standard deviation and values of each metric.

    Raises:
        ValueError: if a flag is unknown, or a flag or the data is invalid.
    """
    chosen = load_task(task)
    argv = command_line(flags)
    return train_and_report(prepare(chosen.read, *parse(argv, chosen.arguments, description="", program="fine_tune")))


def prepare(
    read: Callable[[Any, HubArguments], TaskData],
    data_args: DataArguments,
    model_args: ModelArguments,
    args: FineTuningArguments,
    given_flags: Mapping[str, Any],
) -> PreparedRun:
    """Check the flags, load data and model, then create the output folder; return all that the training needs.

    `read` is the reader of the task (`Task.read`). Flags that the user set (`given_flags`) are not replaced by defaults of
    the task.
    """
    if args.process_index:
        logging.set_verbosity_error()

    # 1. Checks, before the slow stages
    check_flags(model_args, args)
    check_overwrite(data_args, model_args, args)
    checkpoint = first_checkpoint(args)

    # 2. Data, configuration and tokenizer
    with args.main_process_first(desc="reading data and configuration"):
        data = read(data_args, model_args)
        check_sets(args, data_args, do_train=data.num_train, do_eval=data.num_evaluation)
        config = load_config(model_args)
        data.use_config(config)
        set_fields(config, data.config_fields())
        tokenizer = load_tokenizer_for(config, model_args)
        # Otherwise, Trainer would set these ids with a warning; only generation uses them.
        config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    if args.recipe is not None:
        set_recipe_fields(args.recipe, config, data_args, model_args)
    if args.do_train:
        for warning in divergence_warnings(config, args, model_args.model_name_or_path, lora=model_args.lora):
            logger.warning(warning)

    # 3. Texts -> features
    with args.main_process_first(desc="tokenising"):
        task = data.encode(tokenizer, config)
    check_sets(args, data_args, do_train=len(task.train or ()), do_eval=len(task.evaluation), do_predict=len(task.test))
    check_losses(args, task, config.problem_type)
    set_best_metric(task, args, given_flags)
    if args.do_train:
        # The checkpoint's thresholds were chosen for its labels and weights, which training changes.
        vars(config).pop("decision_thresholds", None)

    # 4. Model and folder
    prepared = PreparedRun(data, task, config, tokenizer, data_args, model_args, args, checkpoint)
    if args.save_thresholds:
        check_thresholds(prepared)
    model = build_model(prepared, [*args.seeds, args.seed][0])
    with args.main_process_first(local=False, desc="creating the folder"):
        if args.should_save:
            begin_folder(args, repeated_arguments((data_args, model_args), args))
    return dataclasses.replace(prepared, model=model)


def check_flags(model_args: ModelArguments, args: FineTuningArguments):
    """Check flags that depend on each other."""
    model = model_args.model_name_or_path
    if model is None:
        raise ValueError("--model_name_or_path is missing: give the folder or Hub id of a model")
    if model_args.dtype == "float16" and args.do_train:
        raise ValueError(
            "--dtype must be float32 or bfloat16 with --do_train, got float16: float16 parameters lose small updates, and "
            "losses overflow. Use --dtype float32, and --fp16 or --bf16 for speed"
        )
    if model_args.dtype == "bfloat16" and args.do_train:
        logger.warning(
            "--dtype bfloat16: updates smaller than 1/256 of a parameter are lost; use --dtype float32 --bf16, "
            "which keeps parameters in float32"
        )
    if model_args.lora and args.push_to_hub and Path(model).exists():
        raise ValueError(
            f"--push_to_hub with --lora needs a base model on the Hub, got the local folder {model}, which nobody else can "
            "load. Push the base model first, and give its Hub id as --model_name_or_path"
        )
    if str(args.resume_from_checkpoint).lower() == "false":
        args.resume_from_checkpoint = None
    if args.resume_from_checkpoint is not None and not args.do_train:
        raise ValueError("--resume_from_checkpoint needs --do_train")


def check_sets(args: FineTuningArguments, data_args: DataArguments, **counts: int):
    """Check that --do_train, --do_eval (also set by --eval_strategy) and --do_predict have data."""
    files = dict(do_train="train_file", do_eval="validation_file", do_predict="test_file")
    if hasattr(data_args, "validation_share") and data_args.task_name is None:
        files["do_eval"] += " or --validation_share 0.2"
    for flag, count in counts.items():
        if getattr(args, flag) and not count:
            raise ValueError(f"--{flag} has no data: give --{files[flag]}, or --task_name or --dataset_name with such data")


def set_recipe_fields(name: str, config: PretrainedConfig, data_args: DataArguments, model_args: ModelArguments):
    """Set the recipe's classifier dropout in `config`, and allow a new head if the recipe starts from an MNLI model.

    Warn if the recipe starts from an MNLI model, but the name of the model does not contain "mnli".
    """
    recipe, model = find_recipe(name, data_args.task_name), model_args.model_name_or_path
    dropout = recipe.classifier_dropout
    if not set_classifier_dropout(config, dropout, overrides(model_args.config_overrides)):
        logger.warning(f"ignoring the recipe's classifier dropout {dropout}: {type(config).__name__} has no such field")
    if recipe.from_mnli:
        model_args.ignore_mismatched_sizes = True
        if "mnli" not in model.lower():
            logger.warning(
                f"the recipe {name} for {data_args.task_name} expects a model that was first fine-tuned on MNLI (the "
                f"model's head is replaced), but the name {model} does not contain mnli"
            )


def set_best_metric(task: EncodedTask, args: FineTuningArguments, given_flags: Mapping[str, Any]):
    """Set `metric_for_best_model` to the task's metric on the first evaluation set, unless a flag sets another metric.

    If it is uncertain whether the metric exists, the run begins with an evaluation, so that a wrong name fails at once.
    """
    if "metric_for_best_model" not in given_flags and args.metric_for_best_model in (None, "loss"):
        prefix = set_prefix("eval", next(iter(task.evaluation), ""))
        args.metric_for_best_model, args.greater_is_better = f"{prefix}_{task.metric}", True
    certain = set()
    for name, evaluated in task.evaluation.items():
        prefix = set_prefix("eval", name)
        certain.add(f"{prefix}_{task.metric}")
        if "labels" in evaluated.rows.column_names:
            certain.add(f"{prefix}_loss")
    args.find_best_metric(certain)


def build_model(prepared: PreparedRun, seed: int) -> nn.Module:
    """Load the model to train; initialise new weights from `seed`, and add adapters if --lora is set."""
    model_args, args = prepared.model_args, prepared.args
    # peft reads a property of transformers by its old name.
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
    set_seed(seed)
    config = copy.deepcopy(prepared.config)
    model, new_weights = load_model(model_args, config, prepared.data.auto_class, is_trained=args.do_train)
    if args.sift_weight:
        embedding_norm(model, args.sift_layer_norm)
    if not model_args.lora or hasattr(model, "peft_config"):
        return model
    return add_adapters(model, new_weights, model_args, prepared.data.pipeline)


def run_seed(prepared: PreparedRun, *, is_done: bool = False) -> dict[str, float]:
    """Train, evaluate and predict with one seed, as set by the flags; return the metrics.

    If `is_done` is True (a finished run), load the saved model, and only evaluate or predict sets without saved results.
    """
    args, folder = prepared.args, Path(prepared.args.output_dir)
    names, metrics = result_names(prepared.task, args), {}
    if is_done:
        metrics = json.loads((folder / "all_results.json").read_text(encoding="utf-8"))
        names = [name for name in names if not (folder / f"{name}_results.json").is_file()]
        if not names:
            return metrics
    model = prepared.model or build_model(prepared, args.seed)
    trainer = prepared.trainer_class(model, args, task=prepared.task, processing_class=prepared.tokenizer)
    trainer.flags = repeated_arguments((prepared.data_args, prepared.model_args), args)
    if is_done:
        trainer.restore(folder)
    elif args.do_train:
        metrics = trainer.train_and_save(prepared.checkpoint, train_samples=prepared.data.num_train)
    metrics |= trainer.measure(names)
    report_run(prepared, trainer, metrics)
    if args.do_train and args.push_to_hub:
        trainer.push_to_hub()
    return metrics


def result_names(task: EncodedTask, args: FineTuningArguments) -> list[str]:
    """Return the names of the results of --do_eval and --do_predict, such as "eval", "eval_mm" and "predict"."""
    names = []
    if args.do_eval:
        names += [set_prefix("eval", name) for name in task.evaluation]
    if args.do_predict:
        names += [set_prefix("predict", name) for name in task.test]
    return names


def train_and_report(prepared: PreparedRun) -> dict[str, Any]:
    """Train, evaluate, predict and report; if there are several seeds, do so in a separate folder for each seed.

    Finished seeds are skipped; an interrupted seed is resumed. Returns the metrics; with several seeds, the mean, standard
    deviation and values of each metric.
    """
    args, model, results = prepared.args, prepared.model, {}
    if args.should_save:
        print_baselines(prepared)
    if not args.seeds:
        metrics = run_seed(prepared)
        release_folder()
        return metrics
    for seed in args.seeds:
        folder = Path(args.output_dir, f"seed-{seed}")
        seed_args = copy.copy(args)
        seed_args.seed, seed_args.output_dir = seed, str(folder)
        with args.main_process_first(local=False, desc="creating the folder"):
            if args.should_save:
                begin_seed(seed_args)
        seed_run = dataclasses.replace(prepared, args=seed_args, model=model, checkpoint=seed_checkpoint(folder))
        results[seed] = run_seed(seed_run, is_done=is_finished(folder))
        # Each later seed builds its own model, with its own random new weights.
        model = None
    summary = summarise_seeds(results)
    if args.should_save:
        report_seeds(prepared, summary)
    release_folder()
    return summary
