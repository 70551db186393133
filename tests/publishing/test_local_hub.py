# SPDX-License-Identifier: Apache-2.0
"""The Hub of the tests, asked by the real client: storage and refusals; test_push_faults.py tries its faults of uploads."""

import urllib.error
import urllib.request

import pytest
from huggingface_hub import CommitOperationAdd, HfApi, hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from local_hub_repos import blob_id, lfs_pointer

REPO = "user/name"


@pytest.fixture
def api(hub):
    hub.create_repo(REPO)
    return HfApi()


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_text('{"a": 1}')
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    (folder / "sub" / "x.py").write_text("x = 1\n")
    return folder


def contents(folder):
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def add(api, path="a.txt", data=b"a", **kwargs):
    return api.create_commit(REPO, [CommitOperationAdd(path, data)], commit_message=f"Add {path}", **kwargs)


def test_files_are_named_as_git_and_lfs_name_them():
    assert blob_id(b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    assert blob_id(b"hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a"
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert lfs_pointer(b"").decode().splitlines()[1:] == [f"oid sha256:{empty}", "size 0"]


def test_a_folder_comes_back_as_it_was_sent_and_is_not_sent_again(hub, folder, tmp_path):
    api = HfApi()
    assert api.create_repo("name", private=True).repo_id == REPO and hub.repos[REPO].private
    first = api.upload_folder(repo_id=REPO, folder_path=folder, commit_message="All", commit_description="of it")
    repo = hub.repos[REPO]
    made = repo.commits[first.oid]
    assert (made.title, made.description, repo.branches["main"]) == ("All", "of it", first.oid)
    assert repo.files() == {".gitattributes": repo.files()[".gitattributes"], **contents(folder)}
    assert made.lfs == {"model.safetensors"} and [*hub.lfs.values()] == [(folder / "model.safetensors").read_bytes()]
    api.snapshot_download(REPO, local_dir=tmp_path / "back", ignore_patterns=[".gitattributes"])
    assert {name: data for name, data in contents(tmp_path / "back").items() if ".cache" not in name} == contents(folder)
    tree = {entry.path: entry for entry in api.list_repo_tree(REPO, recursive=True)}
    assert {*tree} == {*repo.files(), "sub"} and tree["model.safetensors"].lfs.sha256 in hub.lfs
    hub.requests.clear()
    assert api.upload_folder(repo_id=REPO, folder_path=folder).oid == first.oid
    (folder / "config.json").write_text("{}")
    assert not hub.sent("/commit/") and api.upload_folder(repo_id=REPO, folder_path=folder).oid != first.oid
    assert not hub.sent("PUT") and len(repo.commits) == 3


@pytest.mark.parametrize(
    ("action", "error", "status"),
    [
        (lambda api: api.create_branch(REPO, branch="main"), HfHubHTTPError, 409),
        (lambda api: [api.create_tag(REPO, tag="t") for _ in range(2)], HfHubHTTPError, 409),
        (lambda api: api.create_repo(REPO), HfHubHTTPError, 409),
        (lambda api: api.create_branch(REPO, branch="refs/pr/9"), HfHubHTTPError, 400),
        (lambda api: api.model_info(REPO, revision="v9"), RevisionNotFoundError, 404),
        (lambda api: add(api, revision="v9"), RevisionNotFoundError, 404),
        (lambda api: hf_hub_download(REPO, "none.txt"), EntryNotFoundError, 404),
        (lambda api: api.model_info("user/none"), RepositoryNotFoundError, 404),
    ],
)
def test_names_that_are_taken_not_allowed_or_not_there_are_refused(action, error, status, api):
    with pytest.raises(error) as refused:
        action(api)
    assert refused.value.response.status_code == status


@pytest.mark.parametrize(
    ("token", "reading", "writing", "message"),
    [
        ("hf_read", 200, 403, "you must use a write token"),
        ("hf_stranger", 404, 403, "create_pr=1"),
        (False, 401, 401, "401"),
        ("hf_unknown", 401, 401, "Invalid credentials"),
    ],
)
def test_reading_a_private_repository_and_writing_need_the_right_token(token, reading, writing, message, hub, api):
    hub.create_repo("user/secret", private=True)
    status = 200
    try:
        assert HfApi(token=token).model_info("user/secret").private
    except HfHubHTTPError as error:
        status = error.response.status_code
    with pytest.raises(HfHubHTTPError, match=message) as refused:
        add(HfApi(token=token))
    assert (status, refused.value.response.status_code) == (reading, writing)
    assert "a.txt" not in hub.repos[REPO].files()


@pytest.mark.parametrize(("kind", "statuses"), [("cut", [None, 200]), ("slow", [200])])
def test_a_download_that_is_cut_is_asked_for_again_and_a_slow_one_arrives_whole(kind, statuses, hub, api, monkeypatch):
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    weights = bytes(range(256)) * 40
    hub.commit(REPO, {"model.safetensors": weights})
    hub.fail(f"GET /{REPO}/resolve", kind=kind)
    with open(hf_hub_download(REPO, "model.safetensors"), "rb") as file:
        assert file.read() == weights
    assert [request.status for request in hub.sent(f"GET /{REPO}/resolve")] == statuses


def test_a_wrong_fault_or_an_unknown_address_is_named(hub):
    for fault in ({}, dict(status=500, kind="cut")):
        with pytest.raises(ValueError, match="either a status or a kind"):
            hub.fail("x", **fault)
    with pytest.raises(ValueError, match="no such kind of fault: 'broken'"):
        hub.fail("x", kind="broken")
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"{hub.endpoint}/api/datasets/user/name")
    assert error.value.code == 404 and "the test Hub has no GET" in error.value.headers["X-Error-Message"]
