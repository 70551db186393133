# SPDX-License-Identifier: Apache-2.0
"""A small prepared corpus, another one in its place, and a server of it that fails."""

import shutil
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from scripts import command_line, module_of

__all__ = ["FailingServer", "make_prepared", "other_shards"]


def make_prepared(text: Path, folder: Path):
    flags = dict(max_length=32, validation_documents=10, train_tokenizer="byte-level-bpe", vocab_size=300, part_bytes=4000)
    module_of("prepare_corpus").main(command_line(dict(train_data=text, output_dir=folder) | flags))
    shutil.rmtree(folder / "work")


def other_shards(folder: Path, with_manifest: bool = False):
    """Change a token of each shard, and no size; `with_manifest` it is a whole corpus, but another one."""
    import pyarrow

    from hf_deberta_ext.pretraining.preparation_blocks import ShardWriter
    from hf_deberta_ext.pretraining.prepared_corpus import load_manifest, write_manifest
    from hf_deberta_ext.training.digests import json_digest

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


class FailingServer(ThreadingHTTPServer):
    """Serves a folder over HTTP, without listings.

    Args:
        faults (`dict[str, list]`): file -> what its next answers are: a status, "short" or "slow".
    """

    daemon_threads, request_queue_size = True, 128

    def __init__(self, folder: Path, faults: dict[str, list]):
        super().__init__(("127.0.0.1", 0), lambda *args: _FailingHandler(*args, directory=str(folder)))
        self.faults, self.asked, self.ended = faults, [], threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *args):
        self.ended.set()
        self.shutdown()
        super().__exit__(*args)


class _FailingHandler(SimpleHTTPRequestHandler):
    def do_GET(self):
        name = self.path.lstrip("/")
        self.server.asked.append(name)
        fault = self.server.faults[name].pop(0) if self.server.faults.get(name) else None
        if isinstance(fault, int):
            self.send_error(fault)
        elif fault == "short":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(Path(self.translate_path(self.path)).read_bytes()[:100])
        elif fault == "slow":
            self.server.ended.wait(60)
        else:
            super().do_GET()

    def list_directory(self, path):
        self.send_error(404)

    def log_message(self, *args):
        pass
