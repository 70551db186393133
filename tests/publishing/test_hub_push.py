# SPDX-License-Identifier: Apache-2.0
"""`hf_deberta_ext.publishing.push` over HTTP: what is sent, in which commit, what is said before and after."""

import argparse
import functools
import importlib.util
import json
import os
import re

import pytest
import torch
from hub_models import job, make_tokenizer, read_back
from huggingface_hub import ModelCard, ModelCardData
from print_fault_table import make_folder, on_disk
from rounding import assert_equal_outputs
from tiny_models import FILES, TINY, save_tokenizer
from without_package import answers

from hf_deberta_ext import DebertaExtConfig, DebertaExtForMaskedLM, DebertaExtForPreTraining
from hf_deberta_ext.commands import push as command
from hf_deberta_ext.model.publishing import AUTOMATIC, new_card
from hf_deberta_ext.publishing import FileChange, PushError, PushReport, push, write_model_card

REPO = "user/deberta"
NAMES = {"README.md", "config.json", "model.safetensors", "tokenizer.json"}
# The module, whose name in the package is that of its function.
MODULE = importlib.import_module("hf_deberta_ext.publishing.push")


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "model")


@pytest.fixture
def send(hub, folder):
    return functools.partial(push, folder, REPO, token="hf_write", endpoint=hub.endpoint, skip_checks=True)


def changes(report):
    return {file.path: file.change for file in report.files}


def writes(hub):
    return [request for request in hub.requests if request.method not in ("GET", "HEAD")]


def test_a_report_is_a_table_with_sizes_and_sums():
    report = PushReport(
        "user/x", "https://hub/user/x", "main", "c0ffee", "v1", None,
        files=(
            FileChange("a.json", 10, "unchanged"), FileChange("old.bin", 2000, "deleted"),
            FileChange("model.safetensors", 1_500_000, "new"), FileChange("config.json", 812, "changed"),
            FileChange("heads.py", 700, "new"), FileChange("encoder.py", 800, "new"), FileChange("x.py", 9, "unchanged"),
        ),
        left_out={"checkpoint-4/": "a checkpoint", "notes.md": "add --include notes.md"},
        kept_on_hub=("notes.txt",), notes=("a note",),
    )  # fmt: skip
    assert str(report).splitlines() == [
        "user/x, branch main: 3 new, 1 changed, 1 deleted, 2 unchanged; 1.5 MB sent",
        "  new          1.5 kB  2 files of code, *.py",
        "  new          1.5 MB  model.safetensors",
        "  changed       812 B  config.json",
        "  deleted      2.0 kB  old.bin",
        "  unchanged      10 B  a.json",
        "  unchanged       9 B  x.py",
        "checkpoint-4/ not published: a checkpoint",
        "notes.md not published: add --include notes.md",
        "only on the Hub, and kept: notes.txt",
        "note: a note",
        "https://hub/user/x: commit c0ffee, tag v1",
    ]


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


def test_pushing_again_sends_only_what_changed_and_keeps_what_is_only_on_the_hub(hub, send, folder):
    first = send()
    hub.requests.clear()
    report = send()
    assert writes(hub) == [] and report.commit == first.commit
    assert changes(report) == dict.fromkeys(NAMES, "unchanged")
    assert "nothing differs from what is on the Hub, so there is no new commit" in report.notes
    hub.commit(REPO, {"notes.txt": b"x"})
    # Of the same sizes: one in git, one in LFS.
    (folder / "tokenizer.json").write_text("[]")
    (folder / "model.safetensors").write_bytes(bytes(reversed((folder / "model.safetensors").read_bytes())))
    report = send()
    expected = dict.fromkeys(NAMES, "unchanged") | {"tokenizer.json": "changed", "model.safetensors": "changed"}
    assert changes(report) == expected and len(hub.sent("PUT /lfs/")) == 1 and not hub.sent("validate-yaml")
    assert hub.repos[REPO].files()["tokenizer.json"] == b"[]"
    assert report.kept_on_hub == ("notes.txt",) and "notes.txt" in hub.repos[REPO].files()


@pytest.mark.parametrize(
    ("there", "gone"),
    [
        (["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"], ...),
        (["pytorch_model.bin"], ...),
        (["pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json"], ...),
        (["adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"], ...),
        (["model.fp16.safetensors", "tf_model.h5", "discriminator/model.safetensors"], []),
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


def test_files_replace_each_other_in_their_own_folder_alone_and_graphs_with_their_own_data(hub, send, folder):
    """Other graphs are models of their own; a push of new weights says that they may be of older ones."""
    gone = {"onnx/model.onnx_data", "generator/pytorch_model.bin", "generator/adapter_config.json"}
    stays = {"onnx/model_int8.onnx", "onnx/model_int8.onnx.data", "onnx/model.txt", "discriminator/pytorch_model.bin"}
    hub.create_repo(REPO, dict.fromkeys(gone | stays, b"old"))
    for name in ("onnx/model.onnx", "generator/model.safetensors"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"new")
    report = send()
    assert {path for path, change in changes(report).items() if change == "deleted"} == gone
    assert {*report.kept_on_hub} == stays
    assert "perhaps of an older model, and not replaced: onnx/model_int8.onnx" in report.notes
    assert not any("older model" in note for note in send().notes)


def test_files_that_are_none_of_a_model_stay_here_unless_they_are_asked_for(hub, send, folder):
    (folder / "checkpoint-2").mkdir()
    for name in ("training_args.bin", "checkpoint-2/model.safetensors", "notes.txt", ".gitattributes"):
        (folder / name).write_bytes(b"x")
    report = send(include=["*.txt"])
    assert {*hub.repos[REPO].files()} == NAMES | {".gitattributes", "notes.txt"}
    assert {*report.left_out} == {"training_args.bin", "checkpoint-2/", ".gitattributes"}
    assert report.left_out[".gitattributes"].startswith("the Hub keeps its own")
    assert b"lfs" in hub.repos[REPO].files()[".gitattributes"]


@pytest.mark.parametrize(
    ("message", "description", "title", "text"),
    [
        (" \n", None, "Upload a model with hf_deberta_ext", ""),
        ("One\n\nwhy\n\nand how\n", None, "One", "why\n\nand how"),
        ("\n One\nwhy", "more", "One", "why\n\nmore"),
    ],
)
def test_the_first_line_of_a_message_is_the_title(message, description, title, text, hub, send):
    """A lost answer is looked for by the title, which git takes from the first line."""
    hub.fail("/commit/", kind="cut_after")
    send(commit_message=message, commit_description=description)
    made = hub.repos[REPO].history()[0]
    assert made.title.startswith(title) and made.description == text and len(hub.repos[REPO].history()) == 2


def test_without_a_tag_the_report_says_that_the_branch_moves(send):
    note = "no tag: the card loads the moving branch fast; --tag NAME pins it"
    assert note in send(revision="fast", dry_run=True).notes and note in send(revision="fast").notes
    assert not any("no tag" in note for note in send(tag="v1").notes)
    assert not any("no tag" in note for note in send(create_pr=True).notes)


@pytest.mark.parametrize("private", [True, False])
def test_a_new_repository_is_private_if_asked_and_one_that_is_there_keeps_who_may_see_it(private, hub, send):
    send(private=not private)
    assert hub.repos[REPO].private is not private
    hub.requests.clear()
    flag = "--private" if private else "--public"
    with pytest.raises(ValueError, match=f"{REPO} is there already and {'public' if private else 'private'}.*{flag} out"):
        send(private=private)
    send(private=not private)
    assert writes(hub) == [] and hub.repos[REPO].private is not private


def test_a_branch_that_is_not_there_is_made_from_main_even_if_nothing_else_is_to_do(hub, send, folder):
    first = send(tag="v1")
    assert send(tag="v1", revision="same").commit == first.commit
    assert hub.repos[REPO].branches == {"main": first.commit, "same": first.commit}
    hub.commit(REPO, {"notes.txt": b"x"})
    (folder / "config.json").write_text('{"model_type": "bert"}')
    report = send(revision="fast")
    repo = hub.repos[REPO]
    assert report.url == f"{hub.endpoint}/{REPO}/tree/fast" and report.commit == repo.branches["fast"]
    assert "notes.txt" in repo.files("fast") and b'"bert"' in repo.files("fast")["config.json"]
    assert first.commit in [commit.oid for commit in repo.history()] and b"deberta-ext" in repo.files()["config.json"]


def test_a_pull_request_leaves_main_as_it_is(hub, send, folder):
    first = send()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    report = send(create_pr=True, token="hf_stranger")
    repo = hub.repos[REPO]
    assert repo.branches["main"] == first.commit and report.commit == repo.pull_requests[1].head
    assert b'"bert"' in repo.files("refs/pr/1")["config.json"]
    assert report.pull_request == f"{hub.endpoint}/{REPO}/discussions/1" and report.pull_request in str(report)


def test_a_tag_names_the_commit_and_is_neither_moved_nor_a_branch(hub, send, folder):
    report = send(tag="v1.0")
    assert hub.repos[REPO].tags == {"v1.0": report.commit} and report.tag == "v1.0"
    hub.requests.clear()
    assert send(tag="v1.0").commit == report.commit
    (folder / "config.json").write_text('{"model_type": "bert"}')
    message = r"user/deberta has a tag v1\.0 already, at the commit \w{12}.*choose another --tag"
    with pytest.raises(ValueError, match=message):
        send(tag="v1.0")
    with pytest.raises(ValueError, match=r"v1\.0 is a tag of user/deberta, and a push goes to a branch"):
        send(revision="v1.0")
    assert writes(hub) == []


@pytest.mark.parametrize("kind", ["409", "lost"])
def test_a_tag_that_somebody_makes_meanwhile_is_said_with_its_commit(kind, hub, send):
    def somebody():
        repo = hub.repos[REPO]
        repo.tags["v1.0"] = repo.history()[-1].oid

    hub.before(f"POST /api/models/{REPO}/tag/", somebody)
    if kind == "lost":
        hub.fail(f"POST /api/models/{REPO}/tag/", status=500)
    message = r"somebody else has made it meanwhile, at the commit \w{12}\. The commit \w+ is made.*"
    with pytest.raises(PushError, match=message) as failed:
        send(tag="v1.0")
    assert "Choose another --tag" in str(failed.value) and "makes the tag alone." not in str(failed.value)
    assert failed.value.commit == hub.repos[REPO].branches["main"] and failed.value.status == 409


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
def test_a_dry_run_needs_no_hub_but_a_token_that_the_hub_knows(offline, hub, send, folder, monkeypatch):
    with pytest.raises(PushError, match="401 Unauthorized, Invalid credentials"):
        send(dry_run=True, token="hf_wrong")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    monkeypatch.setattr("hf_deberta_ext.publishing.hub_requests.sleep", lambda seconds: None)
    # Nothing listens there.
    report = push(folder, REPO, dry_run=True, endpoint="http://127.0.0.1:9", skip_checks=True)
    assert changes(report) == dict.fromkeys(NAMES, "new") and "the Hub was not reached" in " ".join(report.notes)


def test_the_problems_of_what_would_be_published_are_listed_by_a_dry_run_and_refuse_a_push(hub, send, folder, monkeypatch):
    problems, calls = ["config.json: one thing", "README.md: another"], []
    monkeypatch.setattr(MODULE, "check_folder", lambda *arguments, **more: calls.append((*arguments, more)) or problems)
    report = send(skip_checks=False, dry_run=True)
    ((source, files, token, more),) = calls
    assert (source, {*files}, token, more) == (folder, NAMES, "hf_write", {"needs_card": True})
    assert report.problems == tuple(problems) and not any("not checked" in note for note in report.notes)
    assert "problem: config.json: one thing" in str(report) and "would be refused" in str(report)
    with pytest.raises(ValueError) as refused:
        send(skip_checks=False)
    first, *lines = str(refused.value).splitlines()
    assert first == f"{folder} cannot be published as it is, and nothing was sent:"
    assert lines == [f"- {problem}" for problem in problems] and writes(hub) == []


@pytest.mark.parametrize("text", ["hf_write", "hf" + "_" + "qXbRtYvLwKmZpNcJdHfGsAeUiOxTyBnMkQ"])
def test_tokens_are_refused_even_if_the_checks_are_skipped(text, hub, send, folder):
    (folder / "tokenizer.json").write_text(json.dumps({"a": text}))
    with pytest.raises(ValueError, match=r"nothing was sent:\n- tokenizer.json holds a token of the Hub") as refused:
        send()
    assert text not in str(refused.value) and writes(hub) == []
    assert len(send(dry_run=True).problems) == 1
    (folder / "tokenizer.json").write_text("{}")
    report = send()
    assert report.problems == () and any("was not checked" in note for note in report.notes)


def test_a_card_replaces_one_on_the_hub_or_is_refused_before_anything_is_sent(hub, send, folder):
    hub.create_repo(REPO, {"README.md": WRITTEN.encode()})
    assert changes(send())["README.md"] == "changed" and "# A model" in card_on(hub)
    hub.requests.clear()
    (folder / "README.md").write_text("---\nlanguage:\n  a: b\n---\n\n# A model\n")
    with pytest.raises(ValueError, match=r'README\.md: the Hub says .*"language" must be a string') as refused:
        send()
    assert "nothing was sent" in str(refused.value)
    assert [request.path for request in writes(hub)] == ["/api/validate-yaml"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (dict(repo_id="deberta"), "must be user/name"),
        (dict(repo_id="a/b/c"), "a/b/c"),
        (dict(repo_id="user/--x"), "user/--x"),
        (dict(source="nowhere"), "nowhere is not a folder"),
        (dict(source=3), "a folder or a model with save_pretrained, got int"),
        (dict(tokenizer=object()), "save the tokenizer in it"),
        (dict(revision="refs/pr/1"), "must be the name of a branch"),
        (dict(revision="0" * 40), "must be the name of a branch"),
        (dict(create_pr=True, tag="v1"), "does not go with create_pr"),
        (dict(create_pr=True, revision="fast"), "does not go with create_pr"),
        (dict(tag="a tag"), "'a tag' must be of letters"),
        (dict(include=["*.nothing"]), "fits no file"),
    ],
)
def test_arguments_that_are_wrong_or_do_not_go_together_are_refused(changed, message, hub, folder):
    arguments = dict(source=folder, repo_id=REPO, endpoint=hub.endpoint, token="hf_write") | changed
    with pytest.raises(TypeError if changed.get("source") == 3 else ValueError, match=message):
        push(**arguments)
    assert writes(hub) == []


@pytest.fixture(scope="module")
def model():
    return DebertaExtForMaskedLM(DebertaExtConfig(**TINY)).eval()


@pytest.fixture
def send_model(hub, model):
    return functools.partial(push, model, REPO, token="hf_write", endpoint=hub.endpoint, skip_checks=True)


def card_on(hub):
    return hub.repos[REPO].files()["README.md"].decode()


WRITTEN = "---\nlicense: mit\n---\n\n# Mine\n\nTrained on tales.\n"


def test_a_card_that_somebody_has_written_stays_when_a_model_is_pushed(hub, send_model):
    hub.create_repo(REPO, {"README.md": WRITTEN.encode()})
    for dry_run in (True, False):
        # The checks need no card where the Hub has one.
        report = send_model(tag="v1", dry_run=dry_run, skip_checks=False)
        assert card_on(hub) == WRITTEN and "README.md" in report.kept_on_hub and report.problems == ()
        assert any("somebody has written the card on the Hub, and it stays" in note for note in report.notes)
        assert ("model.safetensors" in hub.repos[REPO].files()) != dry_run


def test_a_card_that_nobody_has_written_is_replaced_and_keeps_its_metadata(hub, send_model, model):
    automatic = ModelCard.from_template(ModelCardData(library_name="transformers"), model_description=AUTOMATIC)
    first = new_card("DebertaExtForMaskedLM", REPO, revision="main", parameters=9, has_tokenizer=True, metadata={})
    for there in (str(automatic), first):
        licensed = ModelCard(there)
        licensed.data.license = "mit"
        hub.create_repo(REPO, {"README.md": str(licensed).encode()})
        send_model()
        card = ModelCard(card_on(hub))
        assert "## Sizes" in card.text and "More Information Needed" not in card.text
        assert card.data.license == "mit" and "hf_deberta_ext" in card.data.tags
        del hub.repos[REPO]
    send_model()
    send_model(tag="v1")
    assert 'revision = "v1"  # pins' in card_on(hub)
    hub.requests.clear()
    assert send_model(tag="v1").files and writes(hub) == []
    hub.commit(REPO, {"README.md": card_on(hub).encode() + b"\nTrained on tales.\n"})
    send_model(tag="v2")
    assert "Trained on tales." in card_on(hub)


@pytest.mark.parametrize("tag", ["v1", pytest.param(None, marks=pytest.mark.slow)])
def test_the_card_of_a_part_loads_it_from_the_hub_where_this_package_is_not(tag, hub, tmp_path):
    """Its code runs as it stands in the published card."""
    joint = DebertaExtForPreTraining(DebertaExtConfig(**TINY))
    folder = tmp_path / "joint"
    parts = {"discriminator": joint.export_discriminator(), "generator": joint.export_generator()}
    for name, model in {"": joint, **parts}.items():
        model.save_pretrained(folder / name)
        save_tokenizer(folder / name)
    write_model_card(folder)
    before = on_disk(folder)
    push(folder, REPO, tag=tag, token="hf_write", endpoint=hub.endpoint, skip_checks=True)
    assert on_disk(folder) == before
    jobs = []
    for part in parts:
        card = hub.repos[REPO].files()[f"{part}/README.md"].decode()
        code = re.search(r"```python\n(.*?)\n```", card, re.DOTALL)[1]
        assert f'snapshot_download("{REPO}", revision="{tag or "main"}", allow_patterns="{part}/*")' in code
        jobs.append({"name": part, "kind": "code", "code": code, "show": ["repo", "revision"]})
    for part, result in read_back(hub, tmp_path / "worker", jobs).items():
        assert result.get("repo", "").endswith(f"/{part}") and result["revision"] == "None", result


def test_a_model_comes_back_from_the_hub_where_this_package_is_not(hub, model, tmp_path, monkeypatch):
    """Pushed with its tokenizer, checked, tagged; a process that knows only transformers reads it from the server."""
    tokenizer = make_tokenizer(tmp_path / "tokenizer")
    monkeypatch.chdir(tmp_path)
    report = push(model, REPO, tokenizer=tokenizer, tag="v1.0", token="hf_write", endpoint=hub.endpoint)
    assert os.listdir(tmp_path) == ["tokenizer"] and report.problems == ()
    commit = hub.repos[REPO].history()[0]
    assert {name: data for name, data in commit.files.items() if name.endswith(".py")} == FILES
    assert len(json.loads(commit.files["config.json"])["auto_map"]) == 8

    common = {"source": REPO, "kwargs": {"revision": "v1.0"}}
    jobs = [
        job("model", REPO, revision="v1.0"),
        {"name": "tokenizer", "kind": "tokenizer", "text": "a b"} | common,
        {"name": "config", "kind": "config"} | common,
        {"name": "card", "kind": "card", "source": REPO},
    ]
    results = read_back(hub, tmp_path / "work", jobs)
    assert not [result for result in results.values() if "error" in result]
    expected = answers(model, {name: torch.tensor(value) for name, value in jobs[0]["inputs"].items()})
    assert_equal_outputs(results["model"]["answers"], expected)
    assert results["model"]["missing"] == []
    assert results["tokenizer"]["ids"] == tokenizer("a b")["input_ids"]
    assert results["config"]["config"]["model_type"] == "deberta-ext"
    assert 'revision = "v1.0"  # pins weights and code' in results["card"]["text"]


def test_the_command_gives_its_flags_to_push(monkeypatch, capsys, folder):
    given = {}
    report = PushReport("user/x", "u", "main", None, None, None, (), {}, problems=("a problem",), dry_run=True)
    monkeypatch.setattr("hf_deberta_ext.publishing.push", lambda *places, **options: given.update(options) or report)
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
