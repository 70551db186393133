# SPDX-License-Identifier: Apache-2.0
"""Runs of examples/run_mlm.py and run_rtd.py on generated sentences: the corpus, the flags and processes."""

import random
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file
from scripts import command_line

TINY = (
    "num_hidden_layers=2,hidden_size=32,intermediate_size=64,num_attention_heads=2,max_position_embeddings=64,"
    "position_buckets=16"
)
TORCHRUN = [
    sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "0", "--rdzv_backend", "c10d",
    "--rdzv_endpoint", "localhost:0",
]  # fmt: skip
NOUNS = "cat dog river mountain teacher garden window letter engine island doctor bridge".split()
VERBS = "sees likes finds leaves watches remembers paints follows".split()
PLACES = "here there outside today again slowly".split()


def write_text(file):
    """Write 120 documents of generated sentences, separated by blank lines."""
    generator = random.Random(0)
    documents = []
    for _ in range(120):
        sentences = []
        for _ in range(generator.randint(3, 9)):
            subject, object_noun = generator.sample(NOUNS, 2)
            verb, place = generator.choice(VERBS), generator.choice(PLACES)
            sentences.append(f"The {subject} {verb} the {object_noun} {place}.")
        documents.append(" ".join(sentences))
    file.write_text("\n\n".join(documents), encoding="utf-8")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("corpus") / "text.txt"
    write_text(file)
    return file


def parted(text, folder):
    """Return a folder with the documents of `write_text` in four files."""
    folder.mkdir()
    documents = text.read_text(encoding="utf-8").split("\n\n")
    for number in range(4):
        (folder / f"{number}.txt").write_text("\n\n".join(documents[number::4]), encoding="utf-8")
    return folder


def arguments(text, folder, *more, **flags):
    common = dict(
        train_data=text, output_dir=folder, config_overrides=TINY, max_length=32, max_steps=4,
        per_device_train_batch_size=4, logging_steps=1, report_to="none", disable_tqdm="true", validation_documents=10,
        cache_dir=text.parent / "cache",
    )  # fmt: skip
    if "model" not in flags:
        common |= dict(preset="v3-xsmall")
    if not {"tokenizer", "model"} & {*flags}:
        common |= dict(train_tokenizer="byte-level-bpe", vocab_size=300)
    return [*command_line(common | flags), *more]


def assert_refused(script, message, argv):
    with pytest.raises(SystemExit) as caught:
        script.main(argv)
    assert message in str(caught.value), caught.value


def finish(process):
    printed, _ = process.communicate(timeout=500)
    assert process.returncode == 0, printed[-3000:]
    return printed


def assert_same_weights(*folders):
    weights, other_weights = (load_file(folder / "model.safetensors") for folder in folders)
    assert weights.keys() == other_weights.keys()
    for name, weight in weights.items():
        assert torch.equal(weight, other_weights[name]), name


def copy_checkpoint(whole, folder, step):
    """Copy what a run leaves that is stopped behind the checkpoint of a step; return the new folder."""
    for name in (f"checkpoint-{step}", "tokenizer"):
        if (whole / name).is_dir():
            shutil.copytree(whole / name, folder / name)
    shutil.copy(whole / "run_arguments.json", folder)
    return folder
