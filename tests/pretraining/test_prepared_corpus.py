# SPDX-License-Identifier: Apache-2.0
"""Test prepared corpora: output of examples/prepare_corpus.py, order of training, exact resume, and errors."""

import json
import shutil
import signal
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import datasets
import dill
import mlm_script
import numpy as np
import pytest
from datatrove.data import Document
from mlm_script import arguments, assert_refused, assert_same_weights, copy_checkpoint
from scripts import ROOT, command_line

from hf_deberta_ext.commands import main as deberta_ext
from hf_deberta_ext.pretraining import pack, preparation, preparation_blocks, prepared_corpus, train_tokenizer
from hf_deberta_ext.pretraining.prepared_corpus import PreparedRows, ShardOrder, is_prepared, write_manifest
from hf_deberta_ext.tokenization import load_tokenizer

text = mlm_script.text
GOOD = """The river that runs behind the old mill has been dammed with stones, and the water stands there all summer.
Nobody remembers who built the wall, but the people of the village have repaired it every spring, as long as they can think.
When the snow melts in the mountains, a few of them walk up with ropes, look for loose blocks, and put them back in place.
It is hard work, and it takes most of a week to get everything done before the next rain comes from the northern hills."""
SPEECH = "Four score and seven years ago our fathers brought forth on this continent a new nation conceived in liberty"


def preparing(text, folder, **flags):
    common = dict(
        train_data=text.parent, output_dir=folder, max_length=32, validation_documents=10, train_tokenizer="byte-level-bpe",
        vocab_size=300, part_bytes=4000, licenses="cc0-1.0",
    )  # fmt: skip
    if "tokenizer" in flags:
        del common["train_tokenizer"], common["vocab_size"]
    return [*command_line(common | flags), "--deduplicate", "exact", "minhash"]


@pytest.fixture(scope="module")
def prepared(prepare_corpus, text, tmp_path_factory):
    """Prepare 120 documents, an exact and a near duplicate of one, one with text of an evaluation set, and a blank one."""
    documents = text.read_text(encoding="utf-8").split("\n\n")
    near = f"{max(documents, key=len)} And so on."
    rows = [{"text": line} for line in (documents[0], near, f"He said: {SPEECH.upper()}, and so on.", " ")]
    (text.parent / "more.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    evaluation = tmp_path_factory.mktemp("evaluation") / "dev.jsonl"
    evaluation.write_text(json.dumps({"label": 1, "sentences": [f"{SPEECH}, he said."]}), encoding="utf-8")
    folder = tmp_path_factory.mktemp("prepared") / "prepared"
    prepare_corpus.main(preparing(text, folder, decontaminate=evaluation))
    return folder


def test_every_document_is_counted_and_each_token_is_in_a_row(prepared, capsys):
    manifest = json.loads((prepared / "manifest.json").read_text(encoding="utf-8"))
    report, dropped = manifest["report"], manifest["dropped"]
    assert manifest["documents"] == 124
    assert dropped == {
        "blank": 1, "contaminated": 1, "exact duplicates": 1, "near duplicates": 1, "too short": 0
    }  # fmt: skip
    assert report["documents"] == 120 - manifest["held_out_documents"] and report["tokens"] == report["packed_tokens"]
    rows, tokenizer = PreparedRows(prepared), load_tokenizer(prepared / "tokenizer")
    assert len(rows) == report["examples"] and len(manifest["train"]) > 3
    special = [tokenizer.cls_token_id, tokenizer.sep_token_id]
    assert sum(int((~np.isin(rows[i]["input_ids"], special)).sum()) for i in range(len(rows))) == report["tokens"]
    assert deberta_ext(["info", str(prepared)]) == 0
    printed = capsys.readouterr().out
    assert f"{len(rows)} rows" in printed and manifest["digest"] in printed and "cc0-1.0" in printed


def test_prepared_again_by_the_command_nothing_runs_and_other_values_are_refused(prepared, prepare_corpus, text, capsys):
    begun = json.loads((prepared / "manifest.json").read_text(encoding="utf-8"))
    flags = dict(decontaminate=begun["request"]["decontaminate"][0])
    assert deberta_ext(["prepare", *preparing(text, prepared, workers=2, **flags)]) == 0
    assert "tasks" not in capsys.readouterr().out
    argv = preparing(text, prepared, packing="best_fit", **flags)
    assert_refused(prepare_corpus, "was started with other values of --packing; pass the same values", argv)


PACKING = dict(max_length=24, sentence_pairs="nsp", language="en", min_tokens=1, seed=0)


def write_rows(prepared, folder, documents, mode, held_out):
    """Write rows of documents with the tokenizer of the prepared corpus; return the report of the part."""
    shutil.copytree(prepared / "tokenizer", folder / "tokenizer")
    block = preparation_blocks.WriteRows(str(folder), dict(mode=mode, **PACKING), held_out)
    block.run(Document(text=document, id="") for document in documents)
    return json.loads((folder / "work/rows/00000.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("mode", ["full_sentences", "document_sentences", "best_fit", "segment_pair"])
def test_rows_are_those_of_pack(mode, prepared, text, tmp_path):
    documents = text.read_text(encoding="utf-8").split("\n\n")[:30]
    report = write_rows(prepared, tmp_path, documents, mode, 0)
    shards = dict(train=[report["train"]["shard"]], held_out=[], finished=True, digest="", report={})
    whole = json.loads((prepared / "manifest.json").read_text(encoding="utf-8"))
    write_manifest(tmp_path, shards | {"report": whole["report"]})
    rows = PreparedRows(tmp_path)
    corpus = datasets.Dataset.from_list([{"text": document} for document in documents])
    expected, counts = pack(corpus, load_tokenizer(tmp_path / "tokenizer"), mode=mode, **PACKING)
    assert rows[0].keys() == expected[0].keys() and report["train"]["counts"]["tokens"] == counts.tokens
    if mode == "segment_pair":
        # Other draws: the same spans of the documents, split at other positions.
        assert sum(len(rows[i]["input_ids"]) for i in range(len(rows))) == sum(map(len, expected["input_ids"]))
        return
    assert len(rows) == len(expected)
    for i in range(len(rows)):
        assert {name: value.tolist() for name, value in rows[i].items()} == expected[i]


def order_of(ends, *, batch, streams, buffer, epoch=0):
    rows = type("Rows", (), {"ends": np.array(ends), "buffer": buffer, "__len__": lambda self: int(ends[-1])})()
    return [*ShardOrder(SimpleNamespace(dataset=rows, epoch=epoch), batch=batch, streams=streams, seed=3)]


@pytest.mark.parametrize(
    "ends, batch, streams, buffer",
    [([1], 4, 8, 10), ([7, 20, 50], 4, 8, 10_000), ([100, 110, 997], 3, 16, 10), ([500, 1000, 1501], 8, 4, 64)],
    ids=["one row", "one window", "many rounds", "short last batch"],
)
def test_an_epoch_has_every_row_once_in_an_order_of_its_own(ends, batch, streams, buffer):
    orders = [order_of(ends, batch=batch, streams=streams, buffer=buffer, epoch=epoch) for epoch in (0, 0, 1)]
    assert sorted(orders[0]) == [*range(ends[-1])]
    assert orders[0] == orders[1] and (orders[0] != orders[2] or ends[-1] == 1)


def test_rows_of_a_step_are_of_many_shards():
    """Mix shards in a step: its 8 batches were from only 3 shards, when streams were consecutive ranges."""
    order = np.array(order_of(np.arange(1, 121) * 3000, batch=32, streams=64, buffer=1000))
    steps = (order // 3000)[: len(order) // 256 * 256].reshape(-1, 256)
    assert np.mean([len({*step.tolist()}) for step in steps]) > 7
    assert abs(np.corrcoef(order, np.arange(len(order)))[0, 1]) < 0.2
    assert np.mean(np.abs(np.diff(order)) == 1) < 0.01


def training(prepared, folder, **flags):
    """Return training flags without tokenizer and held-out documents, which are in the prepared folder."""
    common = dict(shuffle_buffer=16, train_tokenizer=None, vocab_size=None, validation_documents=None)
    return arguments(prepared, folder, **(common | flags))


@pytest.mark.parametrize("script", ["run_mlm", pytest.param("run_rtd", marks=pytest.mark.slow)])
def test_run_resumed_within_an_epoch_ends_with_the_same_weights(script, request, prepared, tmp_path):
    module = request.getfixturevalue(script)
    flags = dict(max_steps=8, save_steps=3, learning_rate=1e-3, dataloader_num_workers=2 * (script == "run_mlm"))
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    module.main(training(prepared, whole, **flags))
    copy_checkpoint(whole, resumed, 3)
    module.main(training(prepared, resumed, **flags, resume_from_checkpoint="last"))
    assert_same_weights(whole, resumed)
    assert json.loads((whole / "run_report.json").read_text(encoding="utf-8"))["packing"]["train"]["examples"] > 32
    card = (whole / "README.md").read_text(encoding="utf-8")
    assert "cc0-1.0" in card and "manifest" not in card


SHARD, MANIFEST = "train/00002.arrow", "manifest.json"


def with_another_token(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    "file, change, message",
    [
        (SHARD, None, SHARD),
        (SHARD, lambda content: content[:-8], " bytes, got "),
        (SHARD, with_another_token, f"{SHARD} differs from its digest in the manifest"),
        (
            None,
            lambda folder: write_manifest(folder, {"finished": False}),
            "is unfinished; run the command that prepares this folder again",
        ),
        (MANIFEST, None, "contains shards but no manifest.json"),
        (MANIFEST, lambda content: b'{"finished": tr', "manifest.json is damaged"),
    ],
    ids=["missing", "shorter", "changed", "unfinished", "no manifest", "damaged manifest"],
)
def test_a_broken_folder_is_refused_by_name(file, change, message, prepared, run_mlm, tmp_path):
    folder = tmp_path / "prepared"
    shutil.copytree(prepared, folder, ignore=shutil.ignore_patterns("work"))
    if file is None:
        change(folder)
    elif change is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(change((folder / file).read_bytes()))
    assert is_prepared(folder)
    assert_refused(run_mlm, message, training(folder, tmp_path / "run", max_steps=40))


@pytest.fixture
def url(prepared, tmp_path, monkeypatch):
    """Serve the prepared folder over HTTP."""
    monkeypatch.setattr(prepared_corpus, "HF_HOME", str(tmp_path / "home"))
    handler = partial(SimpleHTTPRequestHandler, directory=str(prepared))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_training_reads_a_remote_folder_as_a_local_one(url, prepared, run_mlm, tmp_path):
    def remote(folder):
        argv = training(prepared, tmp_path / folder, cache_dir=tmp_path / "cache", dataloader_num_workers=1)
        return [url if word == str(prepared) else word for word in argv]

    assert is_prepared(url) and not is_prepared(f"{url}/train")
    run_mlm.main(remote("remote"))
    run_mlm.main(training(prepared, tmp_path / "local"))
    assert_same_weights(tmp_path / "remote", tmp_path / "local")
    for copy in (tmp_path / "cache/prepared_corpora").glob("*.arrow"):
        copy.write_bytes(copy.read_bytes()[:-8])
    assert_refused(run_mlm, f"remove it, and copy {url}/", remote("broken"))


@pytest.mark.parametrize(
    "flags, message",
    [
        (dict(packing="best_fit"), "got {'packing': 'best_fit', 'max_length': 32}"),
        (dict(max_length=64), "'max_length': 64}; use the same values"),
        (dict(streaming="true"), "--streaming only works for text"),
        (dict(train_tokenizer="unigram"), "--train_tokenizer only works for text"),
        (dict(language="de"), "--language only works for text"),
    ],
)
def test_flags_that_do_not_fit_are_refused(flags, message, prepared, run_mlm, tmp_path):
    argv = training(prepared, tmp_path / "run") + command_line(flags)
    assert_refused(run_mlm, message, argv)
    assert not (tmp_path / "run").exists()


def test_packing_and_length_are_those_of_the_folder_where_no_flag_gives_them(prepared, run_mlm, tmp_path):
    argv = training(prepared, tmp_path / "run", max_length=None, max_steps=1)
    assert "--max_length" not in argv
    run_mlm.main(argv)
    record = json.loads((tmp_path / "run" / "run_arguments.json").read_text(encoding="utf-8"))
    assert (record["packing"], record["max_length"]) == ("full_sentences", 32)


def test_another_tokenizer_and_other_data_beside_are_refused(prepared, run_mlm, text, tmp_path):
    other = train_tokenizer("byte-level-bpe", [text.read_text(encoding="utf-8")], 280, show_progress=False)
    other.save_pretrained(tmp_path / "other")
    argv = training(prepared, tmp_path / "run", tokenizer=tmp_path / "other")
    assert_refused(run_mlm, "(300 tokens, digest", argv)
    argv = training(prepared, tmp_path / "run")
    argv.insert(argv.index(str(prepared)), str(text))
    assert_refused(run_mlm, "--train_data must be one prepared folder", argv)


@pytest.mark.parametrize(
    "flags, message",
    [
        (dict(tokenizer="mine", train_tokenizer="unigram"), "expected one tokenizer"),
        (dict(workers=0), "--workers must be at least 1"),
        (dict(decontaminate="glue-dev"), "no file or folder glue-dev"),
        (dict(decontaminate="{folder}/dev.txt"), "--decontaminate needs texts of at least 13 words"),
        (dict(tokenizer="{folder}"), "tokenizer"),
        (dict(executor_options="color=red"), "--executor_options are invalid for the executor local"),
        (dict(validation_documents=1000), "no training rows are left of 124 documents"),
    ],
)
def test_a_preparation_that_cannot_be_is_refused_and_wrong_flags_leave_the_folder_free(
    flags, message, prepared, prepare_corpus, text, tmp_path
):
    """Reject missing files, which were ignored; and accept a corrected command, which begin() had blocked."""
    (tmp_path / "dev.txt").write_text("too few words\n", encoding="utf-8")
    flags = {name: str(value).format(folder=tmp_path) for name, value in flags.items()}
    assert_refused(prepare_corpus, message, preparing(text, tmp_path / "p", **flags))
    assert (tmp_path / "p").exists() == ("executor_options" in flags or "validation_documents" in flags)


@pytest.mark.parametrize(("held_out", "documents", "expected"), [(None, 30, 3), (None, 2, 1), (None, 1, 0), (9, 30, 9)])
def test_a_tenth_is_held_out_where_no_number_is_given(held_out, documents, expected, prepared, text, tmp_path):
    """Hold out a tenth: corpora of less than 100 documents were held out completely."""
    texts = text.read_text(encoding="utf-8").split("\n\n")[:documents]
    report = write_rows(prepared, tmp_path, texts, "best_fit", held_out)
    counts = {name: report[name]["counts"].get("documents", 0) for name in ("held_out", "train")}
    assert counts == dict(held_out=expected, train=documents - expected)


def test_filters_of_quality_drop_poor_documents_alone():
    filters = preparation.document_filters(SimpleNamespace(quality=[*preparation.QUALITY]), [])
    poor = {"gopher_quality": "Too short for use.", "gopher_repetition": GOOD[:40] * 50, "fineweb": "no stop\n" * 60}
    for name, block in filters.items():
        assert [*block([Document(text=poor[name], id="")])] == [], name
        assert len([*block([Document(text=GOOD, id="")])]) == 1, name
    assert len(filters) == 3


def test_languages_are_identified_by_a_custom_file(prepare_corpus, tmp_path):
    """Use a stored fastText classifier of a few English and German words, because training it is unreliable."""
    pytest.importorskip("fasttext", reason="the filter of languages runs on fastText")
    language_model = ROOT / "tests/support/languages.bin"
    german = "Niemand kennt die Mauer hinter der Mühle\n"
    (tmp_path / "texts.txt").write_text(german * 3 + "".join(f"{line}\n" for line in GOOD.splitlines()), encoding="utf-8")
    flags = dict(train_data=tmp_path / "texts.txt", documents="line", max_length=32, output_dir=tmp_path / "prepared")
    flags |= dict(train_tokenizer="byte-level-bpe", vocab_size=300, validation_documents=1)
    argv = command_line(flags | dict(languages="en", language_model=language_model))
    manifest = prepare_corpus.main(argv)
    assert manifest["dropped"]["other languages"] == 3 and manifest["report"]["documents"] == 3
    for wrong, said in [
        (dict(languages="fr", language_model=language_model), "has no language 'fr', only __label__de"),
        (dict(languages="en", language_model=tmp_path / "none.bin"), "none.bin"),
        (dict(language_model=language_model), "--language_model needs --languages"),
    ]:
        refused = dict(flags, output_dir=tmp_path / "refused") | wrong
        assert_refused(prepare_corpus, said, command_line(refused))
    assert not (tmp_path / "refused").exists()


def test_jobs_of_slurm_make_the_same_corpus(prepared, prepare_corpus, text, tmp_path, monkeypatch, request):
    """Record jobs with a fake sbatch, then run the tasks of each job here, in order."""
    calls = tmp_path / "calls"
    for name, line in {
        "sbatch": f'echo "$@" $(grep job-name= $(eval echo \\${{$#}})) >> {calls}; echo Submitted $(wc -l < {calls})',
        "scontrol": "echo node",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    whole = json.loads((prepared / "manifest.json").read_text(encoding="utf-8"))
    flags = dict(executor="slurm", executor_options="partition=cpu,time=1:00:00,tasks_per_job=99")
    flags["decontaminate"] = whole["request"]["decontaminate"][0]
    unfinished = prepare_corpus.main(preparing(text, tmp_path / "p", tokenizer=prepared / "tokenizer", **flags))
    assert not unfinished["finished"]
    lines = [line for line in calls.read_text(encoding="utf-8").splitlines() if "--export" in line]
    names = [line.rpartition("job-name=prepare_")[2] for line in lines]
    assert names[0] == "documents" and names[-2:] == ["rows", "manifest"] and len(names) == 8
    assert all("--dependency=afterok:" in line for line in lines[1:])
    for name, value in {"SLURM_ARRAY_TASK_ID": "0", "SLURM_NODELIST": "node"}.items():
        monkeypatch.setenv(name, value)
    before = signal.getsignal(signal.SIGUSR1)
    request.addfinalizer(lambda: signal.signal(signal.SIGUSR1, before))
    for name in names:
        dill.loads((tmp_path / f"p/work/logs/{name}/executor.pik").read_bytes()).run()
    made = json.loads((tmp_path / "p/manifest.json").read_text(encoding="utf-8"))
    assert made["digest"] == whole["digest"] and made["dropped"] == whole["dropped"]
