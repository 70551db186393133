# SPDX-License-Identifier: Apache-2.0
"""Test streams of files, each read by one worker of one process, in an order that is the same for all processes."""

import contextlib
import json
from types import SimpleNamespace

import pytest
from accelerate.data_loader import IterableDatasetShard
from torch.utils.data import DataLoader

from hf_deberta_ext.pretraining.corpus import DocumentStream, load_corpus
from hf_deberta_ext.pretraining.packing import pack
from hf_deberta_ext.pretraining.run_arguments import DataArguments, ModelArguments
from hf_deberta_ext.pretraining.run_stages import corpora, numbered_examples
from hf_deberta_ext.pretraining.tokenizer_training import train_tokenizer

DOCUMENTS = 200


def document(file, number):
    """Return a document of about 80 characters, with its file and number as a word."""
    return f"F{file}N{number} " + "word " * (12 + number % 7) + "end."


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for file in range(8):
        lines = [json.dumps({"text": document(file, number)}) + "\n" for number in range(DOCUMENTS)]
        (folder / f"{file}.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer("byte-level-bpe", [document(file, n) for file in range(8) for n in range(20)], 300)


def process_of(index, count, workers, accumulation):
    """Return the training arguments of one process."""
    return SimpleNamespace(
        process_index=index, world_size=count, dataloader_num_workers=workers, gradient_accumulation_steps=accumulation,
        train_batch_size=2, seed=0, data_seed=None, should_save=index == 0,
        main_process_first=lambda desc: contextlib.nullcontext(),
    )  # fmt: skip


def batches(files, tokenizer, process, **flags):
    """Iterate endlessly over the batches of one process, as Trainer's data loader does."""
    flags = dict(streaming=True, max_length=64, packing="document_sentences", shuffle_buffer=64) | flags
    data_args = DataArguments([str(files)], **flags)
    corpus, held_out = corpora(data_args, ModelArguments())
    train_set, *_ = numbered_examples(corpus, held_out, tokenizer, data_args, process)
    size, count = process.train_batch_size, process.world_size
    if count > 1:
        train_set = IterableDatasetShard(train_set, size, False, count, process.process_index)
    return DataLoader(train_set, batch_size=size, num_workers=process.dataloader_num_workers, collate_fn=list)


@pytest.mark.parametrize("flags", [{}, dict(packing="best_fit"), dict(max_train_samples=40)], ids=["", "packed", "cut"])
def test_batches_are_the_same_for_other_processes_and_workers(flags, files, tokenizer):
    """Check that a run can be resumed in the middle of an epoch, also with other numbers of processes."""
    alone = [batch for batch, _ in zip(batches(files, tokenizer, process_of(0, 1, 0, 4), **flags), range(48), strict=False)]
    assert any(row["epoch"] for batch in alone for row in batch) == ("max_train_samples" in flags)
    for index in range(2):
        loader = batches(files, tokenizer, process_of(index, 2, 2, 2), **flags)
        for number, batch in zip(range(index, 48, 2), loader, strict=False):
            assert batch == alone[number]


def test_a_stream_of_one_file_gives_its_rows_packed_and_shuffled(files, tokenizer):
    loader = batches(files / "0.jsonl", tokenizer, process_of(0, 1, 0, 4), validation_documents=3)
    corpus = load_corpus(files / "0.jsonl", streaming=True).skip(3)
    packed, _ = pack(corpus, tokenizer, mode="document_sentences", max_length=64)
    packed = packed.map(lambda row, number: {"example": number}, with_indices=True).shuffle(seed=0, buffer_size=64)
    rows = [row | {"epoch": 0} for row in packed]
    assert [row for batch, _ in zip(loader, range(50), strict=False) for row in batch] == rows[:100]


@pytest.mark.parametrize(
    "sizes, most, streams",
    [([9, 9, 9, 9], 8, 4), ([9] * 9, 8, 2), ([9] * 18, 24, 6), ([9, 1, 9, 1], 4, 1), ([9, 1, 1, 9], 4, 2), (None, 8, 4)],
)
def test_streams_are_as_many_as_hold_about_the_same_text(sizes, most, streams, tmp_path):
    count = 4 if sizes is None else len(sizes)
    for file in range(count):
        (tmp_path / f"{file:02}.txt").write_text(f"{file}a\n\n{file}b", encoding="utf-8")
    corpus = load_corpus(tmp_path, streaming=True)
    made = DocumentStream(corpus, 0, sizes).split(most)
    assert len(made) == streams
    for number, stream in enumerate(made):
        names = [f"{file}{letter}" for file in range(number, count, streams) for letter in "ab"]
        assert [row["text"] for row in stream] == names


def test_held_out_documents_are_in_no_stream(tmp_path):
    for file in range(4):
        (tmp_path / f"{file}.txt").write_text("\n\n".join(f"{file}{n}" for n in range(5)), encoding="utf-8")
    stream = DocumentStream(load_corpus(tmp_path, streaming=True), 7)
    assert [row["text"] for row in stream.held_out] == ["00", "01", "02", "03", "04", "10", "11"]
    expected = [f"{file}{n}" for file in range(4) for n in range(5)][7:]
    assert [row["text"] for row in stream] == expected
    assert sorted(row["text"] for part in stream.split(2) for row in part) == expected
