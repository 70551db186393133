# SPDX-License-Identifier: Apache-2.0
"""A label for each word: named entities, parts of speech and the like, for any token classification model.

The first token of a word carries its label and gives its prediction. A sentence that is too long for the model is read in
windows that overlap; each of its words belongs to the window in which it has most context. A word without a token, because
the tokenizer drops its characters, is predicted as "O" and counted: every metric is over all words of all sentences.
"""

import copy
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

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

from ...data.columns import cells, check_cells, check_columns, first
from ...data.files import FLAGS, UTF_8, open_text
from ...training.flags import option
from ...training.hub_arguments import HubArguments
from ..arguments import DataArguments
from ..baselines import MAJORITY
from ..class_weights import HELP, WeightedLoss, class_weights
from ..failures import tag_failures
from ..input_lengths import longest_input
from ..metrics import accuracy
from ..prediction_tables import prediction_table
from ..task import EncodedTask, EvaluationSet, TaskData, label_fields
from .data_checks import CheckedSet, data_table
from .entity_metrics import entity_scores
from .labels import check_logits, label_cells
from .span_failures import entity_failures
from .splits import SPLITS, HubData, read_splits

__all__ = ["TokenClassificationArguments", "TokenClassificationCollator", "TokenClassificationData", "take_prefix_space"]

logger = logging.get_logger(__name__)

# The first branch of each holds a script, which datasets no longer runs.
HUB = {
    "conll2003": HubData("eriktks/conll2003", revision="refs/convert/parquet"),
    "wnut17": HubData("leondz/wnut_17", revision="refs/convert/parquet"),
}
ABSENT = -100


CONLL_ENDINGS = (".txt", ".conll", ".txt.gz", ".conll.gz")
OUTSIDE = "O"
ENTITY_TAG = re.compile("([BIES])-(.+)")


class Sentence(NamedTuple):
    """Words, and a label for each; None for a sentence without labels."""

    words: list[str]
    tags: list[str] | None


def read_conll(file: Path, *, source: str, encoding: str = UTF_8) -> list[Sentence]:
    """Read a CoNLL text file: a word a line, its tag in the last column, a blank line between sentences; also .gz.

    Columns are parted by tabs where a line has any, or else by spaces. Lines of -DOCSTART- are left out, and so are
    comments of CoNLL-U, "# name = value". Lines of one column alone are words without tags.

    Raises:
        ValueError: it is in another encoding, without a word, or some lines have a tag and others none; its first column
            numbers the words, as in CoNLL-U.
    """
    sentences: list[list[list[str]]] = [[]]
    without = with_tags = None
    with open_text(file, encoding) as lines:
        for line in lines:
            if not line.strip() or line.startswith("-DOCSTART-"):
                sentences.append([])
            elif not re.match(r"# \S+ = ", line):
                separator = "\t+" if "\t" in line else " +"
                columns = [*filter(None, re.split(separator, line.rstrip("\r\n")))]
                sentences[-1].append(columns)
                if len(columns) > 1:
                    with_tags = columns
                else:
                    without = columns
    longest = [columns[0] for columns in max(sentences, key=len)]
    if not longest:
        raise ValueError(f"{source}: {file} has no words")
    if without and with_tags:
        raise ValueError(f"{source}: {file} has the line {without[0]!r} without a tag: all lines must have one, or none")
    if len(longest) > 1 and all(re.fullmatch("#|[0-9]+([-.][0-9]+)?", word) for word in longest):
        raise ValueError(
            f"{source}: {file} numbers its words, as CoNLL-U does, but the first column must be the word, the last its tag"
        )
    read = []
    for sentence in filter(None, sentences):
        tags = [columns[-1].strip() for columns in sentence]
        read.append(Sentence([columns[0] for columns in sentence], tags if with_tags else None))
    return read


def word_rows(
    rows: Dataset, text_column: str, label_column: str, *, source: str, names: Sequence[str] = (), labelled: bool = True
) -> list[Sentence]:
    """Return the sentences of rows.

    Args:
        text_column, label_column (`str`): lists of words, and of their labels.
        source (`str`): where the rows are from, for messages.
        names: of labels that are numbers, where the data set has no names for them.
        labelled (`bool`): labels must be there.
    Raises:
        ValueError: a column is missing; a cell is no list, or there are more or fewer labels than words; a word is no text;
            a label is None, or a number without a name.
    """
    check_columns(rows, [text_column], source=source, flag="--text_column_name")
    check_cells(rows, text_column, list, source=source)
    all_words = cells(rows, text_column)
    for number, words in enumerate(all_words, start=1):
        if not words or not all(isinstance(word, str) for word in words):
            raise ValueError(f"row {number} of {source} has {words!r} in the column {text_column!r}, expected words")
    if not labelled and (label_column not in rows.column_names or not any(cells(rows, label_column))):
        return [Sentence(words, None) for words in all_words]
    columns, class_names = label_cells(rows, label_column, source=source, flag="--label_column_name")
    check_cells(rows, label_column, list, source=source)
    by_number = dict(enumerate(class_names or names))
    sentences = []
    for number, (labels, words) in enumerate(zip(columns, all_words, strict=True), start=1):
        place = f"row {number} of {source} has"
        if len(labels) != len(words):
            raise ValueError(f"{place} {len(words)} words in {text_column!r}, but {len(labels)} labels in {label_column!r}")
        tags = [label if isinstance(label, str) else by_number.get(label) for label in labels]
        if not all(tags):
            raise ValueError(
                f"{place} the labels {labels}, expected texts, or numbers whose names, in their order, are given by "
                "--label_names O B-PER I-PER ..."
            )
        sentences.append(Sentence(words, tags))
    return sentences


def sorted_labels(labels: Iterable[str]) -> list[str]:
    """Return each label once: "O" first, then by type, and of a type B- before I-, E-, S-."""

    def key(label: str) -> tuple[bool, str, int]:
        tag = ENTITY_TAG.fullmatch(label)
        if tag is None:
            return label != OUTSIDE, label, -1
        return True, tag[2], "BIES".index(tag[1])

    return sorted({*labels}, key=key)


def are_entities(labels: Sequence[str]) -> bool:
    """Tell if all labels but "O" are tags of entities, and there is one.

    Raises:
        ValueError: some are, and others are not.
    """
    others = {label for label in labels if label != OUTSIDE}
    entities = {*filter(ENTITY_TAG.fullmatch, others)}
    if entities and entities < others:
        raise ValueError(
            f"the label {min(others - entities)!r} is no tag of an entity as others are: expected O, B-, I-, E- or S- and a "
            "type"
        )
    return bool(entities)


@dataclass
class TokenClassificationArguments(DataArguments):
    """Flags of token classification, named as in transformers' run_ner."""

    text_column_name: str = option("tokens", "column of the words: a list for each sentence")
    label_column_name: str = option("ner_tags", "column of their labels")
    label_names: list[str] = option(list, "names of labels that are numbers, from 0: O B-PER I-PER ...")
    label_all_tokens: bool = option(False, "train on all tokens of a word (I- behind the B- of the first), not on its first")
    return_entity_level_metrics: bool = option(False, "precision, recall and F1 of each type of entity, too")
    long_sentences: str = option(
        "window", "of more than --max_seq_length tokens; windows overlap by a quarter", choices=["window", "refuse"]
    )
    class_weights: str | None = option(None, HELP)

    needs: ClassVar = {"class_weights": ("without --do_train", lambda args: args.do_train)}


def take_prefix_space(tokenizer: PreTrainedTokenizerBase):
    """Let a byte-level BPE (DeBERTa v1, RoBERTa) read every word as if a space stood before it, as within a text.

    Other tokenizers stay as they are. The setting is saved with the tokenizer, so that the model reads texts as it was
    trained.
    """
    outer = tokenizer.backend_tokenizer.pre_tokenizer
    inners = [outer]
    if type(outer).__name__ == "Sequence":
        inners = [*outer]
    for inner in inners:
        if type(inner).__name__ == "ByteLevel" and not inner.add_prefix_space:
            inner.add_prefix_space = True
            # Classes that rebuild themselves when they are loaded save it from here.
            if hasattr(tokenizer, "add_prefix_space"):
                tokenizer.add_prefix_space = True


def encode_words(
    batch: Mapping[str, list], *, tokenizer: PreTrainedTokenizerBase, max_length: int, inside: Sequence[int] | None
) -> dict[str, list]:
    """Return the features of windows, one for each sentence of up to `max_length` tokens.

    "sentence" is the number of a window's sentence; "word_tokens" has for each word of it the position of its first token,
    -1 for a word without any or of another window. Words only have labels in their own window. `inside` has for each label
    of a word's first token the label of its other ones; None = -100.
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
    """Return for each window the positions of the first tokens of the words that belong to it, -1 for other words.

    A word belongs to the window in which it has most tokens on its shorter side (of equals the first). `windows` are the
    sentence and the words of the tokens (None: special) of each, `lengths` the number of words of each sentence.
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
    """Rows -> batch of [B, N] inputs and labels, padded on the right, whatever the side of the tokenizer: predictions are
    found by their positions. Arguments as in transformers."""

    def __post_init__(self):
        self.tokenizer = copy.copy(self.tokenizer)
        self.tokenizer.padding_side = "right"

    def torch_call(self, features):
        names = {*self.tokenizer.model_input_names, "labels"}
        return super().torch_call([{name: row[name] for name in row if name in names} for row in features])


class TokenClassificationData(TaskData):
    """Sentences to train on, to evaluate and to label; see `TaskData`.

    Read from the Hub (--task_name conll2003 or wnut17, or --dataset_name) or from files: rows with a list of words and a
    list of labels, or CoNLL text files. Metrics are precision, recall and F1 of entities, and accuracy over words; accuracy
    alone where the labels are not those of entities (O, B-PER, I-PER, ...).

    Args:
        data_args (`TokenClassificationArguments`): the flags.
        hub (`HubArguments`, *optional*): those of downloads.
    Raises:
        ValueError: nothing to read, a missing column, a cell that is None or of another type, more or fewer labels than
            words, a number without a name, a label that the data to train on does not have.
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
                raise ValueError(f"{flag}: {file} has words without tags; such files are for --test_file")
            self.inputs[split].append(Dataset.from_dict({columns[0]: [sentence.words for sentence in sentences]}))
            return sentences

        files, self.dataset = read_splits(data_args, hub, HUB, from_file, from_rows)
        sets = {split: [*chain.from_iterable(sentences)] for split, sentences in files.items()}
        for split, sentences in sets.items():
            if len({sentence.tags is None for sentence in sentences}) > 1:
                raise ValueError(f"{FLAGS[split]}: some files have labels and others none")
        if "train" in sets and not names:
            # Before the first --max_train_samples are taken: what a rare label is called does not hang on their number.
            names = chain.from_iterable(sentence.tags for sentence in sets["train"])
        self.sets = sets
        self.set_labels(sorted_labels(names or ()))
        self.sets = {split: sentences[: data_args.limits[split]] for split, sentences in sets.items()}
        self.num_train, self.num_evaluation = (len(self.sets.get(split, ())) for split in ("train", "validation"))
        table = data_table(self.checked("train"), self.checked("validation"), unit="words")
        if table and self.num_train and data_args.task_name is None:
            logger.warning(table)

    def checked(self, split: str) -> CheckedSet:
        """Return words and tags of the sentences of a set."""
        sentences = self.sets.get(split, ())
        words, tags = [tuple(sentence.words) for sentence in sentences], [tuple(sentence.tags) for sentence in sentences]
        return CheckedSet(words, tags, self.counts_of(split))

    def set_labels(self, labels: list[str]):
        """Set the labels in the order of their numbers, which the data may have; none of them: they are not known yet."""
        self.labels = labels
        self.entities = are_entities(labels)
        if not labels:
            return
        if self.data_args.return_entity_level_metrics and not self.entities:
            raise ValueError(f"--return_entity_level_metrics: there are no entities, the labels are {', '.join(labels)}")
        for split, sentences in self.sets.items():
            for number, sentence in enumerate(sentences, start=1):
                if unseen := sorted({*(sentence.tags or ())} - {*labels}):
                    raise ValueError(
                        f"row {number} of the data of {FLAGS[split]} has the label {unseen[0]!r}, which is none of those to "
                        f"train on, or of the model: {', '.join(labels)}"
                    )

    def use_config(self, config: PretrainedConfig):
        """Take the order of a checkpoint that knows the same labels; without data to train on its labels."""
        if not self.num_train or {*config.label2id} == {*self.labels}:
            self.set_labels(sorted(config.label2id, key=config.label2id.get))

    def config_fields(self) -> dict[str, Any]:
        return label_fields(self.labels)

    def encode(self, tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig) -> EncodedTask:
        """Return the features of all sets; byte-level tokenizers are set as `take_prefix_space` says."""
        if not tokenizer.is_fast:
            raise ValueError(
                f"{type(tokenizer).__name__} does not tell which token is of which word: token classification needs a fast "
                "tokenizer (tokenizer.json); give one with --tokenizer_name"
            )
        take_prefix_space(tokenizer)
        max_length = longest_input(tokenizer, config, self.data_args.max_seq_length, default=512)
        sets = {}
        for split, sentences in self.sets.items():
            sets[split] = self.encoded_rows(split, tokenizer, max_length)
            if split != "train":
                inputs = concatenate_datasets(self.inputs[split])
                sets[split] = self.evaluation_set(sets[split], sentences, first(inputs, len(sentences)))
        if "train" in sets:
            # A batch of nothing to learn has no mean loss.
            sets["train"] = sets["train"].filter(lambda row: {*row["labels"]} != {ABSENT})
        collator = TokenClassificationCollator(tokenizer, **self.data_args.padding(max_length))
        loss = None
        if self.data_args.class_weights and "train" in sets:
            loss = WeightedLoss(class_weights(self.data_args.class_weights, self.label_counts, self.labels))
        return EncodedTask.of_splits(sets, collator, "f1" if self.entities else "accuracy", loss)

    def encoded_rows(self, split: str, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Dataset:
        """Return the features of a set, with warnings of long sentences and of words without a token."""
        sentences, ids = self.sets[split], {label: index for index, label in enumerate(self.labels)}
        columns: dict[str, list] = {"words": [sentence.words for sentence in sentences]}
        columns["sentence"] = [*range(len(sentences))]
        if sentences[0].tags is not None:
            columns["label_ids"] = [[ids[label] for label in sentence.tags] for sentence in sentences]
        inside = None
        if self.data_args.label_all_tokens:
            inside = [ids.get(re.sub("^B-", "I-", label), index) for label, index in ids.items()]
        options = dict(tokenizer=tokenizer, max_length=max_length, inside=inside)
        rows = self.data_args.tokenise(Dataset.from_dict(columns), encode_words, split, **options)
        data = f"of {FLAGS[split]}"
        long = [number for number, windows in Counter(rows["sentence"][:]).items() if windows > 1]
        if long:
            message = f"{len(long):,} of {len(sentences):,} sentences {data} have more than {max_length} tokens "
            message += f"(--max_seq_length), such as sentence {long[0] + 1:,} of {len(sentences[long[0]].words):,} words"
            if self.data_args.long_sentences == "refuse":
                raise ValueError(f"{message}: raise --max_seq_length, split them, or give --long_sentences window")
            logger.warning(f"{message}: they are read in windows that overlap (--long_sentences)")
        lost = sum(len(sentence.words) for sentence in sentences)
        lost -= sum(len(positions) - positions.count(-1) for positions in rows["word_tokens"][:])
        if lost:
            logger.warning(f"{lost:,} words {data} have no token, since the tokenizer drops them: all count as {OUTSIDE!r}")
        return rows

    def scores(self, predicted: Sequence[Sequence[str]], tags: Sequence[Sequence[str]]) -> dict[str, float]:
        """Return the metrics of predicted tags, a list for each sentence."""
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
        """Return the number of words of each label that a set has."""
        counts = Counter(chain.from_iterable(sentence.tags for sentence in self.sets.get(split, ())))
        return {label: counts[label] for label in self.labels if label in counts}

    @cached_property
    def baselines(self) -> dict[str, dict[str, float]]:
        """Return the metrics of the commonest label for every word: for entities "O", with an F1 of 0."""
        counts, evaluated = self.label_counts, self.sets.get("validation")
        if not counts or evaluated is None:
            return {}
        label = max(counts, key=counts.__getitem__)
        tags = [sentence.tags for sentence in evaluated]
        return {MAJORITY: self.scores([[label] * len(row) for row in tags], tags)}

    def evaluation_set(self, rows: Dataset, sentences: Sequence[Sentence], inputs: Dataset) -> EvaluationSet:
        """Return the set of `sentences`, whose features are `rows`, and which were read from `inputs`."""
        numbers, positions = rows["sentence"][:], rows["word_tokens"][:]

        def tags_of(logits: Any) -> list[list[str]]:
            """Return a tag for each word of each sentence, from logits [n, N, C] of n windows."""
            tags = [[OUTSIDE] * len(sentence.words) for sentence in sentences]
            for row, number, tokens in zip(check_logits(logits).argmax(-1), numbers, positions, strict=True):
                for word, position in enumerate(tokens):
                    if position >= 0:
                        tags[number][word] = self.labels[row[position]]
            return tags

        def metrics(predictions, labels):
            return self.scores(tags_of(predictions), [sentence.tags for sentence in sentences])

        def write(predictions, folder, stem):
            file = Path(folder, f"{stem}_predictions.txt")
            with file.open("w", encoding="utf-8") as lines:
                for (words, _), tags in zip(sentences, tags_of(predictions), strict=True):
                    # White space in a word would be read as the end of it.
                    for word, tag in zip(words, tags, strict=True):
                        lines.write(f"{'_'.join(word.split()) or '_'} {tag}\n")
                    lines.write("\n")
            return [file]

        def failures(predictions):
            tags, predicted = [sentence.tags for sentence in sentences], tags_of(predictions)
            if self.entities:
                return entity_failures(tags, predicted, [sentence.words for sentence in sentences])
            # Words without a token are "O", which may be none of the labels.
            names = [*dict.fromkeys([*self.labels, *chain.from_iterable(predicted)])]
            classes = [[names.index(tag) for tag in chain.from_iterable(rows)] for rows in (tags, predicted)]
            return tag_failures(*classes, names)

        def table(predictions):
            best = softmax(check_logits(predictions).astype(np.float64), axis=-1).max(-1).round(6)
            scores: list[list[float | None]] = [[None] * len(sentence.words) for sentence in sentences]
            for row, number, tokens in zip(best, numbers, positions, strict=True):
                for word, position in enumerate(tokens):
                    if position >= 0:
                        scores[number][word] = row[position]
            gold = None if sentences[0].tags is None else [sentence.tags for sentence in sentences]
            return prediction_table(inputs, predicted=tags_of(predictions), gold=gold, probability=scores)

        scored = None if sentences[0].tags is None else metrics
        return EvaluationSet(rows, scored, write, len(sentences), failures=failures, table=table)


TASK = (TokenClassificationData, TokenClassificationArguments)
