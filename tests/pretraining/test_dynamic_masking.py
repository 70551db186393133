# SPDX-License-Identifier: Apache-2.0
"""Test dynamic and static masks, which depend only on seed, epoch and example, not on workers, order or batch."""

from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

from hf_deberta_ext.pretraining.dynamic_masking import MaskingCollator, NumberedExamples, NumberedStream, lower_rate
from hf_deberta_ext.pretraining.masking import MaskingOptions, MaskingVocabulary, RowGenerator, units
from hf_deberta_ext.training.distributed import spread_seed

PAD, CLS, SEP, MASK, FIRST, V = 0, 1, 2, 3, 4, 200
PLACES = {
    "token": [2, 16, 20, 21, 32, 40],
    "word": [3, 4, 31, 32, 39, 40],
    "ngram": [1, 2, 21, 22, 23, 24],
    "span": [19, 20, 21, 22, 23, 24],
}


@pytest.fixture(scope="module")
def vocabulary():
    ids = torch.arange(V)
    special = ids < FIRST
    return MaskingVocabulary((ids % 2 == 0) & ~special, special, special, ids[FIRST:], mask_id=MASK, pad_id=PAD)


@pytest.fixture
def collator(vocabulary):
    """Return a function (**arguments) that makes a collator of whole words, which replaces every masked token."""
    return partial(MaskingCollator, vocabulary, MaskingOptions(unit="word", mask_share=1.0, random_share=0.0))


def rows(n=12, seed=0):
    """Return different examples of 20 to 40 tokens."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(20, 41, (n,), generator=g).tolist()
    return [{"input_ids": [CLS, *torch.randint(FIRST, V, (N - 2,), generator=g).tolist(), SEP]} for N in lengths]


def pair(A, B):
    return {"input_ids": [CLS, *A, SEP, *B, SEP], "token_type_ids": [0] * (len(A) + 2) + [1] * (len(B) + 1)}


def numbered(row, example=0, epoch=0):
    return {**row, "example": example, "epoch": epoch}


def masks(collate, examples, epoch):
    """Return the masked ids and the labels of each example as lists, without padding."""
    batch = collate([numbered(row, i, epoch) for i, row in enumerate(examples)])
    return unpadded(batch)


def unpadded(batch):
    lengths = batch["attention_mask"].sum(1).tolist()
    triples = zip(batch["input_ids"].tolist(), batch["labels"].tolist(), lengths, strict=True)
    return [(ids[:N], labels[:N]) for ids, labels, N in triples]


class Stream:
    """Stream that can be read again, with the epoch of `set_epoch` in each row; the epoch is shared, as in datasets."""

    def __init__(self, examples):
        self.examples, self.told = examples, torch.zeros(1).long().share_memory_()

    def __iter__(self):
        for example in self.examples:
            yield example | {"told": int(self.told)}

    def set_epoch(self, epoch):
        self.told[0] = epoch


def test_numbers_of_a_row_depend_on_its_seed_its_column_and_the_call_alone():
    seeds = [spread_seed(0, 0, example) for example in range(40)]
    together = RowGenerator(seeds)
    first, second = together.uniform(30), together.uniform(7)
    for row, seed in enumerate(seeds):
        alone = RowGenerator([seed])
        assert torch.equal(alone.uniform(50)[0, :30], first[row]) and torch.equal(alone.uniform(7)[0], second[row])
    assert len({*torch.cat([first, second], 1).flatten().tolist()}) == 40 * 37
    # Values of the published generator, seed 1234567: https://rosettacode.org/wiki/Pseudo-random_numbers/Splitmix64
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert RowGenerator([1234567]).uniform(3)[0].tolist() == [(number >> 11) * 2.0**-53 for number in expected]


def test_examples_and_streams_are_numbered_and_say_the_epoch():
    """Keep the number of a row in a stream: otherwise, static masks would not recur after shuffling."""
    examples, source = [{"x": 5}, {"x": 6, "example": 9}], Stream([{"x": 5}, {"x": 6, "example": 9}])
    dataset, stream = NumberedExamples(examples), NumberedStream(source)
    assert len(dataset) == 2 and dataset[0] == {"x": 5, "example": 0, "epoch": 0}
    for numbered_rows in (dataset, stream):
        numbered_rows.set_epoch(3)
    assert dataset[1] == {"x": 6, "example": 1, "epoch": 3}
    expected = [{"x": 5, "example": 0, "epoch": 3, "told": 3}, {"x": 6, "example": 9, "epoch": 3, "told": 3}]
    assert [*stream] == expected and [*stream] == expected
    fixed = NumberedExamples(examples, fixed=True)
    fixed.set_epoch(3)
    assert fixed[0]["epoch"] == 0


def test_fixed_examples_have_the_same_masks_whatever_the_seed_others_differ_and_recur(collator):
    """Use the same masks, so that runs with different seeds can be compared."""
    examples = [{"input_ids": [CLS, *range(FIRST, V), SEP]}] * 4
    fixed, free = (NumberedExamples(examples, fixed=fixed) for fixed in (True, False))
    labels = [collator(seed=seed)([fixed[i] for i in range(4)])["labels"] for seed in (0, 7)]
    assert torch.equal(*labels) and (labels[0] != -100).any()
    others = [collator(seed=seed)([free[i] for i in range(4)])["labels"] for seed in (0, 7)]
    assert torch.equal(labels[0], others[0]) and not torch.equal(*others)
    same = [{"input_ids": [CLS, *range(FIRST, V), SEP]}] * 8
    seen = [tuple(labels) for epoch in range(4) for _, labels in masks(collator(), same, epoch)]
    assert len({*seen}) == 32
    assert masks(collator(), same, 1) == masks(collator(), same, 1) != masks(collator(seed=1), same, 1)


@pytest.mark.parametrize("duplicates", [1, 3, 10])
def test_static_masks_recur_every_duplicates_epochs_and_differ_within(collator, duplicates):
    example, collate = [{"input_ids": [CLS, *range(FIRST, V), SEP]}], collator(duplicates=duplicates)
    epochs = [masks(collate, example, epoch)[0] for epoch in range(2 * duplicates)]
    assert epochs[duplicates:] == epochs[:duplicates]
    assert len({tuple(labels) for _, labels in epochs}) == duplicates


@pytest.mark.parametrize("unit", PLACES)
def test_masks_of_a_seed_epoch_and_example_are_those_of_earlier_versions(vocabulary, unit):
    """Compare with stored masks: after a change, a resumed run would draw other masks than before."""
    collate = MaskingCollator(vocabulary, MaskingOptions(unit=unit), seed=1)
    batch = collate([numbered({"input_ids": [CLS, *range(FIRST, FIRST + 40), SEP]}, example=3, epoch=2)])
    places = (batch["labels"][0] != -100).nonzero()[:, 0].tolist()
    assert places == PLACES[unit]


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("kind", ["in order", "shuffled", "stream"])
def test_workers_and_order_do_not_change_the_masks(collator, workers, kind):
    """Check also persistent workers, which must see the new epoch."""
    import datasets

    examples, dataset = rows(11), NumberedExamples(rows(11))
    sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(5)) if kind == "shuffled" else None
    if kind == "stream":
        # Three shards, which datasets would split among the workers.
        dataset = NumberedStream(datasets.Dataset.from_list(examples).to_iterable_dataset(num_shards=3))
    options = dict(num_workers=workers, persistent_workers=workers > 0)
    loader = DataLoader(dataset, batch_size=2, sampler=sampler, collate_fn=collator(), **options)
    for epoch in range(2):
        dataset.set_epoch(epoch)
        seen = sorted(row for batch in loader for row in unpadded(batch))
        assert seen == sorted(masks(collator(), examples, epoch))


def test_a_fast_worker_does_not_take_a_slow_one_into_its_epoch():
    """Keep epochs separate, although workers share the memory of the epoch of a datasets.IterableDataset."""
    source = Stream([{"x": x} for x in range(3)])
    slow, fast = (iter(NumberedStream(source, endless=True)) for _ in range(2))
    first = next(slow)
    ahead = [next(fast) for _ in range(5)]
    assert (first["told"], ahead[-1]["told"]) == (0, 1)
    assert [next(slow)["told"] for _ in range(3)] == [0, 0, 1]


def test_a_batch_is_padded_with_what_each_entry_needs(collator):
    features = [
        numbered({"input_ids": [CLS, 10, 11, SEP], "document_ids": [1, 1, 1, 1], "token_type_ids": [0, 0, 1, 1]}),
        numbered({"input_ids": torch.tensor([CLS, 10, SEP]), "document_ids": [2, 2, 3], "token_type_ids": [0, 1, 1]}),
    ]
    for feature, label in zip(features, (1, 0), strict=True):
        feature["sentence_labels"] = label
    assert collator(pad_to_multiple_of=8, max_length=6)(features)["input_ids"].shape == (2, 6)
    batch = collator(pad_to_multiple_of=8)(features)
    assert all(values.dtype == torch.long for values in batch.values())
    assert batch["input_ids"][:, 4:].tolist() == [[PAD] * 4] * 2
    assert batch["attention_mask"].tolist() == [[1] * 4 + [0] * 4, [1] * 3 + [0] * 5]
    assert batch["token_type_ids"].tolist() == [[0, 0, 1, 1, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0, 0, 0]]
    assert batch["document_ids"].tolist() == [[1] * 4 + [0] * 4, [2, 2, 3, 0, 0, 0, 0, 0]]
    assert (batch["labels"] >= 0).sum() == 3 and batch["labels"][1].tolist() == [-100, 10] + [-100] * 6
    assert batch["sentence_labels"].tolist() == [1, 0]


@pytest.mark.parametrize("unit", ["token", "word", "ngram", "span"])
def test_a_batch_is_lowered_to_a_rate_by_whole_units_and_fixed_examples_have_the_final_one(vocabulary, unit):
    options = MaskingOptions(unit=unit, rate=0.4, final_rate=0.1, mask_share=0.6, random_share=0.2)
    collate, examples = MaskingCollator(vocabulary, options), rows(150)
    batch = collate([numbered(row, i) for i, row in enumerate(examples)])
    tokens, kept = sum(len(row["input_ids"]) - 2 for row in examples), []
    for rate in (0.4, 0.25, 0.1):
        lowered = lower_rate(batch, rate)
        masked = lowered["labels"] != -100
        assert not (masked & (batch["labels"] == -100)).any() and {*lowered} == {*batch} - {"masked_from"}
        assert int(masked.sum()) / tokens == pytest.approx(rate, abs=0.015)
        original = torch.where(batch["labels"] != -100, batch["labels"], batch["input_ids"])
        assert torch.equal(lowered["labels"][masked], original[masked])
        assert torch.equal(lowered["input_ids"][~masked], original[~masked])
        assert torch.equal(lowered["input_ids"][masked], batch["input_ids"][masked])
        for row, row_masked in zip(examples, masked, strict=True):
            words = units(torch.tensor([row["input_ids"]]), vocabulary, options.whole_words)[0]
            row_masked = row_masked[: len(words)]
            assert not {*words[row_masked].tolist()} & {*words[~row_masked].tolist()}
        kept.append(masked)
    assert not (kept[2] & ~kept[1]).any()
    fixed = collate([numbered(row, i) | {"fixed": True} for i, row in enumerate(examples)])
    assert "masked_from" not in fixed and int((fixed["labels"] != -100).sum()) / tokens == pytest.approx(0.1, abs=0.015)


@pytest.fixture
def order_collator(vocabulary):
    """Return a collator that swaps segments and keeps every token."""
    options = MaskingOptions(mask_share=0.0, random_share=0.0)
    return MaskingCollator(vocabulary, options, sentence_order=True)


def test_half_of_the_pairs_change_places_with_their_types_anew_in_each_epoch_and_say_so(order_collator):
    features = [{**pair([10, 11, 12], [20]), "document_ids": [1, 1, 1, 2, 3, 4, 5]}] * 600
    seen, labels = {}, []
    for epoch in range(2):
        batch = order_collator([numbered(feature, i, epoch) for i, feature in enumerate(features)])
        labels.append(batch["sentence_labels"])
        columns = ("input_ids", "token_type_ids", "document_ids")
        for i in range(600):
            seen.setdefault(int(labels[-1][i]), [batch[name][i].tolist() for name in columns])
    for half in (labels[0], labels[0] == labels[1]):
        assert half.float().mean().item() == pytest.approx(0.5, abs=0.08)
    assert seen[0] == [[CLS, 10, 11, 12, SEP, 20, SEP], [0, 0, 0, 0, 0, 1, 1], [1, 1, 1, 2, 3, 4, 5]]
    assert seen[1] == [[CLS, 20, SEP, 10, 11, 12, SEP], [0, 0, 0, 1, 1, 1, 1], [1, 4, 3, 1, 1, 2, 5]]


def test_swapped_pairs_are_masked_in_their_new_places(collator):
    batch = collator(sentence_order=True)([numbered(pair([*range(10, 30)], [*range(30, 40)]), i) for i in range(50)])
    original = torch.where(batch["labels"] >= 0, batch["labels"], batch["input_ids"])
    assert torch.equal(original[:, 1], torch.where(batch["sentence_labels"] == 1, 30, 10))
    assert ((batch["input_ids"] == MASK) == (batch["labels"] >= 0)).all()
    assert (batch["labels"] >= 0).any(1).all()


NO_PAIRS = {
    "no types": {"input_ids": [CLS, 10, SEP, 11, SEP]},
    "empty first": pair([], [10]),
    "no separator": {"input_ids": [CLS, 10, 12, 11, SEP], "token_type_ids": [0, 0, 0, 1, 1]},
}


@pytest.mark.parametrize("name", NO_PAIRS)
def test_sentence_order_without_pairs_is_an_error(order_collator, name):
    with pytest.raises(ValueError, match=r"needs rows \[CLS\] A \[SEP\] B \[SEP\] with token_type_ids 0 and 1"):
        order_collator([numbered(NO_PAIRS[name])])
    assert order_collator([numbered({**pair([10], [11]), "sentence_labels": 0})])["sentence_labels"].shape == (1,)
    with pytest.raises(ValueError, match="needs consecutive segments, got sentence_labels 1"):
        order_collator([numbered({**pair([10], [11]), "sentence_labels": 1})])
