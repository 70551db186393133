# SPDX-License-Identifier: Apache-2.0
"""A small prepared corpus, and another one in its place."""

import shutil
from pathlib import Path

from scripts import command_line, module_of

__all__ = ["make_prepared", "other_shards"]


def make_prepared(text: Path, folder: Path):
    flags = dict(max_length=32, validation_documents=10, train_tokenizer="byte-level-bpe", vocab_size=300, part_bytes=4000)
    module_of("prepare_corpus").main(command_line(dict(train_data=text, output_dir=folder) | flags))
    shutil.rmtree(folder / "work")


def other_shards(folder: Path, with_manifest: bool = False):
    """Change a token of each shard, and no size; `with_manifest` it is a whole corpus, but another one."""
    import pyarrow

    from hf_deberta_ext.pretraining.preparation_blocks import ShardWriter
    from hf_deberta_ext.pretraining.prepared_corpus import load_manifest, write_manifest
    from hf_deberta_ext.training.run_contents import json_digest

    manifest = load_manifest(folder)
    for shard in manifest["train"]:
        columns = pyarrow.ipc.open_file(folder / shard["file"]).read_all().to_pydict()
        columns["input_ids"][0][1] ^= 1
        with (folder / shard["file"]).open("wb") as file:
            writer = ShardWriter(file, 300)
            writer.write(columns)
            writer.close()
        shard["digest"] = json_digest(writer.digests)
    if with_manifest:
        write_manifest(folder, manifest | dict(digest=json_digest(manifest["train"])))
