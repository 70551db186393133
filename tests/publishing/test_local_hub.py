# SPDX-License-Identifier: Apache-2.0
"""The Hub of the tests, asked by the real client: what it stores, refuses, and gets wrong on demand."""

import re
import types
import urllib.error
import urllib.request

import pytest
from huggingface_hub import CommitOperationAdd, HfApi, ModelCard, hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from local_hub_repos import blob_id, lfs_pointer, metadata_problem

REPO = "user/name"


@pytest.fixture
def api(hub):
    hub.create_repo(REPO)
    return HfApi()


@pytest.fixture
def impatient(monkeypatch):
    """The client waits for nothing between its tries; the seconds that it would have waited."""
    waited = []
    monkeypatch.setattr("huggingface_hub.utils._http.time", types.SimpleNamespace(sleep=waited.append))
    return waited


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


def status_of(error):
    return error.value.response.status_code


# ------- by hand


def test_files_are_named_as_git_and_lfs_name_them():
    assert blob_id(b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    assert blob_id(b"hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a"
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert lfs_pointer(b"").decode().splitlines()[1:] == [f"oid sha256:{empty}", "size 0"]


@pytest.mark.parametrize(
    ("card", "word"),
    [("# None\n", None), ("---\nlicense: mit\n---\n", None), ("---\na: [\n---\n", "YAML"), ("---\n- a\n---\n", "mapping")],
)
def test_metadata_of_a_card_must_be_a_mapping(card, word):
    problem = metadata_problem(card.encode())
    assert problem is None if word is None else word in problem


# ------- repositories and files


def test_a_folder_comes_back_as_it_was_sent(hub, folder, tmp_path):
    api = HfApi()
    assert api.create_repo("name", private=True).repo_id == REPO and hub.repos[REPO].private
    commit = api.upload_folder(repo_id=REPO, folder_path=folder, commit_message="All", commit_description="of it")
    repo = hub.repos[REPO]
    made = repo.commits[commit.oid]
    assert (made.title, made.description, made.author) == ("All", "of it", "user") and repo.branches["main"] == commit.oid
    assert repo.files() == {".gitattributes": repo.files()[".gitattributes"], **contents(folder)}
    assert made.lfs == {"model.safetensors"} and [*hub.lfs.values()] == [(folder / "model.safetensors").read_bytes()]
    back = api.snapshot_download(REPO, local_dir=tmp_path / "back", ignore_patterns=[".gitattributes"])
    assert {name: data for name, data in contents(tmp_path / "back").items() if ".cache" not in name} == contents(folder)
    assert str(tmp_path / "back") == back


def test_what_is_there_already_is_not_sent_again(hub, api, folder):
    first = api.upload_folder(repo_id=REPO, folder_path=folder)
    hub.requests.clear()
    assert api.upload_folder(repo_id=REPO, folder_path=folder).oid == first.oid
    assert not hub.sent("PUT") and not hub.sent("/commit/")
    (folder / "config.json").write_text("{}")
    api.upload_folder(repo_id=REPO, folder_path=folder)
    assert not hub.sent("PUT") and len(hub.repos[REPO].commits) == 3


def test_info_tree_paths_and_history_agree(hub, api, folder):
    api.upload_folder(repo_id=REPO, folder_path=folder)
    add(api, "later.txt", b"later")
    info = api.model_info(REPO, files_metadata=True)
    files = hub.repos[REPO].files()
    assert info.sha == hub.repos[REPO].branches["main"] and not info.private
    assert {sibling.rfilename: sibling.size for sibling in info.siblings} == {
        name: len(data) for name, data in files.items()
    }
    tree = {entry.path: entry for entry in api.list_repo_tree(REPO, recursive=True, expand=True)}
    assert {*tree} == {*files, "sub"} and [entry.path for entry in api.list_repo_tree(REPO, "sub")] == ["sub/x.py"]
    assert {entry.path for entry in api.list_repo_tree(REPO)} == {*files, "sub"} - {"sub/x.py"}
    assert tree["later.txt"].last_commit.title == "Add later.txt" and tree["later.txt"].blob_id == blob_id(b"later")
    weights = tree["model.safetensors"]
    assert weights.lfs.size == weights.size == 10240 and weights.lfs.sha256 in hub.lfs
    assert [entry.path for entry in api.get_paths_info(REPO, ["config.json", "not.json"])] == ["config.json"]
    titles = [commit.title for commit in api.list_repo_commits(REPO)]
    assert titles == ["Add later.txt", "Upload folder using huggingface_hub", "initial commit"]


# ------- revisions


def test_branches_tags_and_commits_are_revisions(hub, api):
    first = add(api, data=b"1").oid
    api.create_tag(REPO, tag="v1")
    api.create_branch(REPO, branch="topic/one", revision="v1")
    second = add(api, data=b"2").oid
    add(api, data=b"3", revision="topic/one")
    for revision, data in {"v1": b"1", first: b"1", first[:7]: b"1", "main": b"2", second: b"2", "topic/one": b"3"}.items():
        with open(hf_hub_download(REPO, "a.txt", revision=revision), "rb") as file:
            assert file.read() == data, revision
    refs = api.list_repo_refs(REPO)
    assert {ref.name: ref.target_commit for ref in refs.tags} == {"v1": first}
    assert {ref.name for ref in refs.branches} == {"main", "topic/one"}


def test_names_that_are_taken_or_not_allowed_are_refused(hub, api):
    api.create_branch(REPO, branch="b")
    api.create_tag(REPO, tag="t")
    for make, status in [
        (lambda: api.create_branch(REPO, branch="b"), 409),
        (lambda: api.create_tag(REPO, tag="t"), 409),
        (lambda: api.create_repo(REPO), 409),
        (lambda: api.create_branch(REPO, branch="refs/pr/9"), 400),
    ]:
        with pytest.raises(HfHubHTTPError) as error:
            make()
        assert status_of(error) == status
    api.create_branch(REPO, branch="b", exist_ok=True)
    assert api.create_repo(REPO, exist_ok=True).repo_id == REPO


def test_what_is_not_there_is_named(hub, api):
    with pytest.raises(RevisionNotFoundError):
        api.model_info(REPO, revision="v9")
    with pytest.raises(RevisionNotFoundError):
        add(api, revision="v9")
    with pytest.raises(EntryNotFoundError):
        hf_hub_download(REPO, "none.txt")
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("user/none")
    with pytest.raises(KeyError, match="v9"):
        hub.repos[REPO].files("v9")


def test_a_pull_request_leaves_the_branch_as_it_was(hub, api):
    before = hub.repos[REPO].branches["main"]
    commit = add(api, create_pr=True)
    assert (commit.pr_num, commit.pr_revision) == (1, "refs/pr/1") and hub.repos[REPO].branches["main"] == before
    add(api, "b.txt", b"b", revision="refs/pr/1")
    assert {*hub.repos[REPO].files("refs/pr/1")} == {".gitattributes", "a.txt", "b.txt"}
    with open(hf_hub_download(REPO, "b.txt", revision="refs/pr/1"), "rb") as file:
        assert file.read() == b"b"
    requests = api.list_repo_refs(REPO, include_pull_requests=True).pull_requests
    assert [request.ref for request in requests] == ["refs/pr/1"]


def test_a_commit_upon_another_than_the_last_is_refused(hub, api):
    first = add(api).oid
    hub.before("/commit/", lambda: hub.commit(REPO, {"b.txt": b"b"}, title="Somebody else's"))
    with pytest.raises(HfHubHTTPError, match="A commit has happened since") as error:
        add(api, "c.txt", parent_commit=first)
    assert status_of(error) == 412 and {*hub.repos[REPO].files()} == {".gitattributes", "a.txt", "b.txt"}


def test_a_card_with_broken_metadata_is_refused_before_and_with_the_commit(hub, api):
    with pytest.raises(ValueError, match="bad YAML"):
        add(api, "README.md", b"---\na: [\n---\n")
    assert not hub.sent("/commit/")
    add(api, "README.md", b"---\nlicense: mit\ntags: [a]\n---\n# A model\n")
    assert api.model_info(REPO).tags == ["a"] and ModelCard.load(REPO).data.license == "mit"


# ------- who may do what


def test_reading_and_writing_need_the_right_token(hub, api):
    hub.create_repo("user/secret", {"a.txt": b"a"}, private=True)
    reader, stranger, nobody, invalid = (HfApi(token=token) for token in ("hf_read", "hf_stranger", False, "hf_unknown"))
    assert reader.model_info("user/secret").private and api.whoami()["auth"]["accessToken"]["role"] == "write"
    for reading, status in {stranger: 404, nobody: 401}.items():
        with pytest.raises(RepositoryNotFoundError) as error:
            reading.model_info("user/secret")
        assert status_of(error) == status
    for writing, status, words in [
        (reader, 403, "you must use a write token"),
        (stranger, 403, "create_pr=1"),
        (nobody, 401, "401"),
        (invalid, 401, "Invalid credentials"),
    ]:
        with pytest.raises(HfHubHTTPError, match=words) as error:
            add(writing)
        assert status_of(error) == status
    with pytest.raises(HfHubHTTPError, match="rights to create a model"):
        stranger.create_repo("user/new")
    assert api.create_repo("org/new").repo_id == "org/new" and add(stranger, create_pr=True).pr_num == 1
    assert {*hub.repos} == {REPO, "user/secret", "org/new"} and "a.txt" not in hub.repos[REPO].files()


# ------- faults


def test_a_fault_has_a_number_of_times_and_then_all_is_well(hub, api, folder, impatient):
    fault = hub.fail("PUT /lfs/", status=500, times=2)
    api.upload_folder(repo_id=REPO, folder_path=folder)
    assert [request.status for request in hub.sent("PUT")] == [500, 500, 200] and fault.hits == 2
    assert len(impatient) == 2 and "model.safetensors" in hub.repos[REPO].files()


def test_a_fault_may_come_later_and_have_headers_a_body_and_a_message(hub, api, folder, impatient):
    hub.fail(re.compile(r"PUT /lfs/\w{64}$"), status=429, headers={"Retry-After": "7"}, skip=1)
    for weights in (b"first", b"second"):
        (folder / "model.safetensors").write_bytes(weights)
        api.upload_folder(repo_id=REPO, folder_path=folder)
    # huggingface_hub before 2.0 waits as it always does.
    assert impatient in ([8.0], [1]) and [request.status for request in hub.sent("PUT")] == [200, 429, 200]
    hub.fail("/commit/", status=413, message="Too large", body=b"no JSON", times=None)
    for _ in range(3):
        with pytest.raises(HfHubHTTPError, match="413"):
            add(api)
    assert len(hub.repos[REPO].commits) == 3


def test_a_connection_that_is_cut_leaves_nothing(hub, api, folder, impatient):
    hub.fail("PUT /lfs/", kind="cut")
    hub.fail("/commit/", kind="cut")
    with pytest.raises(Exception, match=r"(?i)disconnect|reset|broken|closed|errno"):
        api.upload_folder(repo_id=REPO, folder_path=folder)
    assert [request.status for request in hub.sent("PUT")] == [None, 200]
    assert len(hub.lfs) == 1 and len(hub.repos[REPO].commits) == 1
    # Again, without what is there.
    api.upload_folder(repo_id=REPO, folder_path=folder)
    assert len(hub.sent("PUT")) == 2 and len(hub.repos[REPO].commits) == 2


def test_an_answer_that_is_cut_is_asked_for_again(hub, api, folder, monkeypatch):
    api.upload_folder(repo_id=REPO, folder_path=folder)
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    hub.fail(f"GET /{REPO}/resolve", kind="cut")
    with open(hf_hub_download(REPO, "model.safetensors"), "rb") as file:
        assert file.read() == (folder / "model.safetensors").read_bytes()
    assert hub.sent(f"GET /{REPO}/resolve")[0].status is None


def test_a_commit_whose_answer_is_lost_is_made(hub, api):
    hub.fail("/commit/", kind="cut_after")
    with pytest.raises(Exception, match=r"(?i)disconnect|reset|broken|closed|errno"):
        add(api)
    assert hub.repos[REPO].files()["a.txt"] == b"a" and hub.sent("/commit/")[0].status is None


def test_slow_bodies_and_answers_arrive_whole(hub, api, folder):
    hub.fail("PUT /lfs/", kind="slow")
    hub.fail(f"GET /{REPO}/resolve", kind="slow")
    api.upload_folder(repo_id=REPO, folder_path=folder)
    with open(hf_hub_download(REPO, "model.safetensors"), "rb") as file:
        assert file.read() == (folder / "model.safetensors").read_bytes()
    assert [fault.hits for fault in hub.faults] == [1, 1]


def test_a_fault_is_a_status_or_a_kind_that_exists(hub):
    with pytest.raises(ValueError, match="either a status or a kind"):
        hub.fail("x")
    with pytest.raises(ValueError, match="either a status or a kind"):
        hub.fail("x", status=500, kind="cut")
    with pytest.raises(ValueError, match="no such kind of fault: 'broken'"):
        hub.fail("x", kind="broken")


def test_an_address_that_the_test_hub_does_not_know_is_named(hub):
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"{hub.endpoint}/api/spaces/user/name")
    assert error.value.code == 404 and "the test Hub has no GET" in error.value.headers["X-Error-Message"]


def test_small_repositories_can_be_written_without_http(hub):
    repo = hub.create_repo("user/made", {"a.txt": b"a", "model.safetensors": b"weights"}, private=True)
    oid = hub.commit("user/made", {"b.txt": b"b"}, deleted=["a.txt"], title="By hand")
    assert {*repo.files()} == {".gitattributes", "model.safetensors", "b.txt"} and repo.find(oid).lfs == {
        "model.safetensors"
    }
    assert [commit.title for commit in repo.history()] == ["By hand", "A commit", "initial commit"] and not hub.requests
