# SPDX-License-Identifier: Apache-2.0
"""A corpus preparation on a Ray cluster with two nodes on this machine; one node dies during the run."""

import threading
import time

import mlm_script as mlm
import pytest
from scripts import ROOT, command_line

pytest.importorskip("ray", reason="the executor 'ray' needs ray")

import ray
from kill_task import WaitsForItsNode
from ray.cluster_utils import Cluster

from hf_deberta_ext.pretraining import preparation

pytestmark = pytest.mark.slow
text = mlm.text


@pytest.fixture
def cluster(monkeypatch):
    """Start a head node without CPUs and two nodes with one CPU each, whose processes can import the tests' blocks."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT}/tests/support", prepend=":")
    cluster = Cluster(initialize_head=True, head_node_args=dict(num_cpus=0))
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_a_node_that_dies_changes_nothing(cluster, prepare_corpus, text, tmp_path, monkeypatch):
    documents, folder = text.read_text(encoding="utf-8").split("\n\n"), tmp_path / "texts"
    folder.mkdir()
    for name, half in (("a", documents[:60]), ("b", [*documents[60:], documents[0]])):
        (folder / f"{name}.txt").write_text("\n\n".join(half), encoding="utf-8")
    flags = dict(
        train_data=folder, max_length=32, validation_documents=10, train_tokenizer="byte-level-bpe", vocab_size=300,
        part_bytes=8000, deduplicate="exact", workers=2,
    )  # fmt: skip
    alone = prepare_corpus.main(command_line(flags | dict(output_dir=tmp_path / "alone")))

    raylet, filters = tmp_path / "raylet", preparation.document_filters
    waits = {"nothing": WaitsForItsNode(str(raylet))}
    monkeypatch.setattr(preparation, "document_filters", lambda *args, **options: filters(*args, **options) | waits)
    killer = threading.Thread(target=kill_node, args=(cluster, raylet), daemon=True)
    killer.start()
    flags |= dict(output_dir=tmp_path / "ray", executor="ray", executor_options="mem_per_cpu_gb=0.1")
    manifest = prepare_corpus.main(command_line(flags))
    killer.join(10)
    assert len(ray.nodes()) == 3 and sum(node["Alive"] for node in ray.nodes()) == 2
    assert manifest["digest"] == alone["digest"]
    assert manifest["dropped"] == alone["dropped"] | {"nothing": 0} and alone["dropped"]["exact duplicates"] == 1


def kill_node(cluster, raylet):
    while not raylet.exists():
        time.sleep(0.1)
    process = int(raylet.read_text(encoding="utf-8"))
    node = next(node for node in cluster.worker_nodes if node.all_processes["raylet"][0].process.pid == process)
    cluster.remove_node(node, allow_graceful=False)
