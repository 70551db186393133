# SPDX-License-Identifier: Apache-2.0
"""`hf_deberta_ext.hub.push` over HTTP: what is sent, in which commit, what is said before and after."""

import argparse
import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfApi
from local_hub import LocalHub
from print_fault_table import make_folder, on_disk, online
from test_hub_checks import TINY, save_tokenizer
from transformers import AutoTokenizer

from hf_deberta_ext import DebertaExtConfig, DebertaExtForMaskedLM
from hf_deberta_ext.commands import push as command
from hf_deberta_ext.hub import FileChange, PushError, PushReport, push
from hf_deberta_ext.hub.changes import shown_size
from hf_deberta_ext.runs.published_files import published_files

ROOT = Path(__file__).resolve().parent.parent
WORKER = Path(__file__).with_name("hub_worker.py")
REPO = "user/deberta"
NAMES = {"README.md", "config.json", "model.safetensors", "tokenizer.json"}
# The module, whose name in the package is that of its function.
MODULE = importlib.import_module("hf_deberta_ext.hub.push")


@pytest.fixture(autouse=True)
def may_connect():
    with online():
        yield


@pytest.fixture
def hub():
    with LocalHub() as hub:
        yield hub


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "model")


@pytest.fixture
def send(hub, folder):
    return functools.partial(push, folder, REPO, token="hf_write", endpoint=hub.endpoint, skip_checks=True)


def changes(report):
    return {file.path: file.change for file in report.files}


def writes(hub):
    return [request for request in hub.requests if request.method != "GET"]


# ------- hand-computed


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_940, "999.9 kB"), (999_960, "1.0 MB"), (1_500_000, "1.5 MB"),
        (2_345_000_000, "2.3 GB"), (50 * 1000**3, "50.0 GB"),
    ],
)  # fmt: skip
def test_sizes_are_shown_as_on_the_hub(size, shown):
    assert shown_size(size) == shown


def test_a_report_is_a_table_with_sizes_and_sums():
    report = PushReport(
        "user/x", "https://hub/user/x", "main", "c0ffee", "v1", None,
        files=(
            FileChange("a.json", 10, "unchanged"), FileChange("old.bin", 2000, "deleted"),
            FileChange("model.safetensors", 1_500_000, "new"), FileChange("config.json", 812, "changed"),
        ),
        left_out={"checkpoint-4/": "a checkpoint"}, kept_on_hub=("notes.txt",), notes=("a note",),
    )  # fmt: skip
    assert str(report).splitlines() == [
        "user/x, branch main: 1 new, 1 changed, 1 deleted, 1 unchanged; 1.5 MB sent",
        "  new          1.5 MB  model.safetensors",
        "  changed       812 B  config.json",
        "  deleted      2.0 kB  old.bin",
        "  unchanged      10 B  a.json",
        "left out: checkpoint-4/ (a checkpoint)",
        "only on the Hub, and kept: notes.txt",
        "note: a note",
        "https://hub/user/x: commit c0ffee, tag v1",
    ]


# ------- what is sent


def test_a_push_is_one_commit_of_all_files(hub, send, folder):
    report = send(commit_message="First", commit_description="Why")
    commit = hub.repos[REPO].history()[0]
    assert (commit.title, commit.description, len(hub.repos[REPO].commits)) == ("First", "Why", 2)
    assert {*commit.files} == NAMES | {".gitattributes"}
    for name in NAMES - {"README.md"}:
        assert commit.files[name] == (folder / name).read_bytes()
    assert report.commit == commit.oid and report.url == f"{hub.endpoint}/{REPO}"
    assert changes(report) == dict.fromkeys(NAMES, "new")
    assert {file.path: file.size for file in report.files} == {name: len(commit.files[name]) for name in NAMES}


@pytest.mark.parametrize(
    ("options", "revision"),
    [({}, '"main"  # for good: '), (dict(revision="fast"), '"fast"  # for good: '), (dict(tag="v1.0"), '"v1.0"  # pins ')],
)
def test_the_card_on_the_hub_loads_what_was_pushed(options, revision, hub, send, folder):
    before = on_disk(folder)
    send(**options)
    card = hub.repos[REPO].files(options.get("revision", "main"))["README.md"].decode()
    assert f'repo = "{REPO}"\nrevision = {revision}' in card
    assert on_disk(folder) == before and 'repo = "here"' in (folder / "README.md").read_text()


def test_the_same_again_is_no_commit_and_no_upload(hub, send):
    first = send()
    hub.requests.clear()
    report = send()
    assert writes(hub) == [] and report.commit == first.commit
    assert changes(report) == dict.fromkeys(NAMES, "unchanged")
    assert "nothing differs from what is on the Hub, so there is no new commit" in report.notes


def test_only_what_changed_is_sent(hub, send, folder):
    send()
    # Of the same sizes: one in git, one in LFS.
    (folder / "tokenizer.json").write_text("[]")
    (folder / "model.safetensors").write_bytes(bytes(reversed((folder / "model.safetensors").read_bytes())))
    hub.requests.clear()
    report = send()
    expected = dict.fromkeys(NAMES, "unchanged") | {"tokenizer.json": "changed", "model.safetensors": "changed"}
    assert changes(report) == expected and len(hub.sent("PUT /lfs/")) == 1
    assert hub.repos[REPO].files()["tokenizer.json"] == b"[]"


def test_what_is_only_on_the_hub_stays_and_is_named(hub, send):
    send()
    hub.commit(REPO, {"notes.txt": b"x"})
    report = send()
    assert report.kept_on_hub == ("notes.txt",) and "notes.txt" in hub.repos[REPO].files()


@pytest.mark.parametrize(
    ("there", "gone"),
    [
        (["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"], ...),
        (["pytorch_model.bin"], ...),
        (["pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json"], ...),
        (["model.fp16.safetensors", "tf_model.h5", "adapter_model.safetensors", "discriminator/model.safetensors"], []),
        (["onnx/model.onnx", "onnx/model.onnx.data"], []),
    ],
)
def test_weights_that_the_new_ones_replace_are_deleted_in_the_same_commit(there, gone, hub, send):
    hub.create_repo(REPO, dict.fromkeys(there, b"old"))
    report = send()
    gone = there if gone is ... else gone
    assert {path for path, change in changes(report).items() if change == "deleted"} == {*gone}
    assert {*hub.repos[REPO].files()} == NAMES | {".gitattributes"} | {*there} - {*gone}
    assert len(hub.repos[REPO].history()) == 3 and {*report.kept_on_hub} == {*there} - {*gone}


def test_files_of_a_kind_replace_each_other_in_their_own_folder_alone(hub, send, folder):
    there = ["onnx/old.onnx", "onnx/old.onnx.data", "old.onnx", "generator/pytorch_model.bin", "adapter_model.bin"]
    hub.create_repo(REPO, dict.fromkeys(there, b"old"))
    for name in ("onnx/model.onnx", "generator/model.safetensors", "adapter_model.safetensors"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"new")
    report = send()
    assert {path for path, change in changes(report).items() if change == "deleted"} == {*there} - {"old.onnx"}


def test_a_smaller_number_of_files_replaces_a_larger_one(hub, send, folder):
    """The single file would be loaded in place of the new pieces."""
    send()
    pieces = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
    (folder / "model.safetensors").unlink()
    for name in pieces:
        (folder / name).write_bytes(name.encode())
    assert changes(send()) == {name: "unchanged" for name in NAMES} | dict.fromkeys(pieces, "new") | {
        "model.safetensors": "deleted"
    }


def test_files_that_are_none_of_a_model_stay_here_unless_they_are_asked_for(hub, send, folder):
    (folder / "training_args.bin").write_bytes(b"x")
    (folder / "checkpoint-2").mkdir()
    (folder / "checkpoint-2" / "model.safetensors").write_bytes(b"x")
    (folder / "notes.txt").write_text("x")
    report = send(include=["*.txt"])
    assert {*hub.repos[REPO].files()} == NAMES | {".gitattributes", "notes.txt"}
    assert {*report.left_out} == {"training_args.bin", "checkpoint-2/"}


# ------- where it goes


def test_a_new_repository_is_private_if_asked(hub, send):
    send(private=True)
    assert hub.repos[REPO].private
    send(private=True)


@pytest.mark.parametrize("private", [True, False])
def test_a_repository_that_is_there_keeps_who_may_see_it(private, hub, send):
    hub.create_repo(REPO, private=not private)
    flag = "--private" if private else "--public"
    with pytest.raises(ValueError, match=f"{REPO} is there already and {'public' if private else 'private'}.*{flag} out"):
        send(private=private)
    assert writes(hub) == [] and hub.repos[REPO].private is not private


def test_a_branch_that_is_not_there_is_made_from_main(hub, send, folder):
    first = send()
    hub.commit(REPO, {"notes.txt": b"x"})
    (folder / "config.json").write_text('{"model_type": "bert"}')
    report = send(revision="fast")
    repo = hub.repos[REPO]
    assert report.url == f"{hub.endpoint}/{REPO}/tree/fast" and report.commit == repo.branches["fast"]
    assert "notes.txt" in repo.files("fast") and b'"bert"' in repo.files("fast")["config.json"]
    assert first.commit in [commit.oid for commit in repo.history()] and b"deberta-ext" in repo.files()["config.json"]


def test_a_branch_is_made_even_if_nothing_else_is_to_do(hub, send):
    first = send(tag="v1")
    (report,) = [send(tag="v1", revision="fast")]
    assert hub.repos[REPO].branches == {"main": first.commit, "fast": first.commit} and report.commit == first.commit


def test_a_pull_request_leaves_main_as_it_is(hub, send, folder):
    first = send()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    report = send(create_pr=True, token="hf_stranger")
    repo = hub.repos[REPO]
    assert repo.branches["main"] == first.commit and report.commit == repo.pull_requests[1].head
    assert b'"bert"' in repo.files("refs/pr/1")["config.json"]
    assert report.pull_request == f"{hub.endpoint}/{REPO}/discussions/1" and report.pull_request in str(report)


def test_a_tag_names_the_commit(hub, send):
    report = send(tag="v1.0")
    assert hub.repos[REPO].tags == {"v1.0": report.commit} and report.tag == "v1.0"
    # What it names is just this.
    hub.requests.clear()
    assert send(tag="v1.0").commit == report.commit and writes(hub) == []


def test_a_tag_that_is_taken_is_refused_before_anything_is_sent(hub, send, folder):
    send(tag="v1.0")
    (folder / "config.json").write_text('{"model_type": "bert"}')
    hub.requests.clear()
    with pytest.raises(
        ValueError, match=r"user/deberta has a tag v1\.0 already, at the commit \w{12}.*choose another --tag"
    ):
        send(tag="v1.0")
    assert writes(hub) == []


def test_a_tag_is_no_branch(hub, send):
    send(tag="v1.0")
    with pytest.raises(ValueError, match=r"v1\.0 is a tag of user/deberta, and a push goes to a branch"):
        send(revision="v1.0")


# ------- before anything is sent


def test_a_dry_run_sends_nothing_and_says_what_a_push_does(hub, send, folder):
    dry = send(dry_run=True)
    assert writes(hub) == [] and hub.repos == {} and dry.dry_run
    assert "user/deberta is not there, or this token may not see it: every file counts as new" in dry.notes
    assert dry.files == send().files
    hub.commit(REPO, {"pytorch_model.bin": b"old", "notes.txt": b"x"})
    (folder / "config.json").write_text('{"model_type": "bert"}')
    (folder / "LICENSE").write_text("x")
    hub.requests.clear()
    dry = send(dry_run=True)
    expected = {"LICENSE": "new", "config.json": "changed", "pytorch_model.bin": "deleted"}
    assert changes(dry) == dict.fromkeys(NAMES, "unchanged") | expected and dry.kept_on_hub == ("notes.txt",)
    assert writes(hub) == [] and "a dry run: nothing was sent" in str(dry) and "to send" in str(dry)
    real = send()
    assert (real.files, real.kept_on_hub) == (dry.files, dry.kept_on_hub) and dry.commit != real.commit


@pytest.mark.parametrize("offline", [True, False])
def test_a_dry_run_needs_no_hub(offline, folder, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    monkeypatch.setattr("hf_deberta_ext.hub.transfer.sleep", lambda seconds: None)
    # Nothing listens there.
    report = push(folder, REPO, dry_run=True, endpoint="http://127.0.0.1:9", skip_checks=True)
    assert changes(report) == dict.fromkeys(NAMES, "new") and "the Hub was not reached" in " ".join(report.notes)


def test_a_dry_run_with_a_wrong_token_says_so(send):
    with pytest.raises(PushError, match="401 Unauthorized, Invalid credentials"):
        send(dry_run=True, token="hf_wrong")


@pytest.fixture
def problems(monkeypatch):
    found = ["config.json: one thing", "README.md: another"]
    asked = []
    monkeypatch.setattr(MODULE, "check_folder", lambda *arguments: asked.append(arguments) or found)
    return found, asked


def test_a_folder_with_problems_is_refused_with_all_of_them(problems, hub, send, folder):
    with pytest.raises(ValueError) as refused:
        send(skip_checks=False)
    first, *lines = str(refused.value).splitlines()
    assert first == f"{folder} cannot be published as it is, and nothing was sent:"
    assert lines == [f"- {problem}" for problem in problems[0]]
    assert writes(hub) == []


def test_the_checks_see_what_would_be_published(problems, send, folder):
    send(skip_checks=False, dry_run=True)
    ((where, files, token),) = problems[1]
    assert where == folder and token == "hf_write" and {*files} == NAMES


def test_a_dry_run_lists_the_problems(problems, hub, send):
    report = send(skip_checks=False, dry_run=True)
    assert report.problems == tuple(problems[0])
    assert "problem: config.json: one thing" in str(report) and "would be refused" in str(report)
    assert "the folder was not checked" not in report.notes and writes(hub) == []


def test_checks_that_are_skipped_are_named(send):
    assert "the folder was not checked" in send().notes


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (dict(repo_id="deberta"), "must be user/name"),
        (dict(repo_id="a/b/c"), "a/b/c"),
        (dict(repo_id="user/--x"), "user/--x"),
        (dict(source="nowhere"), "nowhere is not a folder"),
        (dict(tokenizer=object()), "save the tokenizer in it"),
        (dict(revision="refs/pr/1"), "must be the name of a branch"),
        (dict(revision="0" * 40), "must be the name of a branch"),
        (dict(create_pr=True, tag="v1"), "does not go with create_pr"),
        (dict(create_pr=True, revision="fast"), "does not go with create_pr"),
        (dict(tag="a tag"), "'a tag' must be of letters"),
        (dict(include=["*.nothing"]), "fits no file"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(changed, message, hub, folder):
    arguments = dict(source=folder, repo_id=REPO, endpoint=hub.endpoint, token="hf_write") | changed
    with pytest.raises(ValueError, match=message):
        push(**arguments)
    assert writes(hub) == []


def test_something_that_is_no_model_is_refused():
    with pytest.raises(TypeError, match="a folder or a model with save_pretrained, got int"):
        push(3, REPO)


# ------- a model, with all checks, and back


def test_a_model_comes_back_from_the_hub_where_this_package_is_not(hub, tmp_path, monkeypatch):
    """Pushed with its tokenizer, checked, tagged; a process that knows only transformers reads it from the server."""
    model = DebertaExtForMaskedLM(DebertaExtConfig(**TINY)).eval()
    save_tokenizer(tmp_path / "tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    monkeypatch.chdir(tmp_path)
    report = push(model, REPO, tokenizer=tokenizer, tag="v1.0", token="hf_write", endpoint=hub.endpoint)
    assert os.listdir(tmp_path) == ["tokenizer"] and report.problems == ()
    commit = hub.repos[REPO].history()[0]
    code = {file.name: file.read_bytes() for file in (ROOT / "hf_deberta_ext" / "model").glob("*.py")}
    del code["__init__.py"]
    assert {name: data for name, data in commit.files.items() if name.endswith(".py")} == code
    assert len(json.loads(commit.files["config.json"])["auto_map"]) == 8

    inputs = {"input_ids": [[1, 5, 6, 2]], "attention_mask": [[1, 1, 1, 1]]}
    kwargs = {"revision": "v1.0"}
    jobs = [
        {"name": "model", "kind": "model", "repo": REPO, "auto": "AutoModelForMaskedLM", "inputs": inputs, "kwargs": kwargs},
        {"name": "tokenizer", "kind": "tokenizer", "repo": REPO, "text": "a b", "kwargs": kwargs},
        {"name": "config", "kind": "config", "repo": REPO, "kwargs": kwargs},
        {"name": "card", "kind": "card", "repo": REPO},
    ]
    work = tmp_path / "work"
    work.mkdir()
    (work / "jobs.json").write_text(json.dumps(jobs))
    names = ("PATH", "SYSTEMROOT", "TMPDIR", "LD_LIBRARY_PATH")
    environment = {name: os.environ[name] for name in names if name in os.environ} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-I", str(WORKER), "jobs.json", "results.pt"], env=environment | hub.environment(work / "home"),
        cwd=work, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = torch.load(work / "results.pt", weights_only=False)
    results = found["results"]
    assert found["imported"] == [] and not [result for result in results.values() if "error" in result]
    with torch.no_grad():
        expected = model(**{name: torch.tensor(value) for name, value in inputs.items()}).logits
    assert torch.equal(results["model"]["answers"]["logits"], expected) and results["model"]["missing"] == []
    assert results["tokenizer"]["ids"] == tokenizer("a b")["input_ids"]
    assert results["config"]["class"] == "DebertaExtConfig"
    assert 'revision = "v1.0"  # pins weights and code' in results["card"]["text"]


def test_what_is_published_of_a_folder_is_what_the_hub_has(hub, send, folder):
    send()
    listed = {path for path in HfApi(endpoint=hub.endpoint).list_repo_files(REPO) if path != ".gitattributes"}
    assert listed == {*published_files(folder)[0]}


# ------- the command


def test_the_command_gives_its_flags_to_push(monkeypatch, capsys, folder):
    given = {}
    report = PushReport("user/x", "u", "main", None, None, None, (), {}, problems=("a problem",), dry_run=True)
    monkeypatch.setattr("hf_deberta_ext.hub.push", lambda *places, **options: given.update(options) or report)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    flags = (
        f"{folder} user/x --public --revision fast --create_pr --tag v1 --message Hello --include *.txt a.csv --token t "
        "--dry_run --skip_checks"
    )
    assert command.run(parser.parse_args(flags.split())) == 1
    assert given == dict(
        private=False, revision="fast", create_pr=True, tag="v1", commit_message="Hello", include=["*.txt", "a.csv"],
        token="t", dry_run=True, skip_checks=True,
    )  # fmt: skip
    assert capsys.readouterr().out == f"{report}\n"
    command.run(parser.parse_args([str(folder), "user/x", "--private"]))
    assert given["private"] is True and given["include"] == [] and given["dry_run"] is False
    with pytest.raises(SystemExit):
        parser.parse_args([str(folder), "user/x", "--private", "--public"])


@pytest.fixture
def example(monkeypatch):
    """The script's main, with its flags."""
    spec = importlib.util.spec_from_file_location("push_to_hub", ROOT / "examples" / "push_to_hub.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    def run(*flags):
        monkeypatch.setattr(sys, "argv", ["push_to_hub.py", *map(str, flags)])
        return script.main()

    return run


@pytest.mark.parametrize(("extra", "status"), [(["--skip_checks"], 0), ([], 1)])
def test_the_example_runs_without_the_hub(extra, status, example, folder, monkeypatch, capsys):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert example(folder, REPO, "--dry_run", *extra) == status
    shown = capsys.readouterr().out
    assert "4 new; " in shown and "a dry run: nothing was sent" in shown
    assert ("problem: config.json: auto_map lacks AutoConfig" in shown) == (status == 1)


def test_an_error_of_the_example_is_one_line(example, folder, capsys):
    assert example(folder, "no-name", "--dry_run") == 1
    assert capsys.readouterr().err == "push_to_hub: repo_id = 'no-name' must be user/name or organisation/name\n"
