# SPDX-License-Identifier: Apache-2.0
"""A small prepared corpus."""

import shutil
from pathlib import Path

from scripts import command_line, module_of


def make_prepared(text: Path, folder: Path):
    flags = dict(max_length=32, validation_documents=10, train_tokenizer="byte-level-bpe", vocab_size=300, part_bytes=4000)
    module_of("prepare_corpus").main(command_line(dict(train_data=text, output_dir=folder) | flags))
    shutil.rmtree(folder / "work")
