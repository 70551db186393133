# SPDX-License-Identifier: Apache-2.0
"""Unlabelled texts as the data of a distillation, evaluated by the similarity of pairs with scores."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import AutoModel, AutoModelForMaskedLM, DataCollatorWithPadding

from ..data.columns import TEXT_COLUMNS, as_numbers, cells, check_cells, check_columns, first
from ..data.files import FLAGS, file_kind
from ..finetuning.arguments import DataArguments
from ..finetuning.input_lengths import longest_input
from ..finetuning.metrics import pearson, spearman
from ..finetuning.task import EncodedTask, EvaluationSet, TaskData
from ..finetuning.tasks.text_classification import tokenise_texts
from ..pretraining.corpus import load_corpus
from ..training.flags import option

__all__ = ["TextArguments", "TextData", "similarity"]


@dataclass
class TextArguments(DataArguments):
    """Flags of unlabelled text."""

    train_file: list[str] = option(list, "texts: lines of .txt, or a column (for a pair two) of csv, tsv, jsonl, parquet")
    validation_file: list[str] = option(list, "pairs of texts with a score of their similarity")
    text_columns: list[str] = option(list, "column of the text, or two columns of a pair; default: names that GLUE uses")
    label_column: str = option("label", "column of the scores")
    masked_share: float = option(0.0, "share of the rows that predict masked words, and are not compared with the teacher")
    masking_rate: float = option(0.15, "share of their tokens to mask, as whole words")


class TextData(TaskData):
    """Texts or pairs of texts, and pairs with scores to evaluate mean pooled embeddings on; see `TaskData`."""

    name, auto_class = "text", AutoModel

    def __init__(self, data_args: TextArguments, hub: Any = None):
        self.data_args, self.auto_class, self.pipeline = data_args, *head_of(data_args)
        if {*map(file_kind, data_args.train_file)} == {"text"}:
            rows = load_corpus(data_args.train_file, documents="line")
        else:
            rows = data_args.read(data_args.train_file, FLAGS["train"])
        self.train = first(rows.select_columns(self.columns(rows, FLAGS["train"])), data_args.max_train_samples)
        self.dataset, self.pairs = ", ".join(Path(file).name for file in data_args.train_file), None
        if data_args.validation_file:
            rows = as_numbers(data_args.read(data_args.validation_file, FLAGS["validation"]), data_args.label_column)
            check_columns(rows, [data_args.label_column], source=FLAGS["validation"], flag="--label_column")
            self.pairs = first(rows, data_args.max_eval_samples)
        self.num_train, self.num_evaluation = len(self.train), len(self.pairs or ())

    def columns(self, rows: Dataset, source: str) -> list[str]:
        """Return the names of the text columns, after checking their cells."""
        known = [[*columns] for columns in TEXT_COLUMNS if {*columns} <= {*rows.column_names}]
        columns = self.data_args.text_columns or next(iter(known), ["text"])
        check_columns(rows, columns, source=source, flag="--text_columns")
        for column in columns:
            check_cells(rows, column, str, source=source)
        return columns

    def texts(self) -> list[tuple[str, ...]]:
        """Return the text or pair of each training row."""
        return [*zip(*(cells(self.train, column) for column in self.train.column_names), strict=True)]

    def scored(self) -> tuple[list[str], np.ndarray]:
        """Return the texts of the scored pairs, first all first ones, then all second ones; and the scores."""
        columns = self.columns(self.pairs, FLAGS["validation"])
        if len(columns) != 2:
            raise ValueError(f"{FLAGS['validation']} must have two columns of text, got {', '.join(columns)}")
        texts = [text for column in columns for text in cells(self.pairs, column)]
        return texts, np.array(cells(self.pairs, self.data_args.label_column), dtype=np.float64)

    def config_fields(self) -> dict[str, Any]:
        return {}

    def encode(self, tokenizer, config) -> EncodedTask:
        length = longest_input(tokenizer, config, self.data_args.max_seq_length, 128)

        def encoded(rows: Dataset, name: str) -> Dataset:
            options = dict(tokenizer=tokenizer, columns=rows.column_names, length=length)
            return self.data_args.tokenise(rows, tokenise_texts, name, **options).remove_columns("cut")

        sets: dict[str, Any] = {"train": encoded(self.train, "train")}
        if self.pairs is not None:
            texts, scores = self.scored()

            def write(embeddings: np.ndarray, folder: Path, stem: str) -> list[Path]:
                file = folder / f"{stem}_similarities.json"
                file.write_text(json.dumps(cosines(embeddings).tolist()) + "\n", encoding="utf-8")
                return [file]

            rows = encoded(Dataset.from_dict({"text": texts}), "validation")
            sets["validation"] = EvaluationSet(rows, lambda found, _: similarity(found, scores), write, len(scores))
        return EncodedTask.of_splits(sets, DataCollatorWithPadding(tokenizer, **self.data_args.padding(length)), "spearmanr")


def head_of(data_args: TextArguments) -> tuple[Any, str]:
    """Return the Auto class and the pipeline of the student: a masked language model if words are masked."""
    if not 0 <= data_args.masked_share < 1:
        raise ValueError(f"--masked_share must be at least 0 and below 1, got {data_args.masked_share:g}")
    return (AutoModelForMaskedLM, "fill-mask") if data_args.masked_share else (AutoModel, "encoder")


def cosines(embeddings: np.ndarray) -> np.ndarray:
    """Return the cosine of the embeddings i and n + i of [2 n, d]."""
    embeddings = embeddings / np.linalg.norm(embeddings, axis=-1, keepdims=True)
    return (embeddings[: len(embeddings) // 2] * embeddings[len(embeddings) // 2 :]).sum(-1)


def similarity(embeddings: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """Return the correlations of the cosines of pairs [2 n, d] with their scores [n]."""
    found = cosines(np.asarray(embeddings))
    return {"pearson": pearson(found, scores), "spearmanr": spearman(found, scores)}
