# SPDX-License-Identifier: Apache-2.0
"""Allowed imports, read from the sources: saved models import only their own files, layers only lower layers."""

import ast
import importlib
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import TINY
from transformers.dynamic_module_utils import get_imports, get_relative_imports

from hf_deberta_ext import DebertaExtConfig

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "hf_deberta_ext"
MODEL = {file.stem: file for file in sorted((PACKAGE / "model").glob("*.py")) if file.name != "__init__.py"}
# In reading order: each file imports all files before it, because transformers <= 5.9 copies the direct imports of the
# file that it loads from a local folder, and no others.
FILES = ["configuration_deberta_ext", "attention_deberta_ext", "modeling_deberta_ext", "replaced_tokens_deberta_ext"]
MODULES = sorted(PACKAGE.rglob("*.py"))
# Without the copies of the model's code in the folder of shipped weights.
EXAMPLES = sorted(file for folder in ("", "benchmarks", "models") for file in (ROOT / "examples" / folder).glob("*.py"))

# Requirements of transformers itself.
REQUIRED = {"torch", "transformers", "huggingface_hub", "safetensors"}
# These may be imported inside a try statement, where transformers does not require them.
OPTIONAL = {"hf_deberta_ext", "triton"}
# Rooms that a room may import, besides itself and _version. All may import model/, which imports none (kernels/ and the
# mixins of checkpoints/ add themselves to it), checkpoints/, heads.py and files.py.
# "" is hf_deberta_ext/__init__.py, "tokenization" the file of that name.
ALLOWED = {
    "__main__": {"commands"},
    "analysis": {"tokenization"},
    # The command line is on top, as the examples are: it imports public names of all rooms.
    "commands": {
        "", "analysis", "conversion", "data", "demo", "distillation", "finetuning", "native", "pretraining", "publishing",
        "tokenization", "training",
    },
    "checkpoints": set(),
    "conversion": {"export", "int8", "tokenization"},
    "data": set(),
    "files": set(),
    "demo": {"analysis", "tokenization"},
    "distillation": {"analysis", "data", "finetuning", "pretraining", "training"},
    "export": set(),
    "finetuning": {"analysis", "data", "publishing", "sift", "tokenization", "training"},
    "heads": set(),
    "int8": set(),
    "kernels": {"native"},
    "native": {"kernels"},
    "pretraining": {"analysis", "data", "publishing", "tokenization", "training"},
    "publishing": {"analysis"},
    "replaced_attention": {"kernels"},
    "serving": {""},
    "sift": {"training"},
    "tokenization": set(),
    "training": {"publishing"},
}  # fmt: skip
HEAVY = {
    "accelerate", "captum", "datasets", "evaluate", "gradio", "matplotlib", "onnx", "onnxruntime", "peft",
    "sentence_transformers", "sentencepiece", "sklearn", "triton",
}  # fmt: skip


def part_of(file: Path) -> str:
    """Return the room of a file: "export" for hf_deberta_ext/export.py, "" for __init__.py."""
    return file.relative_to(PACKAGE).with_suffix("").parts[0].replace("__init__", "")


def imports(file: Path) -> list[tuple[str, str | None]]:
    """Return (absolute module, name or None) of every import in the file, including imports inside functions."""
    package = ("hf_deberta_ext", *file.relative_to(PACKAGE).parent.parts) if file.is_relative_to(PACKAGE) else ()
    matches = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            matches += [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            matches += [(module, alias.name) for alias in node.names]
    return matches


def parts_imported(file: Path) -> set[str]:
    """Return the rooms of the package that a file imports; "" for public names of hf_deberta_ext itself."""
    parts = set()
    for module, name in imports(file):
        top, *rest = module.split(".")
        if top == "hf_deberta_ext":
            is_part = name is not None and ((PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file())
            parts.add(rest[0] if rest else name if is_part else "")
    return parts


def siblings(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 1}


def tracked_files() -> list[Path]:
    """Return every file of the repository that git does not ignore; skip the test outside a repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"not a git repository: {error}")
    return [file for file in (ROOT / name for name in sorted({*listed.split("\0")} - {""})) if file.is_file()]


@pytest.mark.parametrize("name", MODEL)
def test_model_files_import_what_transformers_requires_and_siblings(name):
    allowed = REQUIRED | sys.stdlib_module_names
    for node in ast.walk(ast.parse(MODEL[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            tops = {alias.name.split(".")[0] for alias in node.names}
            assert tops <= allowed | OPTIONAL, f"line {node.lineno}"
        elif isinstance(node, ast.ImportFrom) and node.level:
            # transformers drops "from . import x", and looks for other relative forms in the wrong place.
            assert node.level == 1 and node.module in MODEL, f"line {node.lineno}"
            assert "*" not in {alias.name for alias in node.names}, f"line {node.lineno}"
        elif isinstance(node, ast.ImportFrom):
            assert node.module.split(".")[0] in allowed | OPTIONAL, f"line {node.lineno}"
    # Packages that the Hub requires of its users: all imports outside try statements.
    assert {*get_imports(MODEL[name])} <= allowed


@pytest.mark.parametrize("name", MODEL)
def test_the_scanner_of_transformers_finds_the_imports_that_python_finds(name):
    """The scanner is a regular expression, which takes a line of a docstring for an import and misses some real imports."""
    assert {*get_relative_imports(MODEL[name])} == siblings(MODEL[name])


def test_four_files_of_at_most_2800_lines_travel_and_each_imports_all_that_it_needs():
    assert sorted(MODEL) == sorted(FILES)
    for place, name in enumerate(FILES):
        assert siblings(MODEL[name]) == {*FILES[:place]}
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in MODEL.values()) <= 2800


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_parts_of_the_package_import_only_the_parts_below_them(file):
    part, imported = part_of(file), parts_imported(file) - {"_version"}
    assert "commands" not in imported or part in ("commands", "__main__")
    if file == PACKAGE / "checkpoints" / "loading.py":
        # push_to_hub, when it is called.
        imported -= {"publishing"}
    if part in ("", "model", "_version"):
        assert part == "" or imported <= {part}
    else:
        assert part in ALLOWED, f"{part} is new: add it to ALLOWED with the rooms that it may import"
        assert imported <= ALLOWED[part] | {part, "checkpoints", "files", "heads", "model"}


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_examples_import_public_names_of_the_package(file):
    for module, name in imports(file):
        top, *rest = module.split(".")
        if top != "hf_deberta_ext":
            continue
        path = [*rest, *([name] if name else [])]
        # Names of the kernels compile and tune what users do not call.
        assert path[:1] not in (["model"], ["kernels"]) or file.name.startswith("gpu_"), f"{module} {name}"
        assert not any(part.startswith("_") for part in path), f"{module} {name}"
        exported = importlib.import_module(module)
        if name is not None and not (Path(exported.__file__).parent / f"{name}.py").is_file():
            assert name in exported.__all__, f"{name} is not in __all__ of {module}"


def test_importing_the_package_and_its_help_warn_of_nothing_and_bring_no_package_that_one_command_needs():
    """Only packages that transformers also imports for its own models."""
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import pickle, tokenizers
import transformers.models.bert.modeling_bert
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForMultipleChoice, DebertaV2Config, TokenizersBackend
before = set(sys.modules)
import hf_deberta_ext
config = pickle.loads({pickle.dumps(DebertaExtConfig(**TINY))!r})
print(type(AutoModel.from_config(config)).__module__)
from hf_deberta_ext import *
import hf_deberta_ext.commands
hf_deberta_ext.commands.main(["--help"])
print(*sorted({{name.split(".")[0] for name in set(sys.modules) - before}}))
"""
    # transformers 5.4 calls torch.jit.script, which torch 2.13 warns about.
    filters = ("-W", "error::DeprecationWarning", "-W", "ignore:`torch.jit.script` is deprecated")
    command = [sys.executable, "-I", *filters, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    module, *_, packages = done.stdout.rstrip().split("\n")
    assert module == "hf_deberta_ext.model.modeling_deberta_ext" and "convert" in done.stdout
    assert "hf_deberta_ext" in packages.split() and not HEAVY & {*packages.split()}


def test_a_preparation_imports_no_trainer_and_nothing_of_publishing():
    code = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "examples")!r}]
import prepare_corpus
from hf_deberta_ext.pretraining import preparation, run_preparation
run_preparation.parse_flags((run_preparation.PreparationArguments,), ["--output_dir", "x"], description="")
heavy = ("datasets", "transformers.training_args", "hf_deberta_ext.publishing")
print(*sorted(name for name in sys.modules if name.startswith(heavy)))
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "\n"), done.stdout + done.stderr


def test_tests_import_helpers_of_support_and_no_other_test():
    tests = sorted((ROOT / "tests").rglob("*.py"))
    test_modules = {file.stem for file in tests if file.parent.name != "support"}
    for file in tests:
        assert test_modules.isdisjoint(module for module, _ in imports(file)), file


def test_every_python_file_names_its_licence_first_and_none_is_called_utils():
    files = [*MODULES, *EXAMPLES, *sorted((ROOT / "tests").rglob("*.py"))]
    first_lines = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8").partition("\n")[0] for file in files}
    assert [name for name, line in first_lines.items() if line != "# SPDX-License-Identifier: Apache-2.0"] == []
    assert [str(file) for file in files if "utils" in file.relative_to(ROOT).with_suffix("").parts] == []


def test_no_file_names_a_folder_of_the_machine_it_was_written_on():
    folders = "|".join(("tmp", "work", "root", "home"))
    # Except at the end of an address or of a relative path.
    pattern = re.compile(r"(?<![\w.~/)}\]])" + "/" + f"(?:{folders})" + r"(?![\w-])")
    matches = []
    for file in tracked_files():
        data = file.read_bytes()
        if b"\0" in data:
            continue
        for number, line in enumerate(data.decode("utf-8", errors="replace").splitlines(), start=1):
            if pattern.search(line):
                matches.append(f"{file.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert matches == []
