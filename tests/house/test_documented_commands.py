# SPDX-License-Identifier: Apache-2.0
"""Every command line and every import in the documentation: programs accept the flags, and imports succeed."""

import ast
import importlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from scripts import DOCUMENTS, EXAMPLES, PAGES, ROOT, flags_of
from transformers import TrainingArguments

bash = shutil.which("bash")
SCRIPTS = [file.relative_to(ROOT).as_posix() for file in EXAMPLES.values()]
PROGRAMS = re.compile(r"^\s*(for .*; do )?(python|torchrun|deberta-ext)\b|^\s*[A-Z][A-Z0-9_]*=", re.MULTILINE)
# No program is run: the programs of the documentation are shell functions that record their arguments.
RECORDER = """
record() { printf '%s\\0' "$@" >> "$LOG"; printf '\\1\\0' >> "$LOG"; }
python() { record python "$@"; }
torchrun() { record torchrun "$@"; }
deberta-ext() { record deberta-ext "$@"; }
"""


def text_of(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(text)) or "" if document.endswith(".py") else text


def blocks(text):
    """Return indented blocks and lines in backquotes that contain commands or their preparation."""
    indented = re.findall(r"(?:^ {4}.*\n?)+", text, re.MULTILINE)
    fenced = re.findall(r"^```(?:bash|sh|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    # A command name without arguments is not a command line.
    quoted = re.findall(r"`((?:python examples/|deberta-ext \w+ |python -m hf_deberta_ext )[^`]+)`", text)
    return [block for block in (*indented, *fenced, *quoted) if PROGRAMS.search(block)]


def commands(document, folder):
    """Return the words of the commands after shell expansion, including variables and loops."""
    log = folder / "log"
    log.touch()
    script = RECORDER + "\n".join(blocks(text_of(document)))
    environment = {"PATH": "", "LOG": str(log), "HOME": str(folder)}
    subprocess.run([bash, "--norc", "-c", script], cwd=folder, env=environment, capture_output=True, timeout=60)
    lines = log.read_bytes().decode("utf-8").split("\1\0")
    return [line.split("\0")[:-1] for line in lines if line]


def program_of(words):
    """Return ("run_mlm", its flags) for a command; None for other programs."""
    if words[0] == "deberta-ext":
        return "deberta-ext", words[1:]
    if words[1:3] == ["-m", "hf_deberta_ext"]:
        return "deberta-ext", words[3:]
    for place, word in enumerate(words):
        if word.endswith(".py") and Path(word).parent.name in ("examples", "benchmarks"):
            return Path(word).stem, words[place + 1 :]
    return None


@pytest.mark.skipif(bash is None, reason="needs bash to read the commands")
@pytest.mark.parametrize("document", [*PAGES, *DOCUMENTS, *SCRIPTS])
def test_every_command_is_taken_by_its_program(document, monkeypatch, tmp_path, capsys):
    documented = [program_of(words) for words in commands(document, tmp_path)]
    documented = [command for command in documented if command and "..." not in command[1] and "--help" not in command[1]]
    # The folder to which the previous commands have written their files.
    monkeypatch.chdir(tmp_path)
    for program, argv in documented:
        assert program == "deberta-ext" or program in EXAMPLES, program
        if "--fsdp" in argv and TrainingArguments.__dataclass_fields__["fsdp"].metadata.get("nargs") != "?":
            # transformers 5.4 requires a value after it; the guide names the version that does not.
            continue
        try:
            flags_of(program, argv, monkeypatch)
        except SystemExit as refused:
            pytest.fail(f"{document}: {program} {' '.join(argv)}: {refused} {capsys.readouterr().err[-500:]}")
    least = {
        "README.md": 3,
        "examples/README.md": 15,
        "examples/evidence.md": 15,
        "examples/run_glue.py": 3,
        "examples/run_rtd.py": 3,
    }
    assert len(documented) >= least.get(document, 0)


@pytest.mark.parametrize("document", [*PAGES, *DOCUMENTS])
def test_code_of_the_documentation_imports_what_there_is(document):
    for code in re.findall(r"^```python\n(.*?)^```", text_of(document), re.MULTILINE | re.DOTALL):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("hf_deberta_ext"):
                module = importlib.import_module(node.module)
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{document}: {node.module} has no {alias.name}"
