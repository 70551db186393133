# SPDX-License-Identifier: Apache-2.0
"""The training, validation and test set of a task, read from the files that its flags name or from a data set of the Hub."""

import random
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeVar

from datasets import Dataset

from ...data.files import FLAGS, shown_files
from ...data.hub import read_hub
from ...training.hub_arguments import HubArguments
from ..arguments import DataArguments

__all__ = ["SPLITS", "HubData", "hold_out", "hub_source", "read_splits"]

T = TypeVar("T")

# The Hub's names of the splits, of which the first is used that a data set has.
SPLITS = {"train": ("train",), "validation": ("validation", "dev", "valid"), "test": ("test",)}


class HubData(NamedTuple):
    """A data set of the Hub, and its configuration and revision, where it needs one."""

    name: str
    config: str | None = None
    revision: str | None = None


def hub_source(arguments: DataArguments, dataset: str | None, tasks: Iterable[str]) -> str | None:
    """Return the data set of the Hub that is to be read, None where the flags name files.

    Args:
        arguments (`DataArguments`): the flags.
        dataset (`str`, *optional*): that of the --task_name.
        tasks: their names, for the message.
    Raises:
        ValueError: there are no data, or files and --dataset_name.
    """
    name = arguments.dataset_name or dataset
    if arguments.train_file or arguments.validation_file or arguments.test_file:
        if arguments.dataset_name:
            raise ValueError(f"give --dataset_name {name} or files, not both")
        return None
    if name is None:
        raise ValueError(
            f"there is no data: give --task_name ({', '.join(tasks)}), --dataset_name, or {', '.join(FLAGS.values())}"
        )
    return name


def read_splits(
    arguments: DataArguments,
    hub: HubArguments | None,
    tasks: Mapping[str, HubData],
    read_file: Callable[[Path, str], T],
    read_rows: Callable[[Dataset, str, str], T],
) -> tuple[dict[str, list[T]], str]:
    """Read the sets that the flags name, and the name of their source for a model card: a Hub id, or names of files.

    Args:
        tasks (`dict[str, HubData]`): the data of each --task_name; a short name may stand in --dataset_name, too.
        read_file (`Callable`): (file, split) -> what the file holds.
        read_rows (`Callable`): (rows of the Hub, their place for messages, split) -> what the rows hold.
    Returns:
        What was read by "train", "validation" and "test", in a list: one entry for each file.
    Raises:
        ValueError: --task_name is unknown; there are no data, or files and --dataset_name; as the two readers.
    """
    if arguments.task_name not in (None, *tasks):
        raise ValueError(f"--task_name {arguments.task_name} is not known; there are {', '.join(tasks)}")
    name = hub_source(arguments, arguments.task_name, tasks)
    if name is None:
        files = {split: getattr(arguments, f"{split}_file") for split in SPLITS}
        sets = {}
        for split, paths in files.items():
            if paths:
                sets[split] = [read_file(Path(path).expanduser(), split) for path in paths]
        return sets, shown_files(dict.fromkeys(chain.from_iterable(files.values())))
    if name in tasks:
        name = tasks[name].name
    task, revision = tasks.get(arguments.task_name, HubData(name)), arguments.data_revision
    if arguments.dataset_name is None:
        revision = revision or task.revision
    download = (hub or HubArguments()).download(revision)
    loaded = read_hub(name, arguments.dataset_config_name or task.config, SPLITS, **download)
    return {split: [read_rows(rows, f"the {split} split of {name}", split)] for split, rows in loaded.items()}, name


def hold_out(
    texts: Sequence[Hashable], labels: Sequence[Sequence[Hashable]], share: float, seed: int = 0
) -> tuple[list[int], list[int]]:
    """Return the numbers of the rows to train on, and of a share to evaluate on, in ascending order.

    The share is stratified by label, or combination of labels, to within a text. Rows of equal text stay together, and those
    to train on have every label: a label of one row is only trained on.

    Args:
        texts, labels: of each row, the text or texts and the labels that it has.
        share, seed: share of the rows that are held out, in (0, 1), and seed of which.
    """
    groups: dict[Hashable, list[int]] = {}
    for row, text in enumerate(texts):
        groups.setdefault(text, []).append(row)
    shuffled = [*groups.values()]
    random.Random(seed).shuffle(shuffled)
    # Rows of one label after one another; sorting keeps the order of draws.
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
