# SPDX-License-Identifier: Apache-2.0
"""Classification and regression of texts and pairs of texts: GLUE, XNLI and user data."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from datasets import Dataset
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    PretrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from ...data.columns import TEXT_COLUMNS, cells, check_cells, check_columns, first
from ...data.files import FLAGS, named_files, shown_files
from ...data.hub import read_hub
from ...training.flags import option
from ...training.hub_arguments import HubArguments
from ..arguments import DataArguments
from ..baselines import MAJORITY, TFIDF, TFIDF_SCORES, majority_logits, tfidf_logits
from ..class_weights import HELP, WeightedLoss, class_weights
from ..failures import Failures, class_failures, multi_label_failures, regression_failures
from ..input_lengths import longest_input
from ..metrics import TASK_METRICS, compute
from ..prediction_tables import prediction_table
from ..task import EncodedTask, EvaluationSet, TaskData
from .data_checks import CheckedSet, Part, data_table, treat_duplicates, treat_empty_rows
from .glue import GLUE, KnownTask, glue_values, known_task, write_index_tsv
from .labels import MULTI, PROBLEM_TYPES, REGRESSION, SINGLE, Labels, find_labels, label_cells
from .splits import SPLITS, hold_out, hub_source

__all__ = ["Part", "TextClassificationArguments", "TextClassificationData"]

logger = logging.get_logger(__name__)

METRICS = {
    SINGLE: ("accuracy", "macro_f1"),
    MULTI: ("micro_f1",),
    REGRESSION: ("pearson", "spearmanr"),
}


@dataclass
class TextClassificationArguments(DataArguments):
    """Flags of text classification."""

    validation_file: list[str] = option(
        list,
        "evaluation files: FILE (several are joined to one set), or NAME=FILE for a separate set with its own metrics: "
        "mm=dev_mm.tsv gives eval_mm_accuracy",
    )
    test_file: list[str] = option(list, "files to predict, FILE or NAME=FILE as in --validation_file; labels are optional")
    validation_share: float | None = option(
        None, "share of the training rows to hold out for evaluation, such as 0.2; not with --validation_file"
    )
    split_seed: int = option(0, "seed for choosing the rows that --validation_share holds out (stratified by class)")
    on_empty: str = option(
        "refuse",
        "without --task_name: refuse data with rows that lack text or label, or drop these rows; --test_file keeps all rows",
        choices=["refuse", "drop"],
    )
    on_duplicates: str = option(
        "keep",
        "without --task_name: what to do with training rows that repeat an earlier row or a text of the evaluation data",
        choices=["keep", "drop", "refuse"],
    )
    class_weights: str | None = option(None, HELP)
    balanced_sampling: bool = option(False, "draw training rows with replacement, all classes equally often")
    text_columns: list[str] = option(
        list,
        "column of the text, or two columns of a pair; default: set by --task_name, or columns named as in GLUE",
        aliases=["--text_column_names"],
    )
    label_column: str = option("label", "column of the labels", aliases=["--label_column_name"])
    label_names: list[str] = option(list, "names of the labels 0, 1, ... of your data: negative positive")
    problem_type: str | None = option(
        None,
        "problem type of your data; default: from its labels (lists: multi-label, fractions: regression, others: classes)",
        choices=[*PROBLEM_TYPES],
    )
    language: str | None = option(None, "language of XNLI for evaluation and training")
    train_language: str | None = option(None, "language of XNLI for training; default: --language")
    eval_languages: list[str] = option(list, "languages of XNLI for evaluation, each a separate set (eval_de_accuracy)")

    needs: ClassVar = {
        "split_seed": ("without --validation_share", lambda args: args.validation_share is not None),
        **dict.fromkeys(("on_empty", "on_duplicates"), ("with --task_name", lambda args: args.task_name is None)),
        "class_weights": ("without --do_train", lambda args: args.do_train),
        "balanced_sampling": (
            "without --do_train, or with --class_weights or --train_sampling_strategy",
            lambda args: args.do_train and not args.class_weights and args.train_sampling_strategy == "random",
        ),
    }

    def __post_init__(self):
        super().__post_init__()
        if self.validation_share is not None and not 0 < self.validation_share < 1:
            raise ValueError(f"--validation_share must be between 0 and 1, got {self.validation_share}")
        if len(self.text_columns) > 2:
            raise ValueError(f"--text_columns must be one column, or two of a pair, got {', '.join(self.text_columns)}")
        if self.label_column in self.text_columns:
            raise ValueError(f"--text_columns must not contain the label column, got {self.label_column!r}")
        if len({name.lower() for name in self.label_names}) < len(self.label_names) or len(self.label_names) == 1:
            raise ValueError(f"--label_names must be two or more different names, got {', '.join(self.label_names)}")
        if self.label_names and self.problem_type == REGRESSION:
            raise ValueError("--label_names is for classification: remove it, or remove --problem_type regression")


class TextClassificationData(TaskData):
    """Texts or pairs of texts with labels or scores; see `TaskData`.

    Known tasks (`--task_name`: GLUE's tasks and xnli) have fixed columns, labels and metrics, and are read from the Hub or
    from files. The labels of user data are read from the training set (see `find_labels`); their names are saved in the
    model's configuration in sorted order, or in the order of a checkpoint with the same names.

    Raises:
        ValueError: if there is no data, or a file, column, text or label is invalid; the message names the place and a fix.
    """

    pipeline = "text-classification"
    auto_class = AutoModelForSequenceClassification

    def __init__(self, data_args: TextClassificationArguments, hub: HubArguments | None = None):
        self.data_args, self.hub = data_args, hub or HubArguments()
        self.task = self.known_task()
        self.name = data_args.task_name or self.pipeline
        # Sets by kind ("train", "validation", "test") and name
        self.parts: dict[str, dict[str, Part]] = {kind: {} for kind in SPLITS}
        self.dataset = self.read_parts()
        self.text_columns = self.text_columns_of(next(self.all_parts()))
        if self.task is None:
            columns = {"--text_columns": self.text_columns, "--label_column": (data_args.label_column,)}
            for part in chain(self.parts["train"].values(), self.parts["validation"].values()):
                treat_empty_rows(part, columns, data_args.on_empty)
        self.labels = self.labels_of()
        if data_args.validation_share is not None:
            self.hold_validation_out(data_args.validation_share)
        for kind, parts in self.parts.items():
            for part in parts.values():
                part.rows = self.examples(first(part.rows, data_args.limits[kind]), part.source)
        self.encode_labels()
        if self.task is None and "" in self.parts["train"]:
            self.treat_duplicates()
            if table := data_table(self.checked("train"), self.checked("validation")):
                of_classes = "" if self.labels.problem_type == REGRESSION else ", --class_weights, --balanced_sampling"
                logger.warning(f"{table}\n(see --on_empty, --on_duplicates{of_classes})")
        self.check_training()
        self.num_train, self.num_evaluation = (
            sum(self.count(part.rows) for part in self.parts[kind].values()) for kind in ("train", "validation")
        )

    def all_parts(self) -> Iterator[Part]:
        """Iterate over all sets."""
        return chain.from_iterable(parts.values() for parts in self.parts.values())

    def encode_labels(self):
        """Encode the labels of all sets that have labels, if `self.labels` is known."""
        column = self.data_args.label_column
        for part in self.all_parts():
            if self.labels is not None and not (part.test and column not in part.rows.column_names):
                values, _ = label_cells(part.rows, column, source=part.source, flag="--label_column")
                part.labels = self.labels.encode(values, source=part.source, test=part.test)

    def treat_duplicates(self):
        """Refuse or drop training rows that repeat an earlier row or a text of the evaluation data (--on_duplicates)."""
        if self.data_args.on_duplicates != "keep":
            kept = self.checked("train").first_rows(self.checked("validation"))
            treat_duplicates(self.parts["train"][""], kept, self.data_args.on_duplicates)

    def checked(self, kind: str) -> CheckedSet:
        """Return texts and labels of all training or evaluation sets, for the data checks."""
        texts, labels, parts = [], [], self.parts[kind].values()
        for part in parts:
            texts += zip(*self.texts(part.rows), strict=True)
            labels += map(str, self.labels.shown(np.array(part.labels)))
        return CheckedSet(texts, labels, self.counts_of(kind), sum(part.left_out for part in parts))

    def check_training(self):
        """Check that the training set has texts and more than one label."""
        train = self.parts["train"].get("")
        if train is None:
            return
        if not any(map(str.strip, chain.from_iterable(self.texts(train.rows)))):
            raise ValueError(
                f"{' '.join((train.source, *self.data_args.train_file))} only has blank texts in "
                f"{', '.join(map(repr, self.text_columns))}: give the text columns with --text_columns"
            )
        if self.labels.problem_type != MULTI and len({*train.labels}) < 2:
            label = train.rows[0][self.data_args.label_column]
            raise ValueError(f"{train.source} must have two or more labels, got {label!r} in all rows")

    def texts(self, rows: Dataset) -> list[list[str]]:
        """Return the cells of the text columns, one list per column."""
        return [cells(rows, column) for column in self.text_columns]

    def known_task(self) -> KnownTask | None:
        """Return the task of --task_name, or None for user data."""
        return known_task(self.data_args)

    def hold_validation_out(self, share: float):
        """Move a share of the training rows to the validation set."""
        train = self.parts["train"].get("")
        if self.task is not None or train is None or self.parts["validation"]:
            raise ValueError(
                f"--validation_share {share:g} needs your own training data and no validation set: remove --validation_share"
            )
        # Encoded before the split, so that errors have the row numbers of the file.
        self.examples(train.rows, train.source)
        self.encode_labels()
        # Duplicates are dropped before the split, so that the evaluation counts no row twice.
        self.treat_duplicates()
        # `hold_out` keeps a row of each label for training; a regression has no labels to keep.
        labels = [()] * len(train.rows)
        if self.labels.problem_type == MULTI:
            labels = [*map(np.flatnonzero, train.labels)]
        elif self.labels.problem_type == SINGLE:
            labels = [*zip(train.labels, strict=True)]
        texts = [*zip(*self.texts(train.rows), strict=True)]
        to_train, held_out = hold_out(texts, labels, share, self.data_args.split_seed)
        if not held_out:
            raise ValueError(
                f"--validation_share {share:g} holds out none of the {len(train.rows)} rows of {train.source}: add rows"
            )
        validation = self.parts["validation"][""] = replace(train, source=f"{train.source}, held out", left_out=0)
        validation.select(held_out)
        train.select(to_train)

    def examples(self, rows: Dataset, source: str) -> Dataset:
        """Check and return the rows; subclasses add text columns that are computed from other columns."""
        check_columns(rows, self.text_columns, source=source, flag="--text_columns")
        for column in self.text_columns:
            check_cells(rows, column, str, source=source)
        return rows

    def count(self, rows: Dataset) -> int:
        """Return the number of examples in the rows returned by `examples`."""
        return len(rows)

    def scores(self, part: Part, logits: np.ndarray) -> dict[str, float]:
        """Compute the metrics of an evaluation or test set."""
        names = TASK_METRICS.get(self.name, METRICS[self.labels.problem_type])
        return compute(names, self.labels.predicted(logits), np.asarray(part.labels))

    def failures(self, part: Part, logits: np.ndarray) -> Failures:
        """Analyse the model's errors on an evaluation or test set."""
        texts = [*map(" | ".join, zip(*self.texts(part.rows), strict=True))]
        kind, labels = self.labels.problem_type, np.asarray(part.labels)
        if kind == REGRESSION:
            found = regression_failures(labels, self.labels.predicted(np.asarray(logits, dtype=np.float64)), texts)
        elif kind == MULTI:
            found = multi_label_failures(labels.astype(int), self.labels.probabilities(logits), self.labels.names, texts)
        else:
            found = class_failures(labels, self.labels.probabilities(logits), self.labels.names, texts)
        if part.numbers is not None:
            for error in found.errors:
                error["row"] = int(part.numbers[error["row"] - 1])
        return found

    @property
    def label_counts(self) -> dict[str, int]:
        """Return the number of training rows of each label; empty without training data or for regression."""
        return self.counts_of("train")

    def counts_of(self, kind: str) -> dict[str, int]:
        """Return the number of rows of each label in all sets of `kind` ("train", ...); {} if no rows or for regression."""
        labels = [*chain.from_iterable(part.labels for part in self.parts[kind].values())]
        if not labels or self.labels.problem_type == REGRESSION:
            return {}
        shown = self.labels.shown(np.array(labels, dtype=np.int64))
        if self.labels.problem_type == MULTI:
            shown = chain.from_iterable(shown)
        counts = Counter(shown)
        return {name: counts[name] for name in self.labels.names}

    @cached_property
    def baselines(self) -> dict[str, dict[str, float]]:
        """Return the metrics of the baselines without pre-training: {"majority class": {"accuracy": ...}, ...}."""
        train = self.parts["train"].get("")
        evaluated = self.parts["validation"]
        if train is None or not evaluated:
            return {}
        labels = np.array(self.labels.for_model(train.labels))
        num_labels, sets = len(self.labels.names), [self.texts(part.rows) for part in evaluated.values()]
        balanced = self.task is not None and self.task.metric == "matthews_correlation"
        linear = tfidf_logits(self.texts(train.rows), labels, sets, num_labels=num_labels, balanced=balanced)
        answers = {TFIDF_SCORES: linear}
        if self.labels.problem_type != REGRESSION:
            majority = [majority_logits(labels, num_labels, len(part.rows)) for part in evaluated.values()]
            answers = {MAJORITY: majority, TFIDF: linear}
        scores: dict[str, dict[str, float]] = {}
        for kind, logits in answers.items():
            scores[kind] = {}
            for (set_name, part), of_set in zip(evaluated.items(), logits, strict=True):
                for metric, value in self.scores(part, of_set).items():
                    scores[kind][f"{set_name}_{metric}".lstrip("_")] = value
        return scores

    def write(self, part: Part, set_name: str, logits: np.ndarray, folder: Path, stem: str) -> list[Path]:
        """Write the predictions of a test set in the format of GLUE's server, if the server accepts this set."""
        if not part.test or self.task is None or set_name not in self.task.files:
            return []
        values = glue_values(self.task, self.labels.predicted(logits))
        return [write_index_tsv(folder / self.task.files[set_name], values)]

    def table(self, part: Part, logits: np.ndarray) -> pa.Table:
        """Return the `prediction_table` of a set, with the probability of each label (except for regression)."""
        labels, gold, scores = self.labels, None, {}
        predicted = labels.shown(labels.decided(logits))
        if labels.problem_type == REGRESSION:
            predicted = [float(f"{score:.6g}") for score in predicted]
        else:
            probabilities = labels.probabilities(logits).round(6)
            scores = {f"probability_{name}": probabilities[:, number] for number, name in enumerate(labels.names)}
        if self.data_args.label_column in part.rows.column_names:
            gold = [None] * len(part.rows)
        if part.labels is not None:
            gold = labels.shown(np.asarray(part.labels))
        return prediction_table(part.rows, part.numbers, predicted=predicted, gold=gold, **scores)

    def read_parts(self) -> str:
        """Read all sets into `parts`; return the source of the data, for the model card."""
        data_args, task = self.data_args, self.task
        hub = hub_source(data_args, task and task.dataset, [*GLUE, "xnli"])
        if hub is None:
            for kind, flag in FLAGS.items():
                for name, paths in named_files(getattr(data_args, f"{kind}_file"), source=flag).items():
                    source = f"{flag} {name}".strip()
                    self.parts[kind][name] = Part(data_args.read(paths, source), source, kind == "test")
            return shown_files([*data_args.train_file, *data_args.validation_file, *data_args.test_file])
        # (kind, set) -> configuration and possible names of the split on the Hub
        splits = {(kind, ""): (None, names) for kind, names in SPLITS.items()}
        if task is not None:
            splits = {}
            for kind, sets in (("train", task.train), ("validation", task.evaluation), ("test", task.test)):
                splits |= {(kind, name): (config, (split,)) for name, (config, split) in sets.items()}
        if data_args.dataset_name or data_args.dataset_config_name:
            splits = {key: (data_args.dataset_config_name, names) for key, (_, names) in splits.items()}
        download = self.hub.download(data_args.data_revision)
        for config in dict.fromkeys(config for config, _ in splits.values()):
            names = {key: names for key, (of, names) in splits.items() if of == config}
            for (kind, name), rows in read_hub(hub, config, names, **download).items():
                source = " of ".join(filter(None, (kind, name, hub)))
                self.parts[kind][name] = Part(rows, source, kind == "test")
        return hub

    def labels_of(self) -> Labels | None:
        """Return the labels of a known task or of the data; None if the checkpoint's labels must be used."""
        data_args = self.data_args
        if self.task is not None:
            flags = [f"--{name}" for name in ("label_names", "problem_type") if getattr(data_args, name)]
            if flags:
                raise ValueError(f"{data_args.task_name} has fixed labels: remove {' and '.join(flags)}")
            kind = SINGLE if self.task.labels else REGRESSION
            return Labels(kind, self.task.labels, source=data_args.task_name)
        names, labelled = data_args.label_names, [part for part in self.all_parts() if not part.test]
        for part in labelled:
            _, class_names = label_cells(part.rows, data_args.label_column, source=part.source, flag="--label_column")
            names = names or class_names
        if not self.parts["train"] and not (names and labelled):
            return None
        column, _ = label_cells(labelled[0].rows, data_args.label_column)
        return find_labels(column, source=labelled[0].source, names=names or None, problem_type=data_args.problem_type)

    def text_columns_of(self, part: Part) -> tuple[str, ...]:
        """Return the text columns: set by flags or task, else the only column besides the label, else by `TEXT_COLUMNS`."""
        rows, source = part.rows, part.source
        if self.data_args.text_columns or self.task is not None:
            return tuple(self.data_args.text_columns or self.task.text_columns)
        others = [column for column in rows.column_names if column != self.data_args.label_column]
        if len(others) == 1:
            return tuple(others)
        for columns in TEXT_COLUMNS:
            if {*columns} <= {*others}:
                return columns
        if not part.test:
            check_columns(rows, [self.data_args.label_column], source=source, flag="--label_column")
        raise ValueError(
            f"cannot infer the text columns of {source} from {', '.join(map(repr, rows.column_names))}: give one column, or "
            "two of a pair, with --text_columns"
        )

    def use_config(self, config: PretrainedConfig):
        """Use the checkpoint's label order if it has the same labels; use the checkpoint's labels if the data has none."""
        if self.labels is None:
            self.labels = Labels.of_config(config)
            self.encode_labels()
        else:
            self.labels = self.labels.in_order_of(config.label2id)

    def config_fields(self) -> dict[str, Any]:
        return self.labels.config_fields()

    def encode(self, tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig) -> EncodedTask:
        """Encode the texts of all sets; long pairs are truncated at the end of the longer text, with a warning."""
        # The first set selects the best checkpoint: "", or the training language.
        metric, default, trained = METRICS[self.labels.problem_type][0], 128, ""
        if self.task is not None:
            metric, default = self.task.metric, self.task.max_seq_length
            trained = self.task.train.get("", ("",))[0]
        length = longest_input(tokenizer, config, self.data_args.max_seq_length, default)
        sets: dict[str, dict[str, Any]] = {kind: {} for kind in self.parts}
        for kind, parts in self.parts.items():
            for name in sorted(parts, key=lambda name: (name != "", name != trained)):
                rows = self.encoded_rows(parts[name], tokenizer=tokenizer, length=length)
                sets[kind][name] = rows if kind == "train" else self.evaluation_set(parts[name], name, rows)
        collator = DataCollatorWithPadding(tokenizer, **self.data_args.padding(length))
        options = dict(loss=self.weighted_loss(), balanced_sampling=self.data_args.balanced_sampling)
        return EncodedTask(sets["train"].get(""), sets["validation"], sets["test"], collator, metric, **options)

    def weighted_loss(self) -> WeightedLoss | None:
        """Return the loss for --class_weights; None if the model's loss is used."""
        flag, kind = self.data_args.class_weights, self.labels.problem_type
        if (flag and kind == REGRESSION) or (self.data_args.balanced_sampling and kind != SINGLE):
            raise ValueError(
                "--class_weights cannot be used for regression, and --balanced_sampling requires one class per text, got a "
                f"{kind} task: remove the flag that does not fit"
            )
        if flag is None or not self.label_counts:
            return None
        rows = self.num_train if kind == MULTI else None
        weights = class_weights(flag, self.label_counts, [*self.config_fields()["label2id"]], rows)
        return WeightedLoss(weights, multi_label=kind == MULTI)

    def encoded_rows(self, part: Part, *, tokenizer: PreTrainedTokenizerBase, length: int) -> Dataset:
        """Return the features of a set; rows longer than `length` are truncated with a warning."""
        texts, options = part.rows.select_columns([*self.text_columns]), dict(columns=self.text_columns, length=length)
        rows = self.data_args.tokenise(texts, tokenise_texts, part.source, tokenizer=tokenizer, **options)
        if cut := sum(cells(rows, "cut")):
            logger.warning(f"{part.source}: truncated {cut} of {len(rows)} rows to {length} tokens (--max_seq_length)")
        rows = rows.remove_columns("cut")
        if part.labels is None:
            return rows
        return rows.add_column("labels", self.labels.for_model(part.labels))

    def evaluation_set(self, part: Part, name: str, rows: Dataset) -> EvaluationSet:
        """Return the evaluation set of `part`; `name` is its name, `rows` are its features."""

        def metrics(logits: Any, labels: Any) -> dict[str, float]:
            return self.scores(part, np.asarray(logits))

        def write(logits: Any, folder: Path, stem: str) -> list[Path]:
            return self.write(part, name, np.asarray(logits), folder, stem)

        scored, failures = metrics if "labels" in rows.column_names else None, partial(self.failures, part)
        return EvaluationSet(rows, scored, write, self.count(part.rows), failures=failures, table=partial(self.table, part))


def tokenise_texts(
    batch: Mapping[str, list[str]], *, tokenizer: PreTrainedTokenizerBase, columns: Sequence[str], length: int
) -> dict[str, list]:
    """Return the features of texts or pairs; "cut" is True for rows that were truncated to `length` tokens.

    Pairs are truncated at the end of the longer text; the official code truncates it at a random end and may swap the texts.
    """
    encoded = tokenizer(*(batch[column] for column in columns), truncation=True, max_length=length)
    cut = [False] * len(batch[columns[0]])
    if encoded.encodings:
        cut = [bool(row.overflowing) for row in encoded.encodings]
    return {**encoded, "cut": cut}


TASK = (TextClassificationData, TextClassificationArguments)
