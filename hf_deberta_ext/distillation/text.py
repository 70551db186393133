# SPDX-License-Identifier: Apache-2.0
"""Data of `distill text`: unlabelled texts to train on, and text pairs with similarity scores to evaluate on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import AutoModel, AutoModelForMaskedLM, DataCollatorWithPadding

from ..data.columns import as_numbers, cells, check_columns, first
from ..data.files import FLAGS
from ..finetuning.arguments import DataArguments
from ..finetuning.input_lengths import longest_input
from ..finetuning.metrics import pearson, spearman
from ..finetuning.task import EncodedTask, EvaluationSet, TaskData
from ..finetuning.tasks.text_classification import tokenise_texts
from ..pretraining.corpus import load_corpus
from ..pretraining.packing import pack
from ..training.flags import option

__all__ = ["TextArguments", "TextData", "similarity"]


@dataclass
class TextArguments(DataArguments):
    """Flags of `distill text`: files, columns and word masking."""

    train_file: list[str] = option(list, "texts: lines of .txt, or rows of csv, tsv, json, jsonl, parquet; also folders")
    validation_file: list[str] = option(list, "files of text pairs with similarity scores, to evaluate embeddings on")
    text_column: str = option("text", "column of the texts to train on")
    pair_columns: list[str] = option(list, "two text columns of --validation_file; default: sentence1 sentence2")
    label_column: str = option("label", "column of the similarity scores in --validation_file")
    masked_share: float = option(0.0, "share of examples that are only used to predict masked words, without the teacher")
    masked_file: list[str] = option(list, "files of documents to mask, packed to --max_seq_length; default: --train_file")
    masking_rate: float = option(0.15, "share of tokens to mask (whole words) in the examples of --masked_share")

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.masked_share < 1:
            raise ValueError(f"--masked_share must be at least 0 and below 1, got {self.masked_share:g}")
        if self.masked_file and not self.masked_share:
            raise ValueError("--masked_file needs --masked_share above 0, such as 0.25")
        if len(self.pair_columns) not in (0, 2):
            raise ValueError(f"--pair_columns must be two columns, got {' '.join(self.pair_columns)}")

    @property
    def auto_class(self) -> Any:
        """Auto class of the student: `AutoModelForMaskedLM` if words are masked, else `AutoModel`."""
        return AutoModelForMaskedLM if self.masked_share else AutoModel


class TextData(TaskData):
    """Texts to train on, and pairs with scores to evaluate mean pooled embeddings on; see `TaskData`.

    `passages` are the packed rows of --masked_file, token ids [N] each; None before `encode`, or if the flag is not set.
    """

    name = "text"
    passages: Dataset | None = None

    def __init__(self, data_args: TextArguments, hub: Any = None):
        self.data_args, self.auto_class = data_args, data_args.auto_class
        self.pipeline = "fill-mask" if data_args.masked_share else "encoder"
        texts = load_corpus(data_args.train_file, documents="line", text_column=data_args.text_column)
        self.train = first(texts, data_args.max_train_samples)
        self.dataset, self.num_train = ", ".join(Path(file).name for file in data_args.train_file), len(self.train)
        self.pairs, self.scores = [], np.zeros(0)
        if data_args.validation_file:
            columns, label = data_args.pair_columns or ["sentence1", "sentence2"], data_args.label_column
            rows = data_args.read(data_args.validation_file, FLAGS["validation"])
            check_columns(rows, [*columns, label], source=FLAGS["validation"], flag="--pair_columns, --label_column")
            rows = first(as_numbers(rows, label), data_args.max_eval_samples)
            # All first texts, then all second texts
            self.pairs = [text for column in columns for text in cells(rows, column)]
            self.scores = np.array(cells(rows, label), dtype=np.float64)
        self.num_evaluation = len(self.scores)

    def config_fields(self) -> dict[str, Any]:
        return {}

    def encode(self, tokenizer, config) -> EncodedTask:
        length = longest_input(tokenizer, config, self.data_args.max_seq_length, 128)
        options, sets = dict(tokenizer=tokenizer, columns=["text"], length=length), {}
        sets["train"] = self.data_args.tokenise(self.train, tokenise_texts, "train", **options).select_columns("input_ids")
        if self.data_args.masked_file:
            documents = load_corpus(self.data_args.masked_file, text_column=self.data_args.text_column)
            packing = dict(mode="full_sentences", max_length=length, num_proc=self.data_args.preprocessing_num_workers)
            self.passages, report = pack(documents, tokenizer, **packing)
            print(f"--masked_file: {report.summary()}", flush=True)
        if self.pairs:
            rows = Dataset.from_dict({"text": self.pairs})
            rows = self.data_args.tokenise(rows, tokenise_texts, "validation", **options).remove_columns("cut")

            def metrics(embeddings: np.ndarray, labels: Any) -> dict[str, float]:
                return similarity(embeddings, self.scores)

            sets["validation"] = EvaluationSet(rows, metrics, lambda *_: [], len(self.scores))
        return EncodedTask.of_splits(sets, DataCollatorWithPadding(tokenizer, **self.data_args.padding(length)), "spearmanr")


def similarity(embeddings: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """Return the correlations of scores [n] with cosines of embeddings [2 n, d]; rows i and n + i are pair i."""
    embeddings = embeddings / np.linalg.norm(embeddings, axis=-1, keepdims=True)
    cosines = (embeddings[: len(scores)] * embeddings[len(scores) :]).sum(-1)
    return {"pearson": pearson(cosines, scores), "spearmanr": spearman(cosines, scores)}
