# SPDX-License-Identifier: Apache-2.0
"""The flags that every fine-tuning script has."""

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

# Flags that are at least 1.
COUNTS = (
    "max_seq_length pad_to_multiple_of max_train_samples max_eval_samples max_predict_samples preprocessing_num_workers"
).split()


@dataclass
class DataArguments:
    """Flags of the data: a known task, a data set of the Hub, or files. Tasks add flags of their own in subclasses."""

    task_name: str | None = option(None, "a known task: its data on the Hub, its columns, its metrics")
    dataset_name: str | None = option(None, "data set of the Hub, instead of the task's")
    dataset_config_name: str | None = option(None, "its configuration")
    train_file: list[str] = option(
        list, "files to train on, instead of the Hub: csv, tsv, json, jsonl, parquet, of words also CoNLL; each also .gz"
    )
    validation_file: list[str] = option(list, "files to evaluate on")
    test_file: list[str] = option(list, "files to predict on; labels are not needed")
    delimiter: str | None = option(None, "between cells of csv and tsv; default: found in the header, in tsv a tab")
    encoding: str = option(UTF_8, "of text files: cp1252, utf-16, ...")
    max_seq_length: int | None = option(None, "longest input in tokens; default: that of the task, or of the recipe")
    pad_to_max_length: bool = option(False, "pad every row to --max_seq_length, not a batch to its longest row")
    pad_to_multiple_of: int | None = option(None, "pad a batch to a multiple of so many tokens")
    max_train_samples: int | None = option(None, "train on the first so many examples")
    max_eval_samples: int | None = option(None, "evaluate on the first so many examples of each set")
    max_predict_samples: int | None = option(None, "predict on the first so many examples of each set")
    preprocessing_num_workers: int | None = option(None, "processes that tokenise")
    data_revision: str | None = option(None, "of the data set on the Hub")
    card_language: list[str] = option(
        list, "ISO codes of the data's languages, for the model card; default: those of a known data set"
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
            raise ValueError(f"--encoding must be an encoding that Python knows, such as cp1252: {error}") from error
        check_languages(as_list(self.card_language), "--card_language")

    def read(self, files: str | Path | Sequence[str | Path], source: str) -> Dataset:
        """Return the rows of files, as `read_files`, with the delimiter and the encoding of the flags."""
        return read_files(files, source=source, delimiter=self.delimiter, encoding=self.encoding)

    def padding(self, max_length: int) -> dict[str, Any]:
        """Return the options of transformers' data collators that pad rows, the longest of which has `max_length` tokens."""
        options = {"pad_to_multiple_of": self.pad_to_multiple_of}
        if self.pad_to_max_length:
            options |= {"padding": "max_length", "max_length": max_length}
        return options

    def tokenise(self, rows: Dataset, encode: Callable[..., dict[str, list]], name: str, **options: Any) -> Dataset:
        """Return the features that `encode(batch, **options)` makes of rows, with as many processes as the flag says."""
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
        """Return the number of examples that are taken of "train", "validation" and "test"; None = all."""
        return dict(train=self.max_train_samples, validation=self.max_eval_samples, test=self.max_predict_samples)


@dataclass
class ModelArguments(HubArguments):
    """Flags of the model, and of all downloads."""

    model_name_or_path: str | None = option(None, "folder or Hub id of the model to fine-tune", aliases=["--model"])
    model_type: str | None = option(
        None,
        "class of a DeBERTa checkpoint: this package's with its fast attention (default), or stock: transformers'",
        choices=["deberta-ext", "stock"],
    )
    from_scratch: bool = option(False, "random weights: only configuration and tokenizer are those of the model")
    config_name: str | None = option(None, "folder or Hub id of the configuration; default: that of the model")
    config_overrides: str | None = option(None, "fields to replace: hidden_dropout_prob=0,num_hidden_layers=4")
    tokenizer_name: str | None = option(None, "folder or Hub id of the tokenizer; default: that of the model")
    trust_remote_code: bool = option(False, "run the code that is in the model's repository")
    ignore_mismatched_sizes: bool = option(
        False, "a new head where the checkpoint's is for another number of labels; recipes that begin at MNLI set it"
    )
    dtype: str = option(
        "float32",
        "of the parameters, whatever the checkpoint's; --bf16 and --fp16 leave them in float32",
        choices=["float32", "bfloat16", "float16"],
    )
    attn_implementation: str | None = option(None, f"{', '.join(BACKENDS)}, ...; default: the model's choice")
    lora: bool = option(False, "train low-rank adapters and the head alone (needs peft)", aliases=["--use_lora"])
    lora_r: int = option(8, "rank of the adapters")
    lora_alpha: float = option(16.0, "they are scaled by lora_alpha / lora_r")
    lora_dropout: float = option(0.05, "before the adapters")
    lora_target_modules: list[str] = option(list, "names of the layers that get adapters; default: queries and values")
    license: str | None = option(None, "of the fine-tuned model, for its card, as the Hub calls it: apache-2.0, mit, ...")

    needs: ClassVar = dict.fromkeys(
        ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules"),
        (
            "without --lora, or on an adapter",
            lambda args: args.lora and not is_adapter_folder(args.model_name_or_path or ""),
        ),
    )

    def __post_init__(self):
        if self.from_scratch and self.lora:
            raise ValueError("--lora saves adapters alone: the random weights that --from_scratch makes would be lost")
        if self.lora_r < 1:
            raise ValueError(f"--lora_r must be at least 1, got {self.lora_r}")
        if not 0 <= self.lora_dropout < 1:
            raise ValueError(f"--lora_dropout must be in [0, 1), got {self.lora_dropout}")


@dataclass
class FineTuningArguments(RunArguments, SiftArguments):
    """Arguments of the training, and of the run around it."""

    overwrite_output_dir: bool = option(
        False, "move a folder that is not empty aside, to NAME.old-1, and begin anew; nothing is deleted"
    )
    recipe: str | None = option(None, "published settings for --task_name: base, large, v2-xlarge, v3-large, ...")
    save_thresholds: bool = option(
        False,
        "write the threshold of each label (of two classes: of the second) with the best F1 on the first evaluation set "
        "into the model's config.json, as decision_thresholds; metrics stay at 0.5",
    )
    predictions_format: str = option("csv", "of eval_predictions and test_predictions", choices=["csv", "parquet"])
    seeds: list[int] = option(list, "train once with each, and report mean and standard deviation")
    # Trainer's name for columns of labels, which are the task's; tasks have a flag of this name for the classes.
    label_names: list[str] | None = field(default=None, init=False)
    logging_nan_inf_filter: bool = option(False, "of no effect: a loss that is not finite stops the training")

    needs: ClassVar = {
        "data_seed": (
            "without --train_sampling_strategy random (--seed is that of group_by_length)",
            lambda args: args.train_sampling_strategy == "random",
        ),
        "save_thresholds": ("without --do_eval", lambda args: args.do_eval),
    }

    def __post_init__(self):
        if not (self.do_train or self.do_eval or self.do_predict):
            raise ValueError("there is nothing to do: give --do_train, --do_eval or --do_predict, or several of them")
        if len({*self.seeds}) < len(self.seeds):
            raise ValueError(f"--seeds names one twice: {' '.join(map(str, self.seeds))}")
        if self.seeds and not self.do_train:
            raise ValueError("--seeds are for training: give --do_train")
        if self.seeds and self.push_to_hub:
            raise ValueError("--push_to_hub is for one model: leave --seeds out, or push the folder of one of them")
        super().__post_init__()


def parse(
    argv: Sequence[str] | None, data_arguments: type[DataArguments], *, description: str, program: str = "%(prog)s"
) -> tuple[DataArguments, ModelArguments, FineTuningArguments, dict[str, Any]]:
    """Parse the flags of a command line, or of the one .json or .yaml file that it names, as `parse_flags`.

    Returns:
        The three groups of flags, of which `data_arguments` is the class of the first, and those of the command line, by
        name.
    """

    def recipe(flags: dict[str, Any], processes: int, device: torch.device | None) -> tuple[dict[str, Any], str | None]:
        name, task = flags.get("recipe"), flags.get("task_name")
        if name is None:
            return {}, None
        settings = recipe_arguments(name, task, flags, processes=processes, device=device)
        return settings, recipe_table(name, task, settings, flags)

    groups = (data_arguments, ModelArguments, FineTuningArguments)
    usage = f"{program} --model_name_or_path MODEL --output_dir FOLDER --do_train --do_eval ... (--help shows the flags)"
    (data_args, model_args, args), flags = parse_flags(groups, argv, description=description, usage=usage, recipe=recipe)
    return data_args, model_args, args, flags
