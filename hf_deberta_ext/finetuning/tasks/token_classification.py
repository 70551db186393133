# SPDX-License-Identifier: Apache-2.0
"""Token classification with one label per word (named entities, parts of speech, ...), for any token classification model.

The label and the prediction of a word belong to its first token. Long sentences are split into overlapping windows; each
word is labelled in the window in which it has the most context. A word is predicted as "O" if the tokenizer drops all its
characters; such words count in metrics, which are computed over all words of all sentences.
"""

import copy
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset, concatenate_datasets
from scipy.special import softmax
from transformers import (
    AutoModelForTokenClassification,
    DataCollatorForTokenClassification,
    PretrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from ...data.columns import first
from ...data.files import FLAGS
from ...training.flags import option
from ...training.hub_arguments import HubArguments
from ..arguments import DataArguments
from ..baselines import MAJORITY
from ..class_weights import HELP, WeightedLoss, class_weights
from ..failures import tag_failures
from ..input_lengths import check_fast, longest_input
from ..metrics import accuracy
from ..prediction_tables import prediction_table
from ..task import EncodedTask, EvaluationSet, TaskData, cache_last, label_fields
from .data_checks import CheckedSet, data_table
from .entity_metrics import entity_scores
from .labelled_words import CONLL_ENDINGS, OUTSIDE, Sentence, are_entities, as_columns, read_conll, sorted_labels, word_rows
from .labels import check_logits, label_cells
from .span_failures import entity_failures
from .splits import SPLITS, HubData, read_splits

__all__ = ["TokenClassificationArguments", "TokenClassificationCollator", "TokenClassificationData", "take_prefix_space"]

logger = logging.get_logger(__name__)

# The main branch of conll2003 has a loading script, which datasets does not support any more.
HUB = {
    "conll2003": HubData("eriktks/conll2003", revision="refs/convert/parquet"),
    "wnut17": HubData("leondz/wnut_17", revision="refs/convert/parquet"),
}
ABSENT = -100


@dataclass
class TokenClassificationArguments(DataArguments):
    """Flags of token classification, named as in transformers' run_ner."""

    text_column_name: str = option("tokens", "column of the words: one list per sentence")
    label_column_name: str = option("ner_tags", "column of the labels: one list per sentence")
    label_names: list[str] = option(list, "names of numbered labels, from 0: O B-PER I-PER ...")
    label_all_tokens: bool = option(
        False, "train on all tokens of a word, not only the first; for a word labelled B-X, its other tokens have I-X"
    )
    return_entity_level_metrics: bool = option(False, "also return precision, recall and F1 of each entity type")
    long_sentences: str = option(
        "window",
        "split sentences longer than --max_seq_length into windows that overlap by a quarter, or refuse them",
        choices=["window", "refuse"],
    )
    class_weights: str | None = option(None, HELP)

    needs: ClassVar = {"class_weights": ("without --do_train", lambda args: args.do_train)}


def take_prefix_space(tokenizer: PreTrainedTokenizerBase):
    """Make a byte-level BPE tokenizer (DeBERTa v1, RoBERTa) encode words with a space before them, as within a text.

    Other tokenizers are not changed. The setting is saved with the tokenizer, so that inference uses the same encoding.
    """
    outer = tokenizer.backend_tokenizer.pre_tokenizer
    inners = [outer]
    if type(outer).__name__ == "Sequence":
        inners = [*outer]
    for inner in inners:
        if type(inner).__name__ == "ByteLevel" and not inner.add_prefix_space:
            inner.add_prefix_space = True
            # Tokenizer classes that rebuild their backend when loaded save this attribute.
            if hasattr(tokenizer, "add_prefix_space"):
                tokenizer.add_prefix_space = True


def encode_words(
    batch: Mapping[str, list], *, tokenizer: PreTrainedTokenizerBase, max_length: int, inside: Sequence[int] | None
) -> dict[str, list]:
    """Encode sentences as windows and return their features; a sentence of up to `max_length` tokens is one window.

    "sentence" is the index of a window's sentence. "word_tokens" has the position of the first token of each word of the
    sentence. If a word has no token or belongs to another window, its position is -1, and it has no label in this window.

    Args:
        max_length (`int`): maximum length of a window in tokens.
        inside (`list[int]`, *optional*): if the first token of a word has the label n, its other tokens have the label
            inside[n]; default: -100.
    """
    options = dict(truncation=True, max_length=max_length, return_overflowing_tokens=True, stride=max_length // 4)
    encoding = tokenizer(batch["words"], is_split_into_words=True, **options)
    numbers = encoding.pop("overflow_to_sample_mapping")
    windows = [(number, encoding.word_ids(window)) for window, number in enumerate(numbers)]
    features = {**encoding, "sentence": [batch["sentence"][number] for number in numbers]}
    features["word_tokens"] = word_positions(windows, [*map(len, batch["words"])])
    if "label_ids" in batch:
        features["labels"] = []
        for (number, word_ids), positions in zip(windows, features["word_tokens"], strict=True):
            labels, row = batch["label_ids"][number], [ABSENT] * len(word_ids)
            for position, word in enumerate(word_ids):
                if word is None or positions[word] < 0:
                    continue
                if position == positions[word]:
                    row[position] = labels[word]
                elif inside is not None:
                    row[position] = inside[labels[word]]
            features["labels"].append(row)
    return features


def word_positions(windows: Sequence[tuple[int, Sequence[int | None]]], lengths: Sequence[int]) -> list[list[int]]:
    """Return, for each window, the position of the first token of each word; -1 for words that belong to another window.

    A word belongs to the window that gives it the most context, or to the first such window. The context is the number of
    tokens before or after the word's first token, whichever is smaller.

    Args:
        windows: for each window, the index of its sentence, and the word of each token (None for special tokens).
        lengths: number of words of each sentence.
    """
    best: dict[tuple[int, int], tuple[int, int, int]] = {}
    for window, (number, word_ids) in enumerate(windows):
        for position, word in enumerate(word_ids):
            is_first = word is not None and (position == 0 or word_ids[position - 1] != word)
            context = min(position, len(word_ids) - 1 - position)
            if is_first and ((number, word) not in best or context > best[number, word][0]):
                best[number, word] = (context, window, position)
    positions = [[-1] * lengths[number] for number, _ in windows]
    for (_, word), (_, window, position) in best.items():
        positions[window][word] = position
    return positions


@dataclass
class TokenClassificationCollator(DataCollatorForTokenClassification):
    """Collate rows to inputs and labels [B, N]; takes the arguments of `DataCollatorForTokenClassification`.

    Always pads on the right, because predictions are looked up by position.
    """

    def __post_init__(self):
        self.tokenizer = copy.copy(self.tokenizer)
        self.tokenizer.padding_side = "right"

    def torch_call(self, features):
        names = {*self.tokenizer.model_input_names, "labels"}
        return super().torch_call([{name: row[name] for name in row if name in names} for row in features])


class TokenClassificationData(TaskData):
    """Sentences with a label for each word, for training, evaluation and prediction; see `TaskData`.

    Reads data sets on the Hub (--task_name conll2003 or wnut17, or --dataset_name) or files: rows with a list of words and a
    list of labels, or CoNLL text files. Metrics are precision, recall and F1 of entities and accuracy over words; only
    accuracy if the labels are not entity tags (O, B-PER, I-PER, ...).

    Raises:
        ValueError: if there is no data; a column is missing; a cell is None or of another type; the numbers of labels and
            words differ; a label is a number without a name; or a label does not occur in the training data.
    """

    pipeline = "token-classification"
    auto_class = AutoModelForTokenClassification

    def __init__(self, data_args: TokenClassificationArguments, hub: HubArguments | None = None):
        self.data_args = data_args
        self.name = data_args.task_name or self.pipeline
        columns, names = (data_args.text_column_name, data_args.label_column_name), data_args.label_names
        self.inputs: dict[str, list[Dataset]] = {split: [] for split in SPLITS}

        def from_rows(rows, place, split):
            nonlocal names
            self.inputs[split].append(rows)
            if columns[1] in rows.column_names:
                names = label_cells(rows, columns[1])[1] or names
            return word_rows(rows, *columns, source=place, names=data_args.label_names, labelled=split != "test")

        def from_file(file, split):
            flag = FLAGS[split]
            if not file.name.lower().endswith(CONLL_ENDINGS):
                return from_rows(data_args.read(file, flag), f"{flag} {file.name}", split)
            sentences = read_conll(file, source=flag, encoding=data_args.encoding)
            if split != "test" and sentences[0].tags is None:
                raise ValueError(f"{flag}: {file} must have tags, got only words: give such a file as --test_file")
            self.inputs[split].append(Dataset.from_dict({columns[0]: as_columns(sentences)[0]}))
            return sentences

        sets, self.dataset = read_splits(data_args, hub, HUB, from_file, from_rows)
        for split, sentences in sets.items():
            tags = as_columns(sentences)[1]
            if None in tags and any(tags):
                raise ValueError(f"{FLAGS[split]}: either all files or none must have labels, got both kinds")
        if "train" in sets and not names:
            # From all training data, so that the labels do not depend on --max_train_samples.
            names = chain.from_iterable(as_columns(sets["train"])[1])
        self.sets = sets
        self.set_labels(sorted_labels(names or ()))
        self.sets = {split: sentences[: data_args.limits[split]] for split, sentences in sets.items()}
        self.num_train, self.num_evaluation = (len(self.sets.get(split, ())) for split in ("train", "validation"))
        table = data_table(self.checked("train"), self.checked("validation"), unit="words")
        if table and self.num_train and data_args.task_name is None:
            logger.warning(table)

    def checked(self, split: str) -> CheckedSet:
        """Return the words and tags of a set, for the data checks."""
        words, tags = as_columns(self.sets.get(split, ()))
        return CheckedSet([*map(tuple, words)], [*map(tuple, tags)], self.counts_of(split))

    def set_labels(self, labels: list[str]):
        """Set the labels, in the order of their ids ([] if not known yet), and check that the data has no other labels."""
        self.labels = labels
        self.entities = are_entities(labels)
        if not labels:
            return
        if self.data_args.return_entity_level_metrics and not self.entities:
            raise ValueError(f"--return_entity_level_metrics needs entity labels, got {', '.join(labels)}: remove it")
        for split, sentences in self.sets.items():
            for number, sentence in enumerate(sentences, start=1):
                if unseen := sorted({*(sentence.tags or ())} - {*labels}):
                    raise ValueError(
                        f"row {number} of the data of {FLAGS[split]} has the label {unseen[0]!r}, expected a label of the "
                        f"training data or of the model: {', '.join(labels)}"
                    )

    def use_config(self, config: PretrainedConfig):
        """Use the labels of the checkpoint, in its order, if there is no training data or if both have the same labels."""
        if not self.num_train or {*config.label2id} == {*self.labels}:
            self.set_labels(sorted(config.label2id, key=config.label2id.get))

    def config_fields(self) -> dict[str, Any]:
        return label_fields(self.labels)

    def encode(self, tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig) -> EncodedTask:
        """Encode the sentences of all sets; change a byte-level tokenizer with `take_prefix_space`."""
        check_fast(tokenizer, "token classification", "which does not map tokens to words")
        take_prefix_space(tokenizer)
        max_length = longest_input(tokenizer, config, self.data_args.max_seq_length, default=512)
        sets = {}
        for split, sentences in self.sets.items():
            sets[split] = self.encoded_rows(split, tokenizer, max_length)
            if split != "train":
                inputs = concatenate_datasets(self.inputs[split])
                sets[split] = self.evaluation_set(sets[split], sentences, first(inputs, len(sentences)))
        if "train" in sets:
            # The mean loss of a batch without labels would be NaN.
            sets["train"] = sets["train"].filter(lambda row: {*row["labels"]} != {ABSENT})
        collator = TokenClassificationCollator(tokenizer, **self.data_args.padding(max_length))
        loss = None
        if self.data_args.class_weights and "train" in sets:
            loss = WeightedLoss(class_weights(self.data_args.class_weights, self.label_counts, self.labels))
        return EncodedTask.of_splits(sets, collator, "f1" if self.entities else "accuracy", loss)

    def encoded_rows(self, split: str, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Dataset:
        """Return the features of a set; refuse or report long sentences (--long_sentences); report words without tokens."""
        words, tags = as_columns(self.sets[split])
        ids = {label: index for index, label in enumerate(self.labels)}
        columns: dict[str, list] = {"words": words, "sentence": [*range(len(words))]}
        if None not in tags:
            columns["label_ids"] = [[*map(ids.__getitem__, labels)] for labels in tags]
        inside = None
        if self.data_args.label_all_tokens:
            inside = [ids.get(re.sub("^B-", "I-", label), index) for label, index in ids.items()]
        options = dict(tokenizer=tokenizer, max_length=max_length, inside=inside)
        rows = self.data_args.tokenise(Dataset.from_dict(columns), encode_words, split, **options)
        data = f"of {FLAGS[split]}"
        long = [number for number, windows in Counter(rows["sentence"][:]).items() if windows > 1]
        if long:
            message = f"{len(long):,} of {len(words):,} sentences {data} have more than {max_length} tokens "
            message += f"(--max_seq_length), such as sentence {long[0] + 1:,} with {len(words[long[0]]):,} words"
            if self.data_args.long_sentences == "refuse":
                raise ValueError(f"{message}: raise --max_seq_length, split the sentences, or give --long_sentences window")
            logger.warning(f"{message}: they are split into overlapping windows (--long_sentences)")
        # Each word has a position in one of its windows, and -1 in the others.
        positions = [*chain.from_iterable(rows["word_tokens"][:])]
        lost = sum(map(len, words)) - len(positions) + positions.count(-1)
        if lost:
            logger.warning(f"{lost:,} words {data} are dropped by the tokenizer and predicted as {OUTSIDE!r}")
        return rows

    def scores(self, predicted: Sequence[Sequence[str]], tags: Sequence[Sequence[str]]) -> dict[str, float]:
        """Compute the metrics of predicted tags; `predicted` and `tags` have a list for each sentence."""
        if not self.entities:
            return {"accuracy": accuracy([*chain.from_iterable(predicted)], [*chain.from_iterable(tags)])}
        scores = {}
        for name, value in entity_scores(predicted, tags).items():
            if not isinstance(value, Mapping):
                scores[name.removeprefix("overall_")] = value
            elif self.data_args.return_entity_level_metrics:
                scores |= {f"{name}_{metric}": value[metric] for metric in ("precision", "recall", "f1")}
        return scores

    @property
    def label_counts(self) -> dict[str, int]:
        """Return the number of training words of each label."""
        return self.counts_of("train")

    def counts_of(self, split: str) -> dict[str, int]:
        """Return the number of words of each label in a set; labels without words are left out."""
        counts = Counter(chain.from_iterable(as_columns(self.sets.get(split, ()))[1]))
        return {label: counts[label] for label in self.labels if label in counts}

    @cached_property
    def baselines(self) -> dict[str, dict[str, float]]:
        """Return the metrics of always predicting the most common label (for entities, "O" with an F1 of 0)."""
        counts, evaluated = self.label_counts, self.sets.get("validation")
        if not counts or evaluated is None:
            return {}
        label = max(counts, key=counts.__getitem__)
        _, tags = as_columns(evaluated)
        return {MAJORITY: self.scores([[label] * len(row) for row in tags], tags)}

    def evaluation_set(self, rows: Dataset, sentences: Sequence[Sentence], inputs: Dataset) -> EvaluationSet:
        """Return an evaluation set; `rows` are the features of the windows of `sentences`, `inputs` the original rows."""
        numbers, positions = rows["sentence"][:], rows["word_tokens"][:]
        words, gold = as_columns(sentences)

        def by_word(values: np.ndarray, default: Any) -> list[list[Any]]:
            """Convert window `values` [n, N] to one value per word in each sentence; words without a token get `default`."""
            cells = [[default] * len(sentence) for sentence in words]
            for row, number, tokens in zip(values.tolist(), numbers, positions, strict=True):
                for word, position in enumerate(tokens):
                    if position >= 0:
                        cells[number][word] = row[position]
            return cells

        @cache_last
        def tags_of(logits: Any) -> list[list[str]]:
            """Convert the logits [n, N, C] of n windows to a tag for each word of each sentence."""
            return by_word(np.array(self.labels)[check_logits(logits).argmax(-1)], OUTSIDE)

        def metrics(predictions, labels):
            return self.scores(tags_of(predictions), gold)

        def write(predictions, folder, stem):
            file = Path(folder, f"{stem}_predictions.txt")
            with file.open("w", encoding="utf-8") as lines:
                for sentence, tags in zip(words, tags_of(predictions), strict=True):
                    # White space would end the word when the file is read.
                    for word, tag in zip(sentence, tags, strict=True):
                        lines.write(f"{'_'.join(word.split()) or '_'} {tag}\n")
                    lines.write("\n")
            return [file]

        def failures(predictions):
            predicted = tags_of(predictions)
            if self.entities:
                return entity_failures(gold, predicted, words)
            # Words without a token are predicted as "O", which may not be one of the labels.
            names = [*dict.fromkeys([*self.labels, *chain.from_iterable(predicted)])]
            classes = [[*map(names.index, chain.from_iterable(tags))] for tags in (gold, predicted)]
            return tag_failures(*classes, names)

        def table(predictions):
            best = softmax(check_logits(predictions).astype(np.float64), axis=-1).max(-1).round(6)
            labels = None if None in gold else gold
            return prediction_table(inputs, predicted=tags_of(predictions), gold=labels, probability=by_word(best, None))

        scored = None if None in gold else metrics
        return EvaluationSet(rows, scored, write, len(sentences), failures=failures, table=table)


TASK = (TokenClassificationData, TokenClassificationArguments)
