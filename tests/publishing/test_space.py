# SPDX-License-Identifier: Apache-2.0
"""`push_space` and `deberta-ext push --space` over HTTP: the Space's files, their pins, and with what care they are sent."""

import functools
import re
import shutil
from pathlib import Path

import pytest
from huggingface_hub import RepoCard
from print_fault_table import make_folder, no_waiting

from hf_deberta_ext.commands import main
from hf_deberta_ext.publishing import PushError, push_space, space

ROOT = Path(__file__).resolve().parents[2]
MODEL, SPACE, COMMIT = "user/deberta", "user/demo", "c0ffee" * 6 + "c0ff"
# The Hub of the tests keeps it by this name.
ON_HUB = f"spaces/{SPACE}"


@pytest.fixture
def send(hub):
    return functools.partial(push_space, SPACE, MODEL, COMMIT, token="hf_write", endpoint=hub.endpoint)


def writes(hub):
    return [request for request in hub.requests if request.method not in ("GET", "HEAD")]


def test_a_space_is_one_commit_of_app_requirements_card_and_code(hub, send):
    report = send()
    commit = hub.repos[ON_HUB].history()[0]
    files = hub.repos[ON_HUB].files()
    assert report.commit == commit.oid and len(hub.repos[ON_HUB].history()) == 2 and MODEL in commit.title
    assert report.url == f"{hub.endpoint}/spaces/{SPACE}" and {*hub.repos} == {ON_HUB}
    assert f'build_page("{MODEL}", "{COMMIT}")' in files["app.py"].decode()
    card = RepoCard(files["README.md"].decode()).data
    assert (card.sdk, card.app_file, card.models) == ("gradio", "app.py", [MODEL])
    assert f"gradio=={card.sdk_version}\n" in (ROOT / "constraints.txt").read_text()
    requirements = files["requirements.txt"].decode().splitlines()
    assert all(re.fullmatch(r"\w+==[\d.]+", line) for line in requirements)
    assert {line.partition("==")[0] for line in requirements} >= {"torch", "transformers"}
    code = {path for path in files if path.startswith("hf_deberta_ext/")}
    assert {"hf_deberta_ext/demo/page.py", "hf_deberta_ext/model/attention.py"} <= code
    assert all(files[path] == (ROOT / path).read_bytes() for path in code)
    rooms = {Path(path).parts[1] for path in code}
    assert rooms == {"__init__.py", "_version.py", "tokenization.py", "native", "model", "analysis", "demo"}
    assert all(path.endswith(".py") for path in code)


def test_pushing_again_sends_what_changed_and_keeps_what_somebody_wrote_in_the_card(hub, send):
    send()
    hub.requests.clear()
    assert {file.change for file in send().files} == {"unchanged"} and writes(hub) == []
    card = hub.repos[ON_HUB].files()["README.md"].decode()
    edited = card.replace("title: deberta", "title: My own").replace(space.GRADIO_VERSION, "6.0.0") + "\nMine.\n"
    assert edited != card
    hub.commit(ON_HUB, {"README.md": edited.encode(), "notes.txt": b"x"})
    report = push_space(SPACE, MODEL, "a" * 40, token="hf_write", endpoint=hub.endpoint)
    assert {file.path for file in report.files if file.change != "unchanged"} == {"app.py", "README.md"}
    files = hub.repos[ON_HUB].files()
    new = RepoCard(files["README.md"].decode())
    assert (new.data.title, new.data.sdk_version) == ("My own", space.GRADIO_VERSION) and new.text.endswith("Mine.\n")
    assert "notes.txt" in files and "a" * 40 in files["app.py"].decode()


def test_a_dry_run_sends_nothing(hub, send):
    report = send(dry_run=True)
    assert writes(hub) == [] and not hub.repos and {file.change for file in report.files} == {"new"}
    assert "files of code, *.py" in str(report) and "a dry run: nothing was sent" in str(report)


def test_a_space_with_another_app_stays(hub, send):
    hub.create_repo(ON_HUB, {"app.py": b"print(1)\n"})
    with pytest.raises(
        ValueError, match=r"the Space user/demo has an app\.py of another kind, which stays: choose another --space"
    ):
        send()
    assert writes(hub) == []


def test_a_secret_in_the_files_is_refused(hub, send, monkeypatch, tmp_path):
    package = tmp_path / "hf_deberta_ext"
    shutil.copytree(space.PACKAGE / "demo", package / "demo")
    (package / "demo" / "mine.py").write_text('KEY = "' + "hf" + '_zKvNwqRtYbXcMdLpSgJhFaQeUiOyTrWxBn"\n')
    monkeypatch.setattr(space, "PACKAGE", package)
    with pytest.raises(
        ValueError, match=r"the Space user/demo cannot be published as it is.*\n- hf_deberta_ext/demo/mine\.py:1 has "
    ):
        send()
    assert writes(hub) == []
    assert len(send(dry_run=True).problems) == 1


@pytest.mark.parametrize("name", ["demo", "a b/demo", "user/demo/x"])
def test_an_id_that_is_none_is_refused(name, hub):
    with pytest.raises(ValueError):
        push_space(name, MODEL, COMMIT, token="hf_write", endpoint=hub.endpoint)
    assert hub.requests == []


@pytest.mark.parametrize(
    ("match", "fault", "message"),
    [
        (
            "POST /api/repos/create",
            dict(status=403),
            "making the repository user/demo failed: 403.*Nothing was changed in the Space",
        ),
        (
            f"POST /api/{ON_HUB}/commit/",
            dict(status=500, times=None),
            "the commit failed: 500.*The repository user/demo was made",
        ),
        (f"GET /api/{ON_HUB}", dict(status=200, body=b'{"id": 3}', times=None), "reading user/demo failed"),
    ],
)
def test_a_fault_of_the_hub_says_the_state_of_the_space(match, fault, message, hub, send):
    hub.fail(match, **fault)
    with no_waiting(), pytest.raises(PushError, match=message):
        send()
    hub.faults.clear()
    assert send().commit == hub.repos[ON_HUB].history()[0].oid


def test_a_commit_whose_answer_is_lost_is_made_once(hub, send):
    hub.fail("/commit/", kind="cut_after")
    with no_waiting():
        report = send()
    assert len(hub.repos[ON_HUB].history()) == 2 and report.commit == hub.repos[ON_HUB].history()[0].oid


def test_the_command_pushes_the_model_and_then_the_space_that_shows_its_commit(hub, tmp_path, capsys):
    folder = str(make_folder(tmp_path / "model"))
    arguments = ["push", folder, MODEL, "--space", SPACE, "--skip_checks"]
    assert main([*arguments, "--dry_run"]) == 0 and not hub.repos
    assert "Space user/demo, branch main" in capsys.readouterr().out
    assert main(arguments) == 0
    commit = hub.repos[MODEL].history()[0].oid
    assert f'"{commit}"' in hub.repos[ON_HUB].files()["app.py"].decode()
    printed = capsys.readouterr().out
    assert printed.index("user/deberta, branch main") < printed.index("Space user/demo, branch main")
    hub.requests.clear()
    assert main([*arguments, "--dry_run"]) == 0
    report = capsys.readouterr().out
    assert writes(hub) == [] and not re.search("^  (new|changed) ", report, re.MULTILINE)


def test_what_is_wrong_with_the_space_shows_before_the_model_is_pushed(hub, tmp_path, capsys):
    folder = str(make_folder(tmp_path / "model"))
    assert main(["push", folder, MODEL, "--space", SPACE, "--create_pr"]) == 2
    assert "--space shows a commit of a branch" in capsys.readouterr().err
    hub.create_repo(ON_HUB, {"app.py": b"print(1)\n"})
    assert main(["push", folder, MODEL, "--space", SPACE, "--skip_checks"]) == 2
    assert "choose another --space" in capsys.readouterr().err
    assert writes(hub) == [] and MODEL not in hub.repos
