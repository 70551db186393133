# SPDX-License-Identifier: Apache-2.0
"""Read the training, validation and test sets of a task from files or from a data set on the Hub."""

import random
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from datasets import Dataset

from ...data.files import FLAGS, shown_files
from ...data.hub import read_hub
from ...training.hub_arguments import HubArguments
from ..arguments import DataArguments

__all__ = ["SPLITS", "HubData", "hold_out", "hub_source", "read_splits"]

T = TypeVar("T")

# Names of the splits on the Hub; the first name that a data set has is used.
SPLITS = {"train": ("train",), "validation": ("validation", "dev", "valid"), "test": ("test",)}


class HubData(NamedTuple):
    """Data set on the Hub, with its configuration and revision if needed."""

    name: str
    config: str | None = None
    revision: str | None = None


def hub_source(arguments: DataArguments, dataset: str | None, tasks: Iterable[str]) -> str | None:
    """Return the Hub id of the data set to read (--dataset_name, else `dataset`), or None if the flags name files."""
    name = arguments.dataset_name or dataset
    if arguments.train_file or arguments.validation_file or arguments.test_file:
        if arguments.dataset_name:
            raise ValueError(f"--dataset_name {name} and files are mutually exclusive: remove one")
        return None
    if name is None:
        raise ValueError(
            f"no data given: pass --task_name ({', '.join(tasks)}), --dataset_name, or {', '.join(FLAGS.values())}"
        )
    return name


def read_splits(
    arguments: DataArguments,
    hub: HubArguments | None,
    tasks: Mapping[str, HubData],
    read_file: Callable[[Path, str], list[T]],
    read_rows: Callable[[Dataset, str, str], list[T]],
) -> tuple[dict[str, list[T]], str]:
    """Read the sets named by the flags.

    Args:
        tasks (`dict[str, HubData]`): data set of each --task_name; these names can also be given as --dataset_name.
        read_file (`Callable`): (file, split) -> examples of a file.
        read_rows (`Callable`): (rows of the Hub, their origin for messages, split) -> examples of the rows.
    Returns:
        The examples by "train", "validation" and "test"; and the source of the data for the model card: a Hub id, or names
        of files.
    Raises:
        ValueError: if --task_name is unknown; the flags name no data, or both files and --dataset_name; or a reader fails.
    """
    if arguments.task_name not in (None, *tasks):
        raise ValueError(f"--task_name must be one of {', '.join(tasks)}, got {arguments.task_name}")
    name = hub_source(arguments, arguments.task_name, tasks)
    if name is None:
        sets: dict[str, list[T]] = {}
        for split in SPLITS:
            for path in getattr(arguments, f"{split}_file"):
                sets.setdefault(split, []).extend(read_file(Path(path).expanduser(), split))
        files = dict.fromkeys([*arguments.train_file, *arguments.validation_file, *arguments.test_file])
        return sets, shown_files(files)
    if name in tasks:
        name = tasks[name].name
    task, revision = tasks.get(arguments.task_name, HubData(name)), arguments.data_revision
    if arguments.dataset_name is None:
        revision = revision or task.revision
    download = (hub or HubArguments()).download(revision)
    loaded = read_hub(name, arguments.dataset_config_name or task.config, SPLITS, **download)
    return {split: read_rows(rows, f"the {split} split of {name}", split) for split, rows in loaded.items()}, name


def hold_out(
    texts: Sequence[Hashable], labels: Sequence[Sequence[Hashable]], share: float, seed: int = 0
) -> tuple[list[int], list[int]]:
    """Split rows into training rows and held-out rows; return their indices, both in ascending order.

    The split is stratified: texts with the same labels form a group, and the fraction `share` of each group is held out,
    give or take one text. Rows with equal texts stay together. Every label occurs in the training rows, so the only row of a
    label is never held out. `texts` has the text or texts of each row, `labels` a list of labels of each row.
    """
    groups: dict[Hashable, list[int]] = {}
    for row, text in enumerate(texts):
        groups.setdefault(text, []).append(row)
    shuffled = [*groups.values()]
    random.Random(seed).shuffle(shuffled)
    # Groups with the same labels become adjacent; the stable sort keeps their random order.
    shuffled.sort(key=lambda group: str([*labels[group[0]]]))
    seen, to_train, held_out, held_texts = set(), [], [], 0
    for number, group in enumerate(shuffled, start=1):
        new = set().union(*(labels[row] for row in group)) - seen
        seen |= new
        if not new and held_texts + 1 <= number * share + 1e-9:
            held_texts += 1
            held_out += group
        else:
            to_train += group
    return sorted(to_train), sorted(held_out)
