# SPDX-License-Identifier: Apache-2.0
"""Predict the rows of a file with a fine-tuned model, part by part, in constant memory."""

import dataclasses
import itertools
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from datasets import disable_progress_bars
from pyarrow import compute
from tqdm.auto import tqdm
from transformers import PretrainedConfig

from ..data.columns import cells
from ..data.files import UTF_8, file_kind, open_text, read_rows
from ..training.flags import command_line
from .arguments import ModelArguments, parse
from .models import load_config, load_model, load_tokenizer_for
from .prediction_tables import write_tables
from .task import EncodedTask
from .tasks import load_task
from .trainer import TaskTrainer

__all__ = ["file_parts", "predict_file", "task_of"]

# Number of rows that are in memory at a time, with their features and outputs.
PART_ROWS = 2000
TASKS = dict(SequenceClassification="classification", TokenClassification="ner", QuestionAnswering="qa")
TASKS["MultipleChoice"] = "multiple-choice"
REFUSED = {"do_train", "do_eval", "train_file", "validation_file", "dataset_name", "max_predict_samples"}


def task_of(config: PretrainedConfig, source: str) -> str:
    """Return the name of the task of a fine-tuned model, from its architecture."""
    name = " ".join(config.architectures or ["None"])
    head = name.rpartition("For")[2]
    if head not in TASKS:
        raise ValueError(
            f"{source} must have an architecture ...For{', ...For'.join(TASKS)}, got {name}: fine-tune the model first"
        )
    return TASKS[head]


def predict_file(
    model: str, file: str | Path, output: str | Path, flags: Sequence[str] = (), *, part_rows: int = PART_ROWS
) -> tuple[int, float]:
    """Predict the rows of a file and write a table of predictions in the same order; return (number of rows, seconds).

    Args:
        model (`str`): folder or Hub id of a model for text or token classification, question answering or multiple choice.
        file (`str` or `Path`): input file, in the format of --test_file of the task.
        output (`str` or `Path`): output table, .csv or .parquet.
        flags (`Sequence[str]`, *optional*): other flags of `deberta-ext finetune TASK`: ["--text_columns", "review"].
        part_rows (`int`, defaults to 2000): number of rows to read at a time, and to sort by length into batches.

    Raises:
        ValueError: if the model is not fine-tuned for a task, or a flag, the file or one of its rows is invalid.
    """
    task, rows, began = load_task(task_of(load_config(ModelArguments(model_name_or_path=model)), model)), 0, 0.0
    disable_progress_bars()

    def tables(folder: str) -> Iterator[pa.Table]:
        nonlocal rows, began
        own = dict(model_name_or_path=model, test_file=file, do_predict=True, output_dir=folder, report_to="none")
        argv = ["--per_device_eval_batch_size", "32", *flags, *command_line(own), "--disable_tqdm", "true"]
        data_args, model_args, args, given_flags = parse(argv, task.arguments, description="")
        if refused := sorted(REFUSED & given_flags.keys()):
            raise ValueError(f"--{refused[0]} cannot be used to predict a file: remove this flag")
        config = load_config(model_args)
        tokenizer = load_tokenizer_for(config, model_args)
        loaded, _ = load_model(model_args, config, task.read.auto_class, is_trained=False)
        trainer, began = None, time.perf_counter()
        form = dict(delimiter=data_args.delimiter, encoding=data_args.encoding)
        parts = file_parts(Path(file), Path(folder), part_rows, **form)
        for part in tqdm(parts, unit=f" x {part_rows} rows", disable=None):
            try:
                part_args = dataclasses.replace(data_args, test_file=[str(part)], delimiter=None, encoding=UTF_8)
                data = task.read(part_args, model_args)
                data.use_config(config)
                encoded = data.encode(tokenizer, config)
            except ValueError as error:
                reason = str(error).replace(str(part), str(file))
                raise ValueError(f"{file}, in the {part_rows:,} rows starting at row {rows + 1:,}: {reason}") from error
            trainer = trainer or TaskTrainer(loaded, args, task=encoded, processing_class=tokenizer)
            table = predicted_table(trainer, encoded)
            yield table.set_column(0, "row", compute.add(table["row"], rows))
            rows += len(table)
        if not rows:
            raise ValueError(f"{file} must have at least one row, got none")

    with tempfile.TemporaryDirectory() as folder:
        write_tables(Path(output), tables(folder))
    return rows, time.perf_counter() - began


def predicted_table(trainer: TaskTrainer, task: EncodedTask) -> pa.Table:
    """Predict a task's single test set, in batches of rows of similar length; return the table of predictions."""
    [test] = task.test.values()
    names = test.rows.column_names
    lengths = cells(test.rows, "length") if "length" in names else [*map(len, cells(test.rows, "input_ids"))]
    order = np.argsort(lengths, kind="stable")[::-1]
    inputs = [name for name in names if name in trainer.processing_class.model_input_names]
    rows = test.rows.select_columns(inputs).select(order)
    predictions = trainer.predict_set(dataclasses.replace(test, rows=rows, metrics=None), "predict").predictions
    places = np.argsort(order)
    if isinstance(predictions, tuple):
        return test.table(tuple(logits[places] for logits in predictions))
    return test.table(predictions[places])


def file_parts(
    file: Path, folder: Path, count: int, *, delimiter: str | None = None, encoding: str = UTF_8
) -> Iterator[Path]:
    """Split a file into parts of `count` rows, sentences or articles; yield the path of each part in turn.

    All parts have the same path in `folder`: each part overwrites the previous one. They are written in UTF-8.
    """
    if file_kind(file) in (None, "text"):
        part, join, items = folder / file.name.removesuffix(".gz"), "".join, conll_sentences(file, encoding)
    else:
        part, join = folder / "part.json", partial(json.dumps, default=str)
        items = (row for _, row in read_rows(file, delimiter=delimiter, encoding=encoding))
    while batch := [*itertools.islice(items, count)]:
        part.write_text(join(batch), encoding="utf-8", newline="")
        yield part


def conll_sentences(file: Path, encoding: str) -> Iterator[str]:
    """Yield the sentences of a CoNLL file, each as the text of its lines followed by a blank line."""
    with open_text(file, encoding) as lines:
        for has_words, sentence in itertools.groupby(lines, key=lambda line: bool(line.strip())):
            if has_words:
                yield "".join(sentence) + "\n\n"
