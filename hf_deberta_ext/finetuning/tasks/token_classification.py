# SPDX-License-Identifier: Apache-2.0
"""A label for each word: named entities, parts of speech and the like, for any token classification model.

The first token of a word carries its label and gives its prediction. A word that no token stands for, because its tokenizer
drops its characters or because the sentence is cut before it, is predicted as "O" and counted all the same: every metric is
over all words of all sentences.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import AutoModelForTokenClassification
from transformers.utils import logging

from ...training.flags import option
from ..arguments import DataArguments
from ..input_lengths import longest_input
from ..task import EncodedTask, EvaluationSet
from .entity_metrics import entity_scores
from .labelled_words import HUB, OUTSIDE, Sentences, are_entities, read_sentences, sorted_labels

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from ..arguments import ModelArguments

__all__ = [
    "TokenClassificationArguments", "TokenClassificationCollator", "TokenClassificationData", "take_prefix_space",
]  # fmt: skip

logger = logging.get_logger(__name__)

ABSENT = -100


@dataclass
class TokenClassificationArguments(DataArguments):
    """Flags of token classification, named as in transformers' run_ner."""

    text_column_name: str = option("tokens", "column of the words: a list for each sentence")
    label_column_name: str = option("ner_tags", "column of their labels")
    label_names: list[str] = field(
        default_factory=list, metadata={"help": "names of labels that are numbers, from 0: O B-PER I-PER ..."}
    )
    label_all_tokens: bool = option(False, "train on all tokens of a word (I- behind the B- of the first), not on its first")
    return_entity_level_metrics: bool = option(False, "precision, recall and F1 of each type of entity, too")


# ------- tokens


def take_prefix_space(tokenizer: "PreTrainedTokenizerBase"):
    """Lets a byte-level BPE (DeBERTa v1, RoBERTa) read every word as if a space stood before it, as within a text.

    Nothing happens where the tokenizer is of another kind, or does so. The setting is saved with the tokenizer, so that the
    model reads texts as it was trained.
    """
    outer = tokenizer.backend_tokenizer.pre_tokenizer
    parts = list(outer) if type(outer).__name__ == "Sequence" else [outer]
    for part in parts:
        if type(part).__name__ == "ByteLevel" and not part.add_prefix_space:
            part.add_prefix_space = True
            # Classes that rebuild themselves when they are loaded save it from here.
            if hasattr(tokenizer, "add_prefix_space"):
                tokenizer.add_prefix_space = True


def _encode_words(
    batch: Mapping[str, list], tokenizer: "PreTrainedTokenizerBase", max_length: int, all_tokens: Mapping[int, int] | None
) -> dict[str, list]:
    """Features, and `word_tokens`: the position of the first token of each word, -1 for a word that no token stands for.

    Args:
        all_tokens (`dict[int, int]`, *optional*): label of a word's first token -> that of its other ones; None = -100.
    """
    encoding = tokenizer(batch["words"], is_split_into_words=True, truncation=True, max_length=max_length)
    features = {name: list(values) for name, values in encoding.items()}
    features["word_tokens"] = []
    labels = []
    for number, words in enumerate(batch["words"]):
        positions = [-1] * len(words)
        word_ids = encoding.word_ids(number)
        for position, word in enumerate(word_ids):
            if word is not None and positions[word] < 0:
                positions[word] = position
        features["word_tokens"].append(positions)
        if "label_ids" in batch:
            of = batch["label_ids"][number]
            others = {label: ABSENT for label in of} if all_tokens is None else all_tokens
            row = [ABSENT if word is None else others[of[word]] for word in word_ids]
            for position, label in zip(positions, of, strict=True):
                if position >= 0:
                    row[position] = label
            labels.append(row)
    if labels:
        features["labels"] = labels
    return features


class TokenClassificationCollator:
    """Rows -> batch of [B, N] inputs and labels, padded on the right, whatever the side of the tokenizer: predictions are
    found by their positions.

    Args:
        length (`int`, *optional*): of every batch; None = that of its longest row.
        multiple (`int`, *optional*): the length is made a multiple of it.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", *, length: int | None = None, multiple: int | None = None):
        self.length, self.multiple = length, multiple
        self.fill = {name: 0 for name in tokenizer.model_input_names} | {
            "input_ids": tokenizer.pad_token_id,
            "token_type_ids": tokenizer.pad_token_type_id,
            "labels": ABSENT,
        }

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        N = max(self.length or 0, *(len(row["input_ids"]) for row in rows))
        N += -N % (self.multiple or 1)
        return {
            name: torch.tensor([row[name] + [fill] * (N - len(row[name])) for row in rows])
            for name, fill in self.fill.items()
            if name in rows[0]
        }


# ------- the task


class TokenClassificationData:
    """Sentences to train on, to evaluate and to label; see `TaskData`.

    Read from the Hub (--task_name conll2003 or wnut17, or --dataset_name) or from files: rows with a list of words and a
    list of labels, or CoNLL text files. Metrics are precision, recall and F1 of entities, and accuracy over words; accuracy
    alone where the labels are not those of entities (O, B-PER, I-PER, ...).

    Args:
        data_args (`TokenClassificationArguments`): the flags.
        model_args (`ModelArguments`, *optional*): not used.
    Raises:
        ValueError: nothing to read, a missing column, a cell that is None or of another type, more or fewer labels than
            words, a number without a name, a label that the data to train on does not have.
    """

    pipeline = "token-classification"
    auto_class = AutoModelForTokenClassification
    needs_prefix_space = True

    def __init__(self, data_args: TokenClassificationArguments, model_args: "ModelArguments | None" = None):
        if data_args.task_name is not None and data_args.task_name not in HUB:
            raise ValueError(f"--task_name {data_args.task_name} is not known; there are {', '.join(HUB)}")
        self.data_args, self.name = data_args, data_args.task_name or self.pipeline
        self.sets, self.dataset, names = read_sentences(data_args)
        train = self.sets.get("train")
        labelled = [sentences for sentences in self.sets.values() if sentences.tags is not None]
        # Before the first --max_train_samples are taken: what a rare label is called does not hang on their number.
        known = names or {
            label for sentences in ([train] if train else labelled) for tags in sentences.tags for label in tags
        }
        self.labels = sorted_labels(known)
        self._check_labels()
        self.entities = are_entities(self.labels)
        if data_args.return_entity_level_metrics and not self.entities:
            raise ValueError(
                f"--return_entity_level_metrics: there are no entities, the labels are {', '.join(self.labels)}"
            )
        limits = data_args.limits
        self.sets = {
            split: Sentences(part.words[: limits[split]], part.tags and part.tags[: limits[split]])
            for split, part in self.sets.items()
        }
        self.num_train, self.num_evaluation = (len(self.sets.get(split, ())) for split in ("train", "validation"))

    def _check_labels(self):
        for split, sentences in self.sets.items():
            for number, tags in enumerate(sentences.tags or (), start=1):
                unseen = [label for label in tags if label not in self.labels]
                if unseen:
                    raise ValueError(
                        f"row {number} of {_shown(split)} has the label {unseen[0]!r}, which is none of those to train "
                        f"on: {', '.join(self.labels)}"
                    )

    def use_label_order(self, label2id: Mapping[str, int]):
        """Takes the order of a checkpoint that knows these labels; without data to train on also one that knows more.

        Raises:
            ValueError: there is nothing to train on, and a label of the data is none of the checkpoint's.
        """
        if self.labels and all(re.fullmatch(r"LABEL_\d+", name) for name in label2id):
            if not self.num_train:
                logger.warning(f"the model does not name its labels, which are taken for {', '.join(self.labels)}")
            return
        if {*label2id} == {*self.labels} or not self.num_train:
            if unknown := sorted({*self.labels} - {*label2id}):
                raise ValueError(
                    f"{self.dataset} has the label {unknown[0]!r}, the model has {', '.join(label2id)}; to learn another "
                    "label it needs a --train_file"
                )
            self.labels = sorted(label2id, key=label2id.__getitem__)
            self.entities = are_entities(self.labels)

    def config_fields(self) -> dict[str, Any]:
        if not self.labels:
            return {}
        names = dict(enumerate(self.labels))
        return dict(num_labels=len(names), id2label=names, label2id={name: index for index, name in names.items()})

    def encode(self, tokenizer: "PreTrainedTokenizerBase", config: "PretrainedConfig") -> EncodedTask:
        """Byte-level tokenizers are set to read each word as within a text, see `take_prefix_space`.

        Raises:
            ValueError: the tokenizer is not a fast one.
        """
        if not tokenizer.is_fast:
            raise ValueError(
                f"{type(tokenizer).__name__} does not tell which token is of which word: token classification needs a fast "
                "tokenizer (tokenizer.json); give one with --tokenizer_name"
            )
        take_prefix_space(tokenizer)
        arguments = self.data_args
        max_length = longest_input(tokenizer, config, arguments.max_seq_length, default=512)
        encoded = {split: self._encode(split, tokenizer, max_length) for split in self.sets}
        sets = {
            split: {"": self._evaluation_set(encoded[split], self.sets[split])} if split in encoded else {}
            for split in ("validation", "test")
        }
        train = encoded.get("train")
        if train is not None:
            # A batch of nothing to learn has no mean loss.
            taught = [number for number, labels in enumerate(train["labels"]) if {*labels} - {ABSENT}]
            train = train if len(taught) == len(train) else train.select(taught)
        return EncodedTask(
            train=train,
            evaluation=sets["validation"],
            test=sets["test"],
            collator=TokenClassificationCollator(
                tokenizer,
                length=max_length if arguments.pad_to_max_length else None,
                multiple=arguments.pad_to_multiple_of,
            ),
            metric="f1" if self.entities else "accuracy",
        )

    def _encode(self, split: str, tokenizer: "PreTrainedTokenizerBase", max_length: int) -> "Dataset":
        from datasets import Dataset

        sentences, ids = self.sets[split], {label: index for index, label in enumerate(self.labels)}
        columns: dict[str, list] = {"words": sentences.words}
        if sentences.tags is not None:
            columns["label_ids"] = [[ids[label] for label in tags] for tags in sentences.tags]
        all_tokens = None
        if self.data_args.label_all_tokens:
            all_tokens = {index: ids.get(re.sub("^B-", "I-", label), index) for label, index in ids.items()}
        rows = Dataset.from_dict(columns).map(
            lambda batch: _encode_words(batch, tokenizer, max_length, all_tokens),
            batched=True,
            remove_columns=list(columns),
            num_proc=self.data_args.preprocessing_num_workers,
            desc=f"tokenising {split}",
        )
        lost = [positions.count(-1) for positions in rows["word_tokens"]]
        if any(lost):
            logger.warning(
                f"{sum(lost):,} words in {sum(map(bool, lost)):,} sentences of {_shown(split)} have no token: they are cut "
                f"off at --max_seq_length {max_length}, or of characters that the tokenizer drops. They count as {OUTSIDE!r}"
            )
        return rows

    def _evaluation_set(self, rows: "Dataset", sentences: Sentences) -> EvaluationSet:
        positions = rows["word_tokens"][:]

        def metrics(predictions, labels):
            scores = entity_scores if self.entities else word_accuracy
            return self._named(scores(self._tags(predictions, positions), sentences.tags))

        def write(predictions, folder, stem):
            file = Path(folder, f"{stem}_predictions.txt")
            with file.open("w", encoding="utf-8") as lines:
                for words, tags in zip(sentences.words, self._tags(predictions, positions), strict=True):
                    # White space in a word would be read as the end of it.
                    for word, tag in zip(words, tags, strict=True):
                        lines.write(f"{'_'.join(word.split()) or '_'} {tag}\n")
                    lines.write("\n")
            return [file]

        return EvaluationSet(rows, None if sentences.tags is None else metrics, write, len(sentences))

    def _tags(self, predictions: np.ndarray, positions: Sequence[Sequence[int]]) -> list[list[str]]:
        """A tag for each word of each sentence, from logits [n, N, C]."""
        predictions = np.asarray(predictions)
        if predictions.ndim != 3 or len(predictions) != len(positions) or predictions.shape[2] != len(self.labels):
            raise ValueError(
                f"expected logits of {len(positions)} sentences for {len(self.labels)} labels, got {list(predictions.shape)}"
            )
        if np.isnan(predictions).any():
            raise ValueError("some logits are NaN, of which none is the best: did training diverge?")
        best = predictions.argmax(-1)
        return [
            [self.labels[row[position]] if position >= 0 else OUTSIDE for position in tokens]
            for row, tokens in zip(best, positions, strict=True)
        ]

    def _named(self, scores: Mapping[str, Any]) -> dict[str, float]:
        named = {name.removeprefix("overall_"): value for name, value in scores.items() if not isinstance(value, Mapping)}
        if self.data_args.return_entity_level_metrics:
            for kind, parts in scores.items():
                if isinstance(parts, Mapping):
                    named |= {f"{kind}_{name}": value for name, value in parts.items() if name != "number"}
        return named


def word_accuracy(predicted: Sequence[Sequence[str]], true: Sequence[Sequence[str]]) -> dict[str, float]:
    right = [a == b for ours, theirs in zip(predicted, true, strict=True) for a, b in zip(ours, theirs, strict=True)]
    return {"accuracy": sum(right) / len(right)}


def _shown(split: str) -> str:
    return f"the data of --{split}_file"
