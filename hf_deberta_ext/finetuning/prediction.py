# SPDX-License-Identifier: Apache-2.0
"""Predictions of a fine-tuned model for the rows of a file, which is read in parts: the memory does not grow with it."""

import dataclasses
import itertools
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from datasets import disable_progress_bars
from pyarrow import compute, parquet
from tqdm.auto import tqdm
from transformers import PretrainedConfig

from ..data.columns import cells
from ..data.files import file_kind, open_parquet, open_text, read_rows
from ..training.flags import command_line
from .arguments import ModelArguments, parse
from .models import load_config, load_model, load_tokenizer_for
from .prediction_tables import ROW, PredictionWriter
from .task import EncodedTask
from .tasks import load_task
from .trainer import TaskTrainer

__all__ = ["PredictionSpeed", "file_parts", "predict_file", "task_of"]

# Rows of a part, in memory with their features and outputs.
PART_ROWS = 2000
TASKS = {
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "ner",
    "ForQuestionAnswering": "qa",
    "ForMultipleChoice": "multiple-choice",
}
REFUSED = set(
    """model_name_or_path model output_dir train_file validation_file test_file dataset_name do_train do_eval do_predict
    max_predict_samples predictions_format""".split()
)
QUIET = dict(report_to="none", disable_tqdm=True, per_device_eval_batch_size=32)


class PredictionSpeed(NamedTuple):
    """Number of predicted rows, and the seconds that reading, predicting and writing took, without loading the model."""

    rows: int
    seconds: float


def task_of(config: PretrainedConfig, source: str) -> str:
    """Return the name of the task of a fine-tuned model, by its architecture.

    Raises:
        ValueError: the architecture is of no task.
    """
    architectures = config.architectures or []
    for ending, task in TASKS.items():
        if any(name.endswith(ending) for name in architectures):
            return task
    raise ValueError(
        f"{source} has the architecture {', '.join(architectures) or 'None'}, expected one that ends in {', '.join(TASKS)}: "
        "fine-tune the model first"
    )


def predict_file(
    model: str, file: str | Path, output: str | Path, flags: Sequence[str] = (), *, part_rows: int = PART_ROWS
) -> PredictionSpeed:
    """Write a table with the predictions of a fine-tuned model for each row of a file; columns as of `prediction_table`.

    Rows of similar length are predicted in one batch, and written in the order of the file.

    Args:
        model (`str`): folder or Hub id of a model for text classification, token classification, question answering or
            multiple choice.
        file (`str` or `Path`): rows as in a --test_file of the task.
        output (`str` or `Path`): the table to write, .csv or .parquet.
        flags (`Sequence[str]`): further flags of `deberta-ext finetune TASK`, such as ["--text_columns", "review"].
        part_rows (`int`): rows that are in memory at a time.

    Returns:
        Number of rows and seconds.

    Raises:
        ValueError: the model is not fine-tuned for a task; a flag, the file or a row of it is wrong.
    """
    refused = [flag for flag in flags if flag.startswith("--") and flag[2:].replace("-", "_") in REFUSED]
    if refused:
        raise ValueError(f"{refused[0]} is no flag of predictions for a file: leave it out")
    file = Path(file).expanduser()
    task = load_task(task_of(load_config(ModelArguments(model_name_or_path=model)), model))
    disable_progress_bars()
    with tempfile.TemporaryDirectory() as folder, PredictionWriter(Path(output)) as writer:
        own = dict(model_name_or_path=model, test_file=file, do_predict=True, output_dir=folder) | QUIET
        data_args, model_args, args, _ = parse([*command_line(own), *flags], task.arguments, description="")
        config = load_config(model_args)
        tokenizer = load_tokenizer_for(config, model_args)
        loaded, _ = load_model(model_args, config, task.read.auto_class, is_trained=False)
        began, trainer = time.perf_counter(), None
        with tqdm(unit=" rows", disable=None) as bar:
            for part in file_parts(file, Path(folder), part_rows):
                try:
                    data = task.read(dataclasses.replace(data_args, test_file=[str(part)]), model_args)
                    data.use_config(config)
                    encoded = data.encode(tokenizer, config)
                except ValueError as error:
                    reason = str(error).replace(str(part), str(file))
                    raise ValueError(f"{file}, in the {part_rows:,} rows from {writer.rows + 1:,} on: {reason}") from error
                if trainer is None:
                    trainer = TaskTrainer(loaded, args, task=encoded, processing_class=tokenizer)
                table = predicted_table(trainer, encoded)
                numbers = compute.add(table[ROW], writer.rows)
                writer.write(table.set_column(0, ROW, numbers))
                bar.update(len(table))
    if not writer.rows:
        raise ValueError(f"{file} has no rows")
    return PredictionSpeed(writer.rows, time.perf_counter() - began)


def predicted_table(trainer: TaskTrainer, task: EncodedTask) -> pa.Table:
    """Return the table of a task's one test set, which is predicted in batches of rows of similar length."""
    [test] = task.test.values()
    names = test.rows.column_names
    if "length" in names:
        lengths = cells(test.rows, "length")
    else:
        lengths = [*map(len, cells(test.rows, "input_ids"))]
    order = np.argsort(lengths, kind="stable")[::-1]
    inputs = [name for name in names if name in trainer.processing_class.model_input_names]
    rows = test.rows.select_columns(inputs).select(order)
    predictions = trainer.predict_set(dataclasses.replace(test, rows=rows, metrics=None), "predict").predictions
    places = np.argsort(order)
    if isinstance(predictions, tuple):
        return test.table(tuple(values[places] for values in predictions))
    return test.table(predictions[places])


def file_parts(file: Path, folder: Path, count: int) -> Iterator[Path]:
    """Split a file into files of `count` rows, sentences or articles, one after another; each replaces the one before.

    A folder (RACE's raw release) is one part, itself.

    Args:
        folder (`Path`): where the parts are written.
    """
    if file.is_dir():
        yield file
        return
    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    kind = file_kind(file)
    if kind == "parquet":
        part = folder / "part.parquet"
        with open_parquet(file) as table:
            for batch in table.iter_batches(count):
                parquet.write_table(pa.Table.from_batches([batch]), part)
                yield part
    elif kind in (None, "text"):
        part = folder / file.name.removesuffix(".gz")
        for sentences in in_lists(conll_sentences(file), count):
            part.write_text("".join(sentences), encoding="utf-8", newline="")
            yield part
    else:
        part = folder / "part.json"
        for rows in in_lists((row for _, row in read_rows(file)), count):
            part.write_text(json.dumps({"data": rows}), encoding="utf-8")
            yield part


def conll_sentences(file: Path) -> Iterator[str]:
    """Iterate over the lines of each sentence of a CoNLL file, with a blank line at their end."""
    with open_text(file) as lines:
        for has_words, sentence in itertools.groupby(lines, key=lambda line: bool(line.strip())):
            if has_words:
                yield "".join(sentence) + "\n\n"


def in_lists(items: Iterator[Any], count: int) -> Iterator[list[Any]]:
    """Iterate over lists of `count` items, the last one of the rest."""
    while part := [*itertools.islice(items, count)]:
        yield part
