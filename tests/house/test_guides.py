# SPDX-License-Identifier: Apache-2.0
"""The guides: their commands and code run and print what is shown; they are short, and their links work."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import DOCUMENTS, PAGES, ROOT

API = "examples/guides/api.md"
LONGEST = {page: 150 if page in ("README.md", API) else 120 for page in PAGES}
# "<!-- needs: gliner -->" or "<!-- printed -->" above a fence; README's two commands have markers before and after.
BLOCK = re.compile(r"(?:^<!-- (?P<note>[^\n]+) -->\n+)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?"
# Python blocks share a session; each shell block has its own shell. A line with a zero byte begins the output of a block.
READER = """
import json, subprocess, sys
session = {"__name__": "__main__"}
for number, (language, code) in enumerate(json.loads(sys.argv[1])):
    print(f"\\0{number}", flush=True)
    if language == "python":
        exec(compile(code, f"Python block {number}", "exec"), session)
    else:
        subprocess.run(["bash", "-euo", "pipefail", "-c", code], check=True)
    sys.stdout.flush()
"""


def steps(text):
    """Return [[language, code, [printed, ...]], ...] for blocks that run here, and the packages that others lack."""
    run, missing = [], set()
    printed = []
    for block in BLOCK.finditer(text):
        note, language, code = block["note"] or "", block["language"], block["code"]
        if note == "printed":
            printed.append(code)
        elif language in ("bash", "python"):
            needed = []
            if note.startswith("needs: "):
                needed = re.split(r",\s*", note.removeprefix("needs: "))
            absent = {name for name in needed if not (os.environ.get(name) or importlib.util.find_spec(name))}
            missing |= absent
            # The output of a block that does not run must not be compared with another block.
            printed = []
            if not absent and not note.startswith("not run: "):
                run.append([language, code, printed])
    return run, sorted(missing)


def is_printed(expected, output):
    """Return the first line of `expected` that is not in `output` after the previous lines; decimal numbers may differ."""
    lines = iter(output.splitlines())
    for line in filter(None, map(str.strip, expected.splitlines())):
        pattern = re.escape(" ".join(line.split())).replace(r"\.\.\.", ".*").replace(r"\ ", r"\s+")
        pattern = re.sub(r"(\\-)?\d+\\\.\d+(e(\\-|\\\+)?\d+)?", lambda number: NUMBER, pattern)
        if not any(re.fullmatch(pattern, each.strip()) for each in lines):
            return line
    return None


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash to run the commands")
@pytest.mark.parametrize(
    "guide", [pytest.param(page, marks=pytest.mark.slow(always=True)) if page == "README.md" else page for page in PAGES]
)
def test_a_guide_runs_and_prints_what_it_says(guide, tmp_path):
    run, missing = steps((ROOT / guide).read_text(encoding="utf-8"))
    if os.environ.get("DEBERTA_EXT_GUIDES") == "library":
        # Only run code that needs the package, and commands that make its files; .ci/release does so.
        run = run[: max((number for number, step in enumerate(run, 1) if step[0] == "python"), default=0)]
    if run:
        (tmp_path / "examples").symlink_to(ROOT / "examples")
        programs = tmp_path / ".programs"
        programs.mkdir()
        for name, module in (("python", ""), ("deberta-ext", "-m hf_deberta_ext")):
            (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n', encoding="utf-8")
            (programs / name).chmod(0o755)
        path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        environment |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / ".cache")}
        blocks = json.dumps([step[:2] for step in run])
        streams = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        command = [sys.executable, "-c", READER, blocks]
        process = subprocess.run(command, cwd=tmp_path, env=environment, timeout=900, **streams)
        _, *outputs = re.split(r"^\0\d+\n", process.stdout, flags=re.MULTILINE)
        assert process.returncode == 0, f"{guide}:\n{run[len(outputs) - 1][1]}\n{process.stdout[-3000:]}"
        for (_, code, printed), output in zip(run, outputs, strict=True):
            for expected in printed:
                line = is_printed(expected, output)
                assert line is None, f"{guide}:\n{code}\nprints no line {line!r}:\n{output[-3000:]}"
    if missing:
        pytest.skip(f"blocks that need {', '.join(missing)} were not run")


@pytest.mark.parametrize("guide", LONGEST)
def test_a_guide_is_short_and_all_its_commands_are_fenced(guide):
    """Indented code would not run."""
    text = (ROOT / guide).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST[guide]
    unfenced = BLOCK.sub("", re.sub(r"<!-- (main job|test) -->.*?<!-- /\1 -->", "", text, flags=re.DOTALL))
    assert "```" not in unfenced and not re.search(r"\n\n {4}\S", unfenced)


def test_the_api_page_is_what_the_docstrings_say():
    command = [sys.executable, ROOT / "tests/house/api_page.py"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode("utf-8") == (ROOT / API).read_text(encoding="utf-8"), "python tests/house/api_page.py > " + API


def anchors(text):
    """Return the anchors of a page's headings, as GitHub and the Hub make them."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", [*PAGES, *DOCUMENTS])
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\((?!https?://)([^)\s]+)\)", text):
        target, _, anchor = link.partition("#")
        file = ((ROOT / page).parent / target).resolve() if target else ROOT / page
        assert file.exists(), f"{page}: {link}"
        assert not anchor or anchor in anchors(file.read_text(encoding="utf-8")), f"{page}: {link}"
