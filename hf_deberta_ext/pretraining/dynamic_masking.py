# SPDX-License-Identifier: Apache-2.0
"""Draw new masks for each pass over the data, or the same few in turn (RoBERTa section 4.1: dynamic and static masking).

A mask depends only on (seed, epoch, number of the example). Workers, the order of the examples, the other examples of the
batch and resuming do not change it.

    train_dataset = NumberedExamples(examples)
    collator = MaskingCollator(MaskingVocabulary.from_tokenizer(tokenizer), MaskingOptions(unit="ngram"))
    arguments = TrainingArguments(..., remove_unused_columns=False)
    Trainer(model, arguments, collator, train_dataset, callbacks=[EpochCallback()])
"""

import copy
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from transformers import TrainerCallback

from ..training.distributed import spread_seed
from .masking import IGNORED, MaskingOptions, MaskingVocabulary, RowGenerator, mask
from .sentence_pairs import swap_segments

__all__ = ["EpochCallback", "MaskingCollator", "NumberedExamples", "NumberedStream", "lower_rate"]


def lower_rate(batch: dict[str, torch.Tensor], rate: float) -> dict[str, torch.Tensor]:
    """Return the batch as if it had been masked at this lower rate, without the column "masked_from"; draws stay the same.

    Args:
        batch (`dict`): of a `MaskingCollator` whose options have a `final_rate`.
    """
    kept = batch["masked_from"] < rate
    restored = (batch["labels"] != IGNORED) & ~kept
    changes = dict(
        input_ids=torch.where(restored, batch["labels"], batch["input_ids"]),
        labels=batch["labels"].masked_fill(~kept, IGNORED),
    )
    return {name: values for name, values in (batch | changes).items() if name != "masked_from"}


class SharedEpoch:
    """The number of the epoch, in memory shared with the workers, which may outlive an epoch; `fixed` it stays 0."""

    def __init__(self, fixed: bool = False):
        self.fixed = fixed
        self.epoch = torch.zeros(1, dtype=torch.long).share_memory_()

    def set_epoch(self, epoch: int):
        if not self.fixed:
            self.epoch[0] = epoch

    def epoch_columns(self, epoch: int) -> dict[str, Any]:
        """Return the columns of a row that name its epoch."""
        if self.fixed:
            return {"epoch": epoch, "fixed": True}
        return {"epoch": epoch}


class NumberedExamples(SharedEpoch, Dataset):
    """A data set whose rows have their number ("example") and the number of the pass over the data ("epoch").

    Args:
        dataset (`Sequence[dict]` or `datasets.Dataset`): rows that `MaskingCollator` can read.
        fixed (`bool`): the epoch stays 0, and the collator's seed does not count, as evaluation needs: it must see the same
            masks each time, and in runs with other seeds.
    """

    def __init__(self, dataset: Sequence[Mapping[str, Any]], *, fixed: bool = False):
        super().__init__(fixed)
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {**self.dataset[i], "example": int(i), **self.epoch_columns(int(self.epoch))}


class NumberedStream(SharedEpoch, IterableDataset):
    """Lanes of examples as one stream, numbered from 0, which have the number of the pass over their lane ("epoch").

    Block i of `block` examples is of lane i % lanes. It goes to process i % processes, and there to worker
    i // processes % workers, which read no other lane where processes x workers divides the number of lanes; else a lane is
    read by several of them. So the numbers, the order and the examples depend on neither. A row that has an "example"
    number within its lane keeps it: static masks of a shuffled stream need one.

    Args:
        lanes (iterables of `dict`, such as `datasets.IterableDataset`): one or several, which can be read again for each
            epoch. Their own `set_epoch`, which may shuffle again, is called, too.
        endless (`bool`): when a lane is read, begin its next epoch. Trainer does not know how long a stream is, and thus
            resumes a run in the right place only if it never ends. A lane without a row is then a ValueError.
        block (`int`): neighbouring examples of one lane, which go to one worker: the batch size of a process.
        process, processes (`int`): the examples of other processes are None, where accelerate's `IterableDatasetShard`
            takes the examples of this one. Several need an endless stream.
    """

    def __init__(self, *lanes: Any, endless: bool = False, block: int = 1, process: int = 0, processes: int = 1):
        super().__init__()
        self.lanes, self.endless, self.block = lanes, endless, block
        self.process, self.processes = process, processes

    def __iter__(self) -> Iterator[dict[str, Any] | None]:
        worker = get_worker_info()
        number, workers = 0, 1
        if worker is not None:
            number, workers = worker.id, worker.num_workers
        readers, reader = self.processes * workers, self.process + self.processes * number
        shared = math.gcd(len(self.lanes), readers)
        rows = {lane: self.lane_rows(lane) for lane in range(reader % shared, len(self.lanes), shared)}
        for i in itertools.count():
            if not rows:
                return
            lane = i % len(self.lanes)
            block = list(itertools.islice(rows.get(lane, ()), self.block))
            if i % readers == reader:
                yield from block
            elif i // self.processes % workers == number:
                yield from [None] * self.block
            if lane in rows and len(block) < self.block:
                del rows[lane]

    def lane_rows(self, lane: int) -> Iterator[dict[str, Any]]:
        # A copy: workers share the epoch of a datasets.IterableDataset, and the fastest is in the next one already.
        dataset = copy.deepcopy(self.lanes[lane])
        for epoch in itertools.count(int(self.epoch)):
            if hasattr(dataset, "set_epoch"):
                dataset.set_epoch(epoch)
            number = -1
            for number, row in enumerate(read_rows(dataset)):
                example = row.get("example", number) * len(self.lanes) + lane
                yield {**row, "example": example, **self.epoch_columns(epoch)}
            if not self.endless:
                return
            if number < 0:
                raise ValueError(f"the stream has no example at all in lane {lane} of {len(self.lanes)}: check its sources")


def read_rows(dataset: Any) -> Iterator[Mapping[str, Any]]:
    """Iterate over all rows: iterating a `datasets.IterableDataset` would give a DataLoader worker only its own files."""
    if not (isinstance(dataset, IterableDataset) and hasattr(dataset, "iter")):
        yield from dataset
        return
    for columns in dataset.iter(batch_size=1):
        yield {name: values[0] for name, values in columns.items()}


class EpochCallback(TrainerCallback):
    """Set the epoch of `NumberedExamples` where accelerate does not: with several processes, or in the epoch in which a run
    is resumed, it finds the sampler in its place."""

    def on_epoch_begin(self, args, state, control, train_dataloader=None, **kwargs):
        dataset = getattr(train_dataloader, "dataset", None)
        if isinstance(dataset, NumberedExamples):
            dataset.set_epoch(int(state.epoch or 0))


class MaskingCollator:
    """Mask each example of a batch and pad them.

    Args:
        vocabulary (`MaskingVocabulary`): of the tokenizer that encoded the examples.
        options (`MaskingOptions`): what is masked.
        seed (`int`): of all masks, except masks of examples that are `fixed`.
        duplicates (`int`, *optional*): None draws new masks in each epoch (dynamic); 1 the same (static); 10 is static
            masking of BERT as RoBERTa describes it: ten masks for each example, which recur every ten epochs.
        sentence_order (`bool`): the examples are pairs of consecutive segments; half of them change places, and
            "sentence_labels" says which (1; ALBERT section 3.1).
        pad_to_multiple_of (`int`, *optional*): pad to a multiple of it rather than to the longest example.
        max_length (`int`, *optional*): padding to a multiple stops there.
    """

    def __init__(
        self,
        vocabulary: MaskingVocabulary,
        options: MaskingOptions,
        *,
        seed: int = 0,
        duplicates: int | None = None,
        sentence_order: bool = False,
        pad_to_multiple_of: int | None = None,
        max_length: int | None = None,
    ):
        if duplicates is not None and duplicates < 1:
            raise ValueError(f"duplicates must be at least 1 (static masks), or None, got {duplicates}")
        self.vocabulary, self.options, self.seed = vocabulary, options, seed
        self.duplicates, self.sentence_order = duplicates, sentence_order
        self.pad_to_multiple_of, self.max_length = pad_to_multiple_of or 1, max_length
        # Raised with each change of the masks of a (seed, epoch, example), which no resumed run must meet.
        self.draws = 2

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Mask and pad.

        Args:
            features (`list[dict]`): each with "input_ids" ([N], list or tensor), "example", "epoch", and, all or none of
                them, "token_type_ids", "document_ids" ([N]) and "sentence_labels" (`int`). Other entries are left out.
        Returns:
            `dict` of `torch.LongTensor`: [B, N] "input_ids", "attention_mask", "labels" (-100 where nothing is to be
            predicted) and, where given, "token_type_ids" and "document_ids", padded with 0; [B] "sentence_labels". With
            `options.final_rate`, which examples that are `fixed` have at once, [B, N] "masked_from" for `lower_rate`.
        """
        generator = RowGenerator([self.seed_of(feature) for feature in features])
        tensors = ("input_ids", "token_type_ids", "document_ids")
        rows = []
        for feature in features:
            row = {name: torch.as_tensor(feature[name], dtype=torch.long) for name in tensors if name in feature}
            if "sentence_labels" in feature:
                row["sentence_labels"] = feature["sentence_labels"]
            rows.append(row)
        if self.sentence_order:
            swaps = (generator.uniform(1)[:, 0] < 0.5).tolist()
            rows = [swap_segments(row, self.vocabulary.special, swap) for row, swap in zip(rows, swaps, strict=True)]
        lengths = torch.tensor([len(row["input_ids"]) for row in rows])
        longest = int(lengths.max())
        more = -longest % self.pad_to_multiple_of
        if self.max_length is not None:
            more = max(0, min(more, self.max_length - longest))
        batch = {}
        # All examples have the entries of each other, or it is a KeyError.
        for name in dict.fromkeys(itertools.chain(*rows)):
            values = [row[name] for row in rows]
            if name in tensors:
                padding = self.vocabulary.pad_id if name == "input_ids" else 0
                batch[name] = pad(pad_sequence(values, batch_first=True, padding_value=padding), (0, more), value=padding)
            else:
                batch[name] = torch.tensor(values, dtype=torch.long)
        batch["attention_mask"] = (torch.arange(longest + more) < lengths[:, None]).long()
        masked = mask(batch["input_ids"], self.vocabulary, self.options, generator, lengths)
        batch["input_ids"], batch["labels"], batch["masked_from"] = masked
        if self.options.final_rate is not None and not features[0].get("fixed"):
            return batch
        return lower_rate(batch, self.options.final_rate or self.options.rate)

    def seed_of(self, feature: Mapping[str, Any]) -> int:
        """Return the seed of an example's draws in its epoch; neighbouring numbers give unrelated ones."""
        epoch, seed = feature["epoch"], self.seed
        if self.duplicates:
            epoch %= self.duplicates
        if feature.get("fixed"):
            seed = 0
        return spread_seed(seed, epoch, feature["example"])
