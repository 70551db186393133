# SPDX-License-Identifier: Apache-2.0
"""Flags of all fine-tuning scripts."""

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from datasets import Dataset

from ..checkpoints.files import is_adapter_folder
from ..data.files import UTF_8, read_files
from ..data.languages import check_languages
from ..files import as_list
from ..model.attention_deberta_ext import BACKENDS
from ..sift import SiftArguments
from ..training.arguments import RunArguments
from ..training.flags import option, parse_flags
from ..training.hub_arguments import HubArguments
from .recipes import recipe_arguments, recipe_table

__all__ = ["DataArguments", "FineTuningArguments", "ModelArguments", "parse"]

# Flags whose value must be at least 1.
COUNTS = (
    "max_seq_length pad_to_multiple_of max_train_samples max_eval_samples max_predict_samples preprocessing_num_workers"
).split()


@dataclass
class DataArguments:
    """Flags of the data: a published task, a data set on the Hub, or files. Subclasses add the flags of a task."""

    task_name: str | None = option(None, "known task; sets the data set on the Hub, the columns and the metrics")
    dataset_name: str | None = option(None, "Hub id of the data set, instead of the data set of --task_name")
    dataset_config_name: str | None = option(None, "configuration of the data set")
    train_file: list[str] = option(
        list, "training files, instead of the Hub: csv, tsv, json, jsonl, parquet, CoNLL (word labels); each also .gz"
    )
    validation_file: list[str] = option(list, "evaluation files")
    test_file: list[str] = option(list, "files to predict; labels are optional")
    delimiter: str | None = option(None, "delimiter of cells; default: detected from the header (csv) or tab (tsv)")
    encoding: str = option(UTF_8, "encoding of text files: cp1252, utf-16, ...")
    max_seq_length: int | None = option(None, "maximum input length in tokens; default: set by the task or the recipe")
    pad_to_max_length: bool = option(False, "pad all rows to --max_seq_length instead of to the longest row of the batch")
    pad_to_multiple_of: int | None = option(None, "pad batches to a multiple of this number of tokens")
    max_train_samples: int | None = option(None, "only train on the first N examples")
    max_eval_samples: int | None = option(None, "only evaluate on the first N examples of each set")
    max_predict_samples: int | None = option(None, "only predict the first N examples of each set")
    preprocessing_num_workers: int | None = option(None, "number of processes for tokenisation")
    data_revision: str | None = option(None, "revision of the data set on the Hub")
    card_language: list[str] = option(
        list, "ISO codes of the data's languages for the model card; default: the languages of a known data set"
    )

    def __post_init__(self):
        # Published names mix cases: MNLI, CoLA, BoolQ.
        self.task_name = self.task_name and self.task_name.lower()
        for name in COUNTS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name} must be at least 1, got {value}")
        if self.delimiter == r"\t":
            self.delimiter = "\t"
        try:
            if codecs.lookup(self.encoding).name == "utf-8":
                self.encoding = UTF_8
        except LookupError as error:
            raise ValueError(f"--encoding must be a Python encoding such as cp1252: {error}") from error
        check_languages(as_list(self.card_language), "--card_language")

    def read(self, files: str | Path | Sequence[str | Path], source: str) -> Dataset:
        """Read the rows of files with `read_files`, using the flags' delimiter and encoding."""
        return read_files(files, source=source, delimiter=self.delimiter, encoding=self.encoding)

    def padding(self, max_length: int) -> dict[str, Any]:
        """Return the padding arguments of transformers' data collators for rows of at most `max_length` tokens."""
        options = {"pad_to_multiple_of": self.pad_to_multiple_of}
        if self.pad_to_max_length:
            options |= {"padding": "max_length", "max_length": max_length}
        return options

    def tokenise(self, rows: Dataset, encode: Callable[..., dict[str, list]], name: str, **options: Any) -> Dataset:
        """Map `encode(batch, **options)` over `rows` in --preprocessing_num_workers processes; drop the old columns."""
        return rows.map(
            encode,
            batched=True,
            fn_kwargs=options,
            remove_columns=rows.column_names,
            num_proc=self.preprocessing_num_workers,
            desc=f"tokenising {name}",
        )

    @property
    def limits(self) -> dict[str, int | None]:
        """Return the maximum number of examples of "train", "validation" and "test"; None = all."""
        return dict(train=self.max_train_samples, validation=self.max_eval_samples, test=self.max_predict_samples)


@dataclass
class ModelArguments(HubArguments):
    """Flags of the model and of downloads."""

    model_name_or_path: str | None = option(None, "folder or Hub id of the model to fine-tune", aliases=["--model"])
    model_type: str | None = option(
        None,
        "model class for a DeBERTa checkpoint: deberta-ext (this package, fast attention; default) or stock (transformers)",
        choices=["deberta-ext", "stock"],
    )
    from_scratch: bool = option(False, "train from random weights; only load the model's configuration and tokenizer")
    config_name: str | None = option(None, "folder or Hub id of the configuration; default: --model_name_or_path")
    config_overrides: str | None = option(None, "configuration fields to set: hidden_dropout_prob=0,num_hidden_layers=4")
    tokenizer_name: str | None = option(None, "folder or Hub id of the tokenizer; default: --model_name_or_path")
    trust_remote_code: bool = option(False, "allow running Python code from the model's repository")
    ignore_mismatched_sizes: bool = option(
        False, "create a new head if the checkpoint's head has another number of labels; set by recipes for MNLI models"
    )
    dtype: str = option(
        "float32",
        "dtype of the parameters, whatever the dtype of the checkpoint; keep float32 to train with --bf16 or --fp16",
        choices=["float32", "bfloat16", "float16"],
    )
    attn_implementation: str | None = option(None, f"attention: {', '.join(BACKENDS)}, ...; default: chosen by the model")
    lora: bool = option(False, "only train low-rank adapters and the head (needs peft)", aliases=["--use_lora"])
    lora_r: int = option(8, "rank of the adapters")
    lora_alpha: float = option(16.0, "scale of the adapters: their output is multiplied by lora_alpha / lora_r")
    lora_dropout: float = option(0.05, "dropout probability before the adapters")
    lora_target_modules: list[str] = option(list, "names of the layers to adapt; default: query and value projections")
    license: str | None = option(None, "licence of the fine-tuned model for its card: apache-2.0, mit, ... (Hub identifier)")

    needs: ClassVar = dict.fromkeys(
        ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules"),
        (
            "without --lora, or if the model is an adapter",
            lambda args: args.lora and not is_adapter_folder(args.model_name_or_path or ""),
        ),
    )

    def __post_init__(self):
        if self.from_scratch and self.lora:
            raise ValueError("--lora only saves adapters: the random weights of --from_scratch would be lost; remove a flag")
        if self.lora_r < 1:
            raise ValueError(f"--lora_r must be at least 1, got {self.lora_r}")
        if not 0 <= self.lora_dropout < 1:
            raise ValueError(f"--lora_dropout must be in [0, 1), got {self.lora_dropout}")


@dataclass
class FineTuningArguments(RunArguments, SiftArguments):
    """Arguments of a fine-tuning run."""

    overwrite_output_dir: bool = option(
        False, "start a new run if --output_dir is not empty; the old folder is renamed to NAME.old-1, not deleted"
    )
    recipe: str | None = option(None, "published settings for --task_name: base, large, v2-xlarge, v3-large, ...")
    save_thresholds: bool = option(
        False,
        "for each label, or for the second of two classes, find the probability threshold with the best F1 on the first "
        "evaluation set; save it in the model's config.json as decision_thresholds. Metrics are still computed at 0.5",
    )
    predictions_format: str = option(
        "csv", "format of the tables eval_predictions and test_predictions", choices=["csv", "parquet"]
    )
    seeds: list[int] = option(list, "train once with each seed; report mean and standard deviation")
    # Not a flag: Trainer finds the label columns itself, and the tasks' flag of the same name gives the names of classes.
    label_names: list[str] | None = field(default=None, init=False)
    logging_nan_inf_filter: bool = option(False, "no effect, because a NaN or infinite loss stops the training")

    needs: ClassVar = {
        "data_seed": (
            "without --train_sampling_strategy random (group_by_length uses --seed)",
            lambda args: args.train_sampling_strategy == "random",
        ),
        "save_thresholds": ("without --do_eval", lambda args: args.do_eval),
    }

    def __post_init__(self):
        if not (self.do_train or self.do_eval or self.do_predict):
            raise ValueError("there is nothing to do: give --do_train, --do_eval or --do_predict")
        if len({*self.seeds}) < len(self.seeds):
            raise ValueError(f"--seeds must be distinct, got {' '.join(map(str, self.seeds))}")
        if self.seeds and not self.do_train:
            raise ValueError("--seeds needs --do_train")
        if self.seeds and self.push_to_hub:
            raise ValueError("--push_to_hub pushes one model: remove --seeds, or push one seed's folder after the training")
        super().__post_init__()


def parse(
    argv: Sequence[str] | None,
    data_arguments: type[DataArguments],
    *,
    description: str,
    program: str = "%(prog)s",
    arguments: type[FineTuningArguments] = FineTuningArguments,
) -> tuple[DataArguments, ModelArguments, FineTuningArguments, dict[str, Any]]:
    """Parse a command line: flags, or a .json or .yaml file that contains flags; see `parse_flags`.

    Returns:
        Data flags (of type `data_arguments`), model flags, training flags (of type `arguments`), and a dictionary of the
        flags on the command line, by name.
    """

    def recipe(flags: dict[str, Any], processes: int, device: torch.device | None) -> tuple[dict[str, Any], str | None]:
        name, task = flags.get("recipe"), flags.get("task_name")
        if name is None:
            return {}, None
        settings = recipe_arguments(name, task, flags, processes=processes, device=device)
        return settings, recipe_table(name, task, settings, flags)

    groups = (data_arguments, ModelArguments, arguments)
    usage = f"{program} --model_name_or_path MODEL --output_dir FOLDER --do_train --do_eval ... (--help shows the flags)"
    (data_args, model_args, args), flags = parse_flags(groups, argv, description=description, usage=usage, recipe=recipe)
    return data_args, model_args, args, flags
