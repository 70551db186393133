# SPDX-License-Identifier: Apache-2.0
"""Draw new masks in each epoch, or repeat a few masks (RoBERTa section 4.1: dynamic and static masking).

The mask of an example depends only on the seed, the epoch and the index of the example, not on workers, on the order of
examples, on other examples of the batch, or on resuming.

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
    """Lower the masking rate of a batch: restore tokens that are not masked at `rate`, and drop the column "masked_from".

    The result is the same as if the batch had been masked at `rate` with the same random numbers.

    Args:
        batch (`dict`): batch of a `MaskingCollator` with `options.final_rate`.
        rate (`float`): new masking rate, at most the rate at which the batch was masked.
    """
    kept = batch["masked_from"] < rate
    restored = (batch["labels"] != IGNORED) & ~kept
    changes = dict(
        input_ids=torch.where(restored, batch["labels"], batch["input_ids"]),
        labels=batch["labels"].masked_fill(~kept, IGNORED),
    )
    return {name: values for name, values in (batch | changes).items() if name != "masked_from"}


class SharedEpoch:
    """Base class for data sets that know the current epoch. If `fixed`, the epoch is always 0.

    The epoch is in shared memory, so that a change also reaches DataLoader workers that run for several epochs.
    """

    def __init__(self, fixed: bool = False):
        self.fixed = fixed
        self.epoch = torch.zeros(1, dtype=torch.long).share_memory_()

    def set_epoch(self, epoch: int):
        if not self.fixed:
            self.epoch[0] = epoch

    def epoch_columns(self, epoch: int) -> dict[str, Any]:
        """Return the columns that are added to each row: "epoch" and, if the masks are the same in all epochs, "fixed"."""
        if self.fixed:
            return {"epoch": epoch, "fixed": True}
        return {"epoch": epoch}


class NumberedExamples(SharedEpoch, Dataset):
    """Data set that adds the index of the row ("example") and the current epoch ("epoch") to each row.

    Args:
        dataset (`Sequence[dict]` or `datasets.Dataset`): rows for `MaskingCollator`.
        fixed (`bool`, default False): for evaluation: use epoch 0 and ignore the collator's seed, so that all evaluations
            and all runs have the same masks.
    """

    def __init__(self, dataset: Sequence[Mapping[str, Any]], *, fixed: bool = False):
        super().__init__(fixed)
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {**self.dataset[i], "example": int(i), **self.epoch_columns(int(self.epoch))}


class NumberedStream(SharedEpoch, IterableDataset):
    """Data set that interleaves streams, and adds the id ("example") and the epoch ("epoch") of the example to each row.

    Block i has `block` examples of stream i % number of streams. It is read by process i % processes, and in this process by
    worker i // processes % workers. If processes x workers divides the number of streams, one worker reads each stream;
    otherwise, several workers do. Ids and order of the examples do not depend on the number of processes and workers.

    The id of a row is derived from its position in the stream. If rows already have a column "example", such as the position
    before shuffling, the id is derived from this column instead. Static masks then do not change with the order.

    Args:
        streams (iterables of `dict`, such as `datasets.IterableDataset`): streams that can be read again in each epoch; if
            a stream has a method `set_epoch`, this method is called before each epoch.
        endless (`bool`, default False): at the end of a stream, start its next epoch; an empty stream raises a ValueError.
            Trainer does not know the length of a stream, and can only resume a run at the right place if it is endless.
        block (`int`, default 1): number of examples in a block, which one worker reads; use the batch size of a process.
        process, processes (`int`, default 0 and 1): index of this process, and number of processes. Examples of other
            processes are None, which accelerate's `IterableDatasetShard` skips. Several processes need an endless stream.
    """

    def __init__(self, *streams: Any, endless: bool = False, block: int = 1, process: int = 0, processes: int = 1):
        super().__init__()
        self.streams, self.endless, self.block = streams, endless, block
        self.process, self.processes = process, processes

    def __iter__(self) -> Iterator[dict[str, Any] | None]:
        worker = get_worker_info()
        number, workers = 0, 1
        if worker is not None:
            number, workers = worker.id, worker.num_workers
        readers, reader = self.processes * workers, self.process + self.processes * number
        shared = math.gcd(len(self.streams), readers)
        rows = {stream: self.stream_rows(stream) for stream in range(reader % shared, len(self.streams), shared)}
        for i in itertools.count():
            if not rows:
                return
            stream = i % len(self.streams)
            block = list(itertools.islice(rows.get(stream, ()), self.block))
            if i % readers == reader:
                yield from block
            elif i // self.processes % workers == number:
                yield from [None] * self.block
            if stream in rows and len(block) < self.block:
                del rows[stream]

    def stream_rows(self, stream: int) -> Iterator[dict[str, Any]]:
        # Use a copy: workers share the epoch of a datasets.IterableDataset, and the fastest may be an epoch ahead.
        dataset = copy.deepcopy(self.streams[stream])
        for epoch in itertools.count(int(self.epoch)):
            if hasattr(dataset, "set_epoch"):
                dataset.set_epoch(epoch)
            number = -1
            for number, row in enumerate(read_rows(dataset)):
                example = row.get("example", number) * len(self.streams) + stream
                yield {**row, "example": example, **self.epoch_columns(epoch)}
            if not self.endless:
                return
            if number < 0:
                raise ValueError(f"stream {stream} of {len(self.streams)} must have examples, got none; check its data")


def read_rows(dataset: Any) -> Iterator[Mapping[str, Any]]:
    """Iterate over all rows, even in a worker, where a loop over a `datasets.IterableDataset` would only read some files."""
    if not (isinstance(dataset, IterableDataset) and hasattr(dataset, "iter")):
        yield from dataset
        return
    for columns in dataset.iter(batch_size=1):
        yield {name: values[0] for name, values in columns.items()}


class EpochCallback(TrainerCallback):
    """Callback that sets the epoch of `NumberedExamples`, which accelerate does not do in resumed or multi-process runs."""

    def on_epoch_begin(self, args, state, control, train_dataloader=None, **kwargs):
        dataset = getattr(train_dataloader, "dataset", None)
        if isinstance(dataset, NumberedExamples):
            dataset.set_epoch(int(state.epoch or 0))


class MaskingCollator:
    """Collator that masks and pads the examples of a batch.

    Args:
        vocabulary (`MaskingVocabulary`): vocabulary of the tokenizer that encoded the examples.
        options (`MaskingOptions`): unit, rate and replacement of masking.
        seed (`int`, default 0): seed of all masks, except masks of `fixed` examples.
        duplicates (`int`, *optional*): number of different masks of an example, used in turn, one per epoch. None: new masks
            in each epoch (dynamic masking). 1: always the same mask (static masking). 10: as in BERT (RoBERTa section 4.1).
        sentence_order (`bool`, default False): swap the two segments in half of the examples, and set "sentence_labels" to 1
            for swapped examples (ALBERT section 3.1). All examples must be pairs of consecutive segments.
        pad_to_multiple_of (`int`, *optional*): pad to a multiple of this number; default: to the longest example.
        max_length (`int`, *optional*): limit of the length to which `pad_to_multiple_of` pads; default: no limit.
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
            raise ValueError(f"duplicates must be None or at least 1 (static masks), got {duplicates}")
        self.vocabulary, self.options, self.seed = vocabulary, options, seed
        self.duplicates, self.sentence_order = duplicates, sentence_order
        self.pad_to_multiple_of, self.max_length = pad_to_multiple_of or 1, max_length

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Mask and pad a batch.

        Args:
            features (`list[dict]`): examples with "input_ids" ([N], list or tensor), "example" and "epoch"; optionally, in
                all examples or none, "token_type_ids", "document_ids" ([N]) and "sentence_labels" (`int`). Other entries
                are ignored.
        Returns:
            `dict` of `torch.LongTensor`: "input_ids", "attention_mask", "labels" [B, N] (-100 = not a target); if given,
            "token_type_ids" and "document_ids" [B, N], padded with 0, and "sentence_labels" [B]. If `options.final_rate` is
            set, `fixed` examples are masked at this rate; batches of other examples also have "masked_from" [B, N], for
            `lower_rate`.
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
        # Raises a KeyError if only some of the examples have an entry.
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
        """Return the seed for masking an example in the current epoch; consecutive examples get unrelated seeds."""
        epoch, seed = feature["epoch"], self.seed
        if self.duplicates:
            epoch %= self.duplicates
        if feature.get("fixed"):
            seed = 0
        return spread_seed(seed, epoch, feature["example"])
