# SPDX-License-Identifier: Apache-2.0
"""Pushing to a Hub that fails: what the user reads is what happened, nothing is half done, and pushing again succeeds."""

import functools
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from huggingface_hub.utils import get_session
from local_hub import PullRequest, User
from print_fault_table import (
    AFTER_CASES,
    CASES,
    FAULTS,
    PAGE,
    REPO,
    SHAPE_CASES,
    STAGES,
    SURVIVED,
    TAG,
    make_folder,
    no_waiting,
    on_disk,
    row,
    run_case,
)

from hf_deberta_ext.publishing import PushError, hub_requests, push

FILES = {"README.md", "config.json", "model.safetensors", "tokenizer.json"}
# What each fault's message must say, wherever it struck: before the tag, which has its own advice.
WAYS_OUT = {
    "401": "hf auth login",
    "403": "write access",
    "409": "look with a dry run",
    "413": "max_shard_size",
    "429, Retry-After: 200, for ever": "Push again in 200 s",
    "500, for ever": "push again later",
    "502, a page of HTML, for ever": "push again later",
    "cut, for ever": "Look at the connection and push again",
}
WHAT = {
    "look": "reading user/deberta failed",
    "card": "asking the Hub about the card failed",
    "create": "making the repository user/deberta failed",
    "refs": "reading the branches of user/deberta failed",
    "tree": "reading the files of user/deberta failed",
    "branch": "making the branch fast failed",
    "batch": "uploading failed",
    "preupload": "uploading failed",
    "upload": "uploading model.safetensors failed",
    "commit": "the commit failed",
    "tag": "making the tag v1.0 failed",
}


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "model")


@pytest.fixture
def send(hub, folder):
    return functools.partial(push, folder, REPO, token="hf_write", endpoint=hub.endpoint, skip_checks=True)


def ours(hub) -> list:
    """The commits of pushes on main, newest first."""
    return [commit for commit in hub.repos[REPO].history() if "Upload" in commit.title]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Made when first asked for, so that a single row runs alone."""

    @functools.cache
    def outcome(fault, stage):
        return run_case(fault, stage, tmp_path_factory.mktemp("case"))

    return outcome


@pytest.mark.parametrize(("fault", "stage"), CASES + SHAPE_CASES + AFTER_CASES)
def test_the_server_has_all_files_or_none_the_folder_its_own_and_pushing_again_succeeds(fault, stage, outcomes):
    outcome = outcomes(fault, stage)
    assert (outcome.server.commits, outcome.server.files) in [(0, set()), (1, FILES)]
    assert outcome.same_on_disk and outcome.again_message == ""
    assert outcome.again[1:3] == (1, FILES) and [*outcome.again.tags] == [TAG]


@pytest.mark.parametrize(("fault", "stage"), [case for case in CASES if case[0] in SURVIVED])
def test_a_fault_that_passes_is_survived(fault, stage, outcomes):
    outcome = outcomes(fault, stage)
    assert (outcome.message, outcome.server.commits, [*outcome.server.tags]) == ("", 1, [TAG])
    # The work was done, and the push has seen it.
    waits = {
        "slow": [],
        "cut after the work": [] if stage in ("create", "commit", "tag") else [1],
        "429, Retry-After: 20": [21],
    }
    assert outcome.waits == waits.get(fault, [1])


@pytest.mark.parametrize(("fault", "stage"), [case for case in CASES if case[0] not in SURVIVED])
def test_a_fault_that_stays_is_said_with_what_is_on_the_hub_and_the_way_out(fault, stage, outcomes):
    outcome = outcomes(fault, stage)
    message, server = outcome.message, outcome.server
    assert message.startswith(WHAT[stage]) and "\n" not in message and "FOLDER is as it was" in message
    assert f"{FAULTS[fault].get('status', '')} " in message
    if fault in ("401", "403", "409", "413", "500, for ever"):
        assert FAULTS[fault]["message"].rstrip(".") in message
    if stage == "tag":
        made = re.search("The commit ([0-9a-f]{40}) is made", message)
        assert server.commits == 1 and made and outcome.again.tags == {TAG: made[1]}
        assert "Push again: that makes the tag alone" in message
        return
    exists = stage not in ("look", "card", "create")
    state = "The repository user/deberta was made, and nothing is in it" if exists else "Nothing was changed on the Hub"
    assert state in message and WAYS_OUT[fault] in message and (server.exists, server.commits) == (exists, 0)


@pytest.mark.parametrize(("fault", "stage"), SHAPE_CASES + AFTER_CASES)
def test_an_answer_of_any_form_leads_to_a_push_or_a_message_that_says_what_was_expected_and_made(fault, stage, outcomes):
    """They were a KeyError, TypeError or AttributeError, also at the commit, and nobody said whether it was made."""
    message, server = outcomes(fault, stage).message, outcomes(fault, stage).server
    if message == "":
        assert (server.commits, [*server.tags]) == (1, [TAG])
        return
    assert re.match(r"[\w /.]+ failed: ", message) and "\n" not in message and "FOLDER is as it was" in message
    # Of an upload nobody reads the answer: the commit is refused.
    assert "; expected was " in message or re.search(r"failed: (302|400|404) |does not have it", message)
    state = re.search(
        r"Nothing was changed on the Hub|The repository user/deberta was made|The commit (\w+) is made", message
    )
    assert bool(state[1]) == (server.commits == 1) and ("was made" in state[0]) == (server.exists and not server.commits)


@pytest.mark.parametrize(("fault", "stage"), AFTER_CASES)
def test_what_was_done_is_seen_whatever_the_answer_is(fault, stage, outcomes):
    assert outcomes(fault, stage).message == "" and outcomes(fault, stage).server.commits == 1


def test_a_repository_may_have_the_name_of_a_request(hub, folder):
    hub.users["hf_tree"] = User("tree")
    report = push(folder, "tree/commits", token="hf_tree", endpoint=hub.endpoint, skip_checks=True)
    assert hub.repos["tree/commits"].branches["main"] == report.commit


def test_an_answer_that_is_not_understood_is_shown_beside_what_was_expected(hub, send):
    send()
    hub.fail(f"GET /api/models/{REPO}/refs", status=200, body=b'{"branches":\n"x"}', times=None)
    told = 'reading the branches .* failed: the Hub answered `{"branches": "x"}`; expected was .*targetCommit.* Nothing'
    with no_waiting(), pytest.raises(PushError, match=told):
        send()


@pytest.mark.parametrize("body", [b"null", b"[]", b"{}", b'[{"id": 3}]', b"{"])
def test_where_the_history_cannot_be_read_either_the_commit_is_said_to_be_unknown(body, hub, send):
    hub.fail(STAGES["commit"], status=200, body=b"null", kind="after")
    hub.fail(f"GET /api/models/{REPO}/commits/", status=200, body=body, times=None)
    with no_waiting(), pytest.raises(PushError, match=r"expected was .*Whether the commit was made is not known"):
        send()
    assert len(ours(hub)) == 1


def test_a_row_of_the_table_shows_the_outcome(outcomes):
    assert row(outcomes("413", "upload")).count("|") == 7
    assert "an empty repository | as it was | 1 commit, 4 files, v1.0 |" in row(outcomes("413", "upload"))
    assert "| the push goes through after 21 s | 1 commit, 4 files, v1.0 |" in row(
        outcomes("429, Retry-After: 20", "commit")
    )


@pytest.mark.parametrize("stage", STAGES)
def test_a_rate_limit_is_waited_for_once_and_huggingface_hubs_own_retries_are_not_doubled(stage, hub, send):
    fault = hub.fail(STAGES[stage], status=429, headers={"Retry-After": "200"}, times=None)
    with no_waiting() as waits, pytest.raises(PushError, match="429 Too Many Requests, the Hub asks to wait 200 s"):
        send(tag=TAG)
    assert (waits, fault.hits) == ([201], 2)
    fault.status, fault.headers, fault.hits = 503, {}, 0
    with no_waiting() as waits, pytest.raises(PushError, match="503"):
        send(tag=TAG)
    by_huggingface_hub = stage in ("preupload", "upload")
    assert fault.hits == (6 if by_huggingface_hub else 4)
    assert waits == ([1, 2, 4, 8, 8] if by_huggingface_hub else [1, 2, 4])


def test_every_wait_is_said_and_that_of_the_hubs_own_header_counts_as_well(hub, send, caplog):
    limit = {"RateLimit": '"api";r=0;t=30', "RateLimit-Policy": '"fixed window";"api";q=500;w=300'}
    hub.fail(STAGES["upload"], status=429, headers={"Retry-After": "20"})
    hub.fail(STAGES["commit"], status=502)
    hub.fail(STAGES["commit"], status=429, headers=limit)
    with no_waiting() as waits:
        send()
    messages = [record.getMessage() for record in caplog.records if record.name == hub_requests.__name__]
    assert "asks to wait 20 s" in messages[0] and "502 Bad Gateway" in messages[1] and "again in 1 s" in messages[1]
    assert waits == [21, 1, 31]


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_the_session_is_as_before_whichever_of_two_pushes_ends_first(first_to_end):
    """The hook of the first to end was left over, or that of the other was lost."""
    session = get_session()
    before = (session.timeout, {name: [*hooks] for name, hooks in session.event_hooks.items()})
    pushes = [hub_requests.patient_session(), hub_requests.patient_session()]
    for each in pushes:
        each.__enter__()
    pushes.pop(first_to_end).__exit__(None, None, None)
    assert session.timeout.read == hub_requests.SILENCE_SECONDS
    assert len(session.event_hooks["response"]) == len(before[1]["response"]) + 1
    pushes[0].__exit__(None, None, None)
    assert (session.timeout, session.event_hooks) == before


def test_two_pushes_at_once_both_go_through_and_leave_the_session_as_it_was(hub, folder):
    session = get_session()
    before = (session.timeout, {name: [*hooks] for name, hooks in session.event_hooks.items()})
    hub.fail("PUT /lfs/", kind="slow")
    send = functools.partial(push, folder, token="hf_write", endpoint=hub.endpoint, skip_checks=True)
    with ThreadPoolExecutor() as pool:
        assert len([*pool.map(send, ["user/one", "user/two"])]) == 2
    assert all(FILES <= {*hub.repos[name].files()} for name in ("user/one", "user/two"))
    hub.fail("/commit/", status=403)
    with pytest.raises(PushError):
        send("user/three")
    assert get_session() is session and (session.timeout, session.event_hooks) == before


def test_a_silent_hub_is_named_not_waited_for_for_ever_and_gets_one_commit(hub, send, monkeypatch):
    monkeypatch.setattr(hub_requests, "SILENCE_SECONDS", 0.5)
    silence = hub.before(STAGES["preupload"], lambda: time.sleep(1), times=None)
    with no_waiting(), pytest.raises(PushError, match=r"uploading failed: no answer for 0\.5 s"):
        send()
    hub.faults.remove(silence)
    monkeypatch.setattr(hub_requests, "SILENCE_SECONDS", 1)
    hub.before(STAGES["commit"], lambda: time.sleep(2))
    with no_waiting() as waits:
        send()
    assert waits == [1] and len(ours(hub)) == 1
    # The first request wakes up, and comes too late.
    time.sleep(2)
    assert len(ours(hub)) == 1


def test_a_commit_that_nobody_can_ask_about_is_said_to_be_unknown_and_not_made_twice(hub, send, folder):
    hub.fail(STAGES["commit"], kind="cut_after", times=None)
    look = hub.fail(f"GET /api/models/{REPO}/refs", kind="cut", times=None, skip=1)
    before = on_disk(folder)
    with (
        no_waiting(),
        pytest.raises(PushError, match=r"Whether the commit was made is not known; .* is as it was") as failed,
    ):
        send()
    assert failed.value.commit is None and on_disk(folder) == before
    assert len(ours(hub)) == 1 and look.hits == 4
    hub.faults.clear()
    report = send()
    assert report.commit == ours(hub)[0].oid and len(ours(hub)) == 1
    assert any("nothing differs" in note for note in report.notes)


def test_a_lost_commit_is_found_below_what_was_pushed_since(hub, send):
    made = []

    def somebody():
        made.append(ours(hub)[0].oid)
        hub.commit(REPO, {"notes.txt": b"from somebody else"})

    hub.fail(STAGES["commit"], kind="cut_after")
    hub.before(f"GET /api/models/{REPO}/refs", somebody, skip=1)
    report = send(tag=TAG)
    assert report.commit == made[0] == ours(hub)[0].oid
    assert hub.repos[REPO].tags == {TAG: made[0]} and "notes.txt" in hub.repos[REPO].files()


def test_a_commit_that_was_made_although_the_hub_says_no_is_taken(hub, send, folder):
    """Of two requests the first was served, after the look."""
    send(commit_message="Upload, first")
    (folder / "config.json").write_text('{"model_type": "bert"}')
    data = (folder / "config.json").read_bytes()
    hub.before(STAGES["commit"], lambda: hub.commit(REPO, {"config.json": data}, title="Upload, second"))
    report = send(commit_message="Upload, second")
    assert hub.sent(STAGES["commit"])[-1].status == 412
    assert report.commit == ours(hub)[0].oid and [commit.title for commit in ours(hub)] == [
        "Upload, second",
        "Upload, first",
    ]


def test_what_somebody_else_pushes_meanwhile_is_not_overwritten(hub, send, folder):
    send()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    hub.before(STAGES["commit"], lambda: hub.commit(REPO, {"config.json": b"theirs"}))
    with pytest.raises(PushError, match="somebody else has pushed to user/deberta meanwhile") as failed:
        send()
    assert failed.value.status == 412 and "Nothing was changed on the Hub" in str(failed.value)
    assert hub.repos[REPO].files()["config.json"] == b"theirs" and len(ours(hub)) == 1
    report = send()
    assert {file.path: file.change for file in report.files}["config.json"] == "changed"
    assert json.loads(hub.repos[REPO].files()["config.json"]) == {"model_type": "bert"}


def test_a_lost_pull_request_is_found_and_not_opened_twice_and_one_of_somebody_else_is_not_ours(hub, send, folder):
    send()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    hub.fail(STAGES["commit"], kind="cut_after")
    report = send(create_pr=True)
    repo = hub.repos[REPO]
    assert [*repo.pull_requests] == [1] and report.commit == repo.pull_requests[1].head
    assert report.pull_request == f"{hub.endpoint}/{REPO}/discussions/1"

    def somebody():
        repo.pull_requests[2] = PullRequest(2, "Theirs", "", "stranger", head=repo.branches["main"])

    hub.fail(STAGES["commit"], status=500)
    hub.before(f"GET /api/models/{REPO}/refs", somebody, skip=1)
    with no_waiting():
        report = send(create_pr=True)
    assert report.pull_request.endswith("/discussions/3") and report.commit == repo.pull_requests[3].head


def test_a_file_that_the_hub_would_ignore_is_said_before_the_commit(hub, send):
    answer = [
        {"path": path, "uploadMode": "regular", "shouldIgnore": path == "tokenizer.json", "oid": None} for path in FILES
    ]
    hub.fail(STAGES["preupload"], status=200, body=json.dumps({"files": answer}).encode())
    with pytest.raises(PushError, match=r"the \.gitignore of user/deberta keeps out tokenizer\.json"):
        send()
    assert ours(hub) == []


def test_a_repository_that_somebody_makes_meanwhile_is_used(hub, send):
    hub.before(STAGES["create"], lambda: hub.create_repo(REPO, {"LICENSE": b"theirs"}))
    report = send()
    assert hub.repos[REPO].files()["LICENSE"] == b"theirs" and report.commit == ours(hub)[0].oid


def test_a_repository_that_is_hidden_from_the_token_is_not_written_to(hub, send):
    repo = hub.create_repo(REPO, private=True)
    hub.users["hf_narrow"] = User("user")
    hub.fail(f"GET /api/models/{REPO}", status=404, headers={"X-Error-Code": "RepoNotFound"}, times=None)
    with pytest.raises(PushError, match=r"making the repository user/deberta failed: 409 Conflict.* hidden from this token"):
        send(token="hf_narrow")
    assert len(repo.commits) == 1


def test_offline_mode_is_said(send, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(PushError, match=r"HF_HUB_OFFLINE is set\. Nothing was changed.*Take HF_HUB_OFFLINE out"):
        send()


def test_a_page_in_place_of_json_is_tried_again_and_said(hub, send):
    """A captive portal answers everything with a page, and 200."""
    portal = dict(status=200, headers={"Content-Type": "text/html"}, body=b"<html>Log in</html>")
    hub.fail("POST /api/validate-yaml", **portal, skip=1)
    with no_waiting() as waits:
        send()
        hub.fail("GET /api/models/", **portal, times=None)
        message = "the answer was no JSON, perhaps a page of a proxy.*Look at the connection and push again"
        with pytest.raises(PushError, match=message):
            send()
    assert waits == [1, 1, 2, 4]


def test_a_page_in_answer_to_huggingface_hubs_own_question_about_the_card_is_an_error_of_the_hub(hub, send):
    hub.fail("POST /api/validate-yaml", **PAGE | dict(times=None), skip=1)
    message = r"the commit failed: 502 Bad Gateway.*nothing is in it.*push again later"
    with no_waiting() as waits, pytest.raises(PushError, match=message):
        send()
    hub.faults.clear()
    hub.fail("POST /api/validate-yaml", **PAGE, skip=1)
    with no_waiting() as more:
        send()
    assert (waits, more) == ([1, 2, 4], [1])


# Subclasses of Python's own errors, as those of hf_xet.
XetAuthenticationError = type("XetAuthenticationError", (PermissionError,), {})
XetObjectNotFoundError = type("XetObjectNotFoundError", (FileNotFoundError,), {})


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (XetAuthenticationError("no access"), "no access. .*hf auth login"),
        (XetObjectNotFoundError("no xorb"), "no xorb. .*HF_HUB_DISABLE_XET=1"),
        (RuntimeError("CAS server error"), "CAS server error. .*HF_HUB_DISABLE_XET=1"),
        (ConnectionResetError("reset by peer"), "reset by peer. .*HF_HUB_DISABLE_XET=1"),
        (ValueError("bad shard"), "bad shard. "),
        (PermissionError(13, "Permission denied", "a.bin"), "a.bin cannot be read .Permission denied.* Make it readable"),
        (FileNotFoundError(2, "No such file or directory", "a.bin"), "a.bin cannot be read .No such file"),
    ],
)
def test_what_goes_wrong_over_xet_is_said_with_what_is_on_the_hub(error, said, hub, send, folder, monkeypatch):
    """No server here speaks Xet's protocol: its errors take the place of the upload."""

    def fail(**what):
        raise error

    before = on_disk(folder)
    with monkeypatch.context() as patch, pytest.raises(PushError, match=f"uploading failed: {said}") as failed:
        patch.setattr("huggingface_hub._commit_api._upload_files", fail)
        send()
    assert "The repository user/deberta was made, and nothing is in it" in str(failed.value)
    assert failed.value.__cause__ is error and on_disk(folder) == before and ours(hub) == []
    assert send().commit == ours(hub)[0].oid


def test_a_file_that_goes_while_it_is_sent_is_named(hub, send, folder):
    hub.before(STAGES["preupload"], (folder / "model.safetensors").unlink)
    with pytest.raises(PushError, match=r"uploading failed: .*model\.safetensors cannot be read \(No such file"):
        send()
    assert ours(hub) == []


def test_an_interrupt_passes_through():
    def fail():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub_requests.RequestSteps(REPO, "FOLDER").step("uploading", fail)
