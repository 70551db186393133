# SPDX-License-Identifier: Apache-2.0
"""Errors of `.ci/release` before it builds anything, the metadata, and the install line of the guide."""

import configparser
import os
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml
from scripts import ROOT

import hf_deberta_ext

RELEASED = f"## [{hf_deberta_ext.__version__}] - 2026-01-31"
CHANGELOG = "# Changelog\n\n## [Unreleased]\n{unreleased}\n{released}\n\n### Added\n\n- All.\n"
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg", encoding="utf-8")
SOURCE = dict(line.split(" = ") for line in SETUP["metadata"]["project_urls"].split("\n") if line)["Source"]
INSTALL = (ROOT / "examples" / "guides" / "install.md").read_text(encoding="utf-8")
needs_git = pytest.mark.skipif(shutil.which("git") is None or not (ROOT / ".git").exists(), reason="needs git and a clone")


def git(folder, *words):
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def commit_all(folder):
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "all")


@needs_git
@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({}, None),
        ({"origin": f"{SOURCE}.git"}, None),
        ({"origin": "https://example.org/me/fork"}, "origin is https://example.org/me/fork"),
        ({"released": "## [9.9.9] - 2026-01-31"}, "got '## [9.9.9] - 2026-01-31'"),
        ({"released": RELEASED.partition(" - ")[0]}, "YYYY-MM-DD"),
        ({"released": ""}, "got ''"),
        ({"unreleased": "\n### Added\n\n- More.\n"}, "entries under [Unreleased]"),
        ({"changed": "setup.cfg"}, "commit them first"),
        ({"tag": f"v{hf_deberta_ext.__version__}"}, "there is a tag"),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value or ["ready"]),
)
def test_a_release_needs_its_changelog_a_clean_tree_and_a_new_version(given, refusal, tmp_path):
    for name in (".ci/release", "hf_deberta_ext/_version.py", "setup.cfg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    text = CHANGELOG.format(unreleased=given.get("unreleased", ""), released=given.get("released", RELEASED))
    (tmp_path / "CHANGELOG.md").write_text(text, encoding="utf-8")

    commit_all(tmp_path)
    if "tag" in given:
        git(tmp_path, "tag", given["tag"])
    if "origin" in given:
        git(tmp_path, "remote", "add", "origin", given["origin"])
    if "changed" in given:
        (tmp_path / given["changed"]).write_text("")
    done = subprocess.run(["bash", ".ci/release", "--check"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == (refusal is not None) and (refusal or "") in done.stderr, done.stderr


def test_the_version_and_the_address_are_the_same_everywhere():
    changelog, readme = ((ROOT / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "README.md"))
    released = re.search(r"^## \[(\d.*)\] - (.*)$", changelog, re.MULTILINE)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert released.groups() == (hf_deberta_ext.__version__, str(citation["date-released"]))
    assert citation["version"] == hf_deberta_ext.__version__
    assert {citation["repository-code"], *re.findall(r"https://github.com/hf-[\w-]+/\w+", readme)} == {SOURCE}


def test_the_package_tells_type_checkers_that_it_is_typed():
    assert (ROOT / "hf_deberta_ext" / SETUP["options.package_data"]["hf_deberta_ext"]).name == "py.typed"


@pytest.mark.parametrize("file", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda file: file.name)
def test_workflows_and_issue_forms_are_whole(file):
    """GitHub reads these files; the test checks that they are YAML with the required keys, and that their commands exist."""
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    if file.parent.name == "workflows":
        # YAML parses the key `on` as True.
        assert content["name"] == file.stem and content[True] and content["permissions"] == {"contents": "read"}
        commands = [step.get("run", "") for job in content["jobs"].values() for step in job["steps"]]
        assert all((ROOT / path).is_file() for path in re.findall(r"\.ci/\w+", " ".join(commands)))
    elif file.name != "config.yml":
        assert content["name"] and content["description"]
        assert all(field["attributes"]["label"] and field["id"] for field in content["body"])


@pytest.mark.parametrize("address", [None, "https://example.org/me/repo/blob/v1"])
def test_links_of_the_readme_lead_somewhere_on_the_package_index(address, tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    for name in ("setup.py", "setup.cfg", "README.md", "LICENSE", "hf_deberta_ext/_version.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    environment = os.environ | ({"README_LINKS": address} if address else {})
    command = [sys.executable, "setup.py", "-q", "egg_info"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=120)
    shown = (tmp_path / "hf_deberta_ext.egg-info" / "PKG-INFO").read_text(encoding="utf-8")
    target = "examples/guides/install.md"
    assert f"]({address}/{target})" in shown if address else f"]({target})" in shown
    assert not address or "](examples/" not in shown


@pytest.fixture
def served(tmp_path):
    """Return the address of a repository with this commit, served over HTTP."""
    folder = tmp_path / "served"
    folder.mkdir()
    git(ROOT, "archive", "-o", str(tmp_path / "commit.tar"), "HEAD", ":!examples", ":!tests")
    shutil.unpack_archive(tmp_path / "commit.tar", folder)
    commit_all(folder)
    git(folder, "update-server-info")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/.git"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
@needs_git
@pytest.mark.parametrize("place", ["address", "folder"])
def test_the_package_is_installed_from_a_repository_and_from_a_clone(place, request, tmp_path):
    """Uses the guide's line with the address of this clone; dependencies are already installed."""
    pytest.importorskip("setuptools", minversion="77")
    line = re.search(rf'^pip install "(hf_deberta_ext @ git\+){SOURCE}"$', INSTALL, re.MULTILINE)
    address = f"{line[1]}{request.getfixturevalue('served')}" if place == "address" else str(ROOT)
    copy = tmp_path / "site"
    options = ["--no-deps", "--no-build-isolation", "--target", str(copy)]
    # Another test compiles the kernel.
    environment = os.environ | {"CC": "none", "CXX": "none", "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-m", "pip", "install", "-q", *options, address]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    code = "import hf_deberta_ext as h; h.DebertaExtConfig(); print(h.__file__, h.__version__)"
    environment["PYTHONPATH"] = str(copy)
    command = [sys.executable, "-c", code]
    shown = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert shown.stdout.split() == [str(copy / "hf_deberta_ext" / "__init__.py"), hf_deberta_ext.__version__], shown.stderr
    assert not (copy / "tests").exists() and not (copy / "examples").exists()
