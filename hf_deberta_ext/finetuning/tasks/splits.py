# SPDX-License-Identifier: Apache-2.0
"""The training, validation and test set of a task, read from the files that its flags name or from a data set of the Hub."""

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ...data.files import FLAGS, shown_files
from ...data.hub import read_hub
from ...training.hub_arguments import HubArguments

if TYPE_CHECKING:
    from datasets import Dataset

    from ..arguments import DataArguments

__all__ = ["SPLITS", "HubData", "hold_out", "read_splits"]

T = TypeVar("T")

# The Hub's names of the splits, of which the first is used that a data set has.
SPLITS = {"train": ("train",), "validation": ("validation", "dev", "valid"), "test": ("test",)}


class HubData(NamedTuple):
    """A data set of the Hub, and its configuration and revision, where it needs one."""

    name: str
    config: str | None = None
    revision: str | None = None


def read_splits(
    arguments: "DataArguments",
    hub: HubArguments | None,
    tasks: Mapping[str, HubData],
    read_file: Callable[[Path, str], T],
    read_rows: Callable[["Dataset", str, str], T],
) -> tuple[dict[str, list[T]], str]:
    """Read the sets that the flags name, and the name of their source for a model card: a Hub id, or names of files.

    Args:
        arguments (`DataArguments`): the flags.
        hub (`HubArguments`, *optional*): those of downloads.
        tasks (`dict[str, HubData]`): the data of each --task_name; a short name may stand in --dataset_name, too.
        read_file (`Callable`): (file, split) -> what the file holds.
        read_rows (`Callable`): (rows of the Hub, their place for messages, split) -> what the rows hold.
    Returns:
        What was read by "train", "validation" and "test", in a list: one entry for each file.
    Raises:
        ValueError: --task_name is unknown; there are no data, or files and --dataset_name; as the two readers.
    """
    if arguments.task_name is not None and arguments.task_name not in tasks:
        raise ValueError(f"--task_name {arguments.task_name} is not known; there are {', '.join(tasks)}")
    files = {split: getattr(arguments, f"{split}_file") for split in SPLITS if getattr(arguments, f"{split}_file")}
    if files:
        if arguments.dataset_name:
            raise ValueError(f"give --dataset_name {arguments.dataset_name} or files, not both")
        sets = {split: [read_file(Path(path).expanduser(), split) for path in paths] for split, paths in files.items()}
        return sets, shown_files(dict.fromkeys(path for paths in files.values() for path in paths))
    name = arguments.dataset_name or arguments.task_name
    if name is None:
        raise ValueError(
            f"there is no data: give --task_name ({', '.join(tasks)}), --dataset_name, or {', '.join(FLAGS.values())}"
        )
    name = tasks[name].name if name in tasks else name
    task = tasks.get(arguments.task_name, HubData(name))
    revision = arguments.data_revision
    if arguments.dataset_name is None and revision is None:
        revision = task.revision
    download = (hub or HubArguments()).download(revision)
    loaded = read_hub(name, arguments.dataset_config_name or task.config, SPLITS, **download)
    return {split: [read_rows(rows, f"the {split} split of {name}", split)] for split, rows in loaded.items()}, name


def hold_out(texts: Sequence[Hashable], labels: Sequence[Sequence[Hashable]], share: float) -> tuple[list[int], list[int]]:
    """Return the numbers of the rows to train on, and of a random share to evaluate on, the same at each call.

    Rows of equal text stay together, and those to train on have every label.

    Args:
        texts, labels: of each row, the text or texts and the labels that it has.
        share (`float`): of the rows that are held out, in (0, 1).
    """
    groups: dict[Hashable, list[int]] = {}
    for row, text in enumerate(texts):
        groups.setdefault(text, []).append(row)
    shuffled, seen = [*groups.values()], set()
    random.Random(0).shuffle(shuffled)
    to_train, held_out = [], []
    for number, group in enumerate(shuffled):
        new = {label for row in group for label in labels[row]} - seen
        seen |= new
        (held_out if not new and int((number + 1) * share) > int(number * share) else to_train).extend(group)
    return to_train, held_out
