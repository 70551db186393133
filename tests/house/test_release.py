# SPDX-License-Identifier: Apache-2.0
"""Errors of `.ci/release` before it builds anything, and the version."""

import configparser
import re
import shutil
import subprocess

import pytest
import yaml
from scripts import ROOT

import hf_deberta_ext

RELEASED = f"## [{hf_deberta_ext.__version__}] - 2026-01-31"
CHANGELOG = "# Changelog\n\n## [Unreleased]\n{unreleased}\n{released}\n\n### Added\n\n- All.\n"
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg", encoding="utf-8")
SOURCE = dict(line.split(" = ") for line in SETUP["metadata"]["project_urls"].split("\n") if line)["Source"]
needs_git = pytest.mark.skipif(shutil.which("git") is None or not (ROOT / ".git").exists(), reason="needs git and a clone")


def git(folder, *words):
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


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

    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "all")
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
