# SPDX-License-Identifier: Apache-2.0
"""A small prepared corpus, and its replacement by another one."""

import shutil
from pathlib import Path

from scripts import command_line, module_of


def make_prepared(text: Path, folder: Path):
    flags = dict(max_length=32, validation_documents=10, train_tokenizer="byte-level-bpe", vocab_size=300, part_bytes=4000)
    module_of("prepare_corpus").main(command_line(dict(train_data=text, output_dir=folder) | flags))
    shutil.rmtree(folder / "work")


def write_shard(folder: Path, name: str, columns: dict, largest_id: int) -> dict:
    """Write a shard of rows; return its entry in the manifest."""
    from xxhash import xxh3_64_hexdigest

    from hf_deberta_ext.pretraining.preparation_blocks import shard_content

    content, rows, _ = shard_content([columns], largest_id)
    (folder / name).write_bytes(content)
    return dict(file=name, rows=rows, bytes=len(content), digest=xxh3_64_hexdigest(content))


def other_shards(folder: Path, with_manifest: bool = False):
    """Change a token of each shard, but no size; `with_manifest` updates the manifest: another valid corpus."""
    from datasets import Dataset

    from hf_deberta_ext.pretraining.prepared_corpus import load_manifest, write_manifest
    from hf_deberta_ext.training.digests import json_digest

    manifest = load_manifest(folder)
    for shard in manifest["train"]:
        columns = Dataset.from_file(str(folder / shard["file"])).with_format("numpy")[:]
        columns["input_ids"][0][1] ^= 1
        shard |= write_shard(folder, shard["file"], columns, 300)
    if with_manifest:
        write_manifest(folder, manifest | dict(digest=json_digest(manifest["train"])))
