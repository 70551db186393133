# SPDX-License-Identifier: Apache-2.0
"""Golden facts of a repository: record them before a refactoring, and compare afterwards.

    python tests/support/golden.py record FOLDER [--root REPOSITORY]
    python tests/support/golden.py compare FOLDER [--root REPOSITORY]

`record` writes JSON files into FOLDER: the --help texts, outputs and gradients of small models, and files of small runs.
`compare` records again and prints each difference; its exit status is 1 if there is one. --root is the repository to
record, by default the one of this file. The command lines are in golden_commands.txt. Module names are never used, so files
may move. All runs share one process to save imports; they take two minutes.
"""

import argparse
import contextlib
import difflib
import io
import json
import math
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import golden_material as material

ENVIRONMENT = dict(
    OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", TOKENIZERS_PARALLELISM="false", COLUMNS="100",
    NO_COLOR="1", PYTHONWARNINGS="ignore", HF_HOME="hub_cache", MPLCONFIGDIR="matplotlib",
)  # fmt: skip
SECTIONS = ("help", "outputs", "runs")
# Names of measurements that differ between runs.
VOLATILE = re.compile(r"runtime|per_second|seconds|duration|speed|timing|milliseconds|memory|bytes_over|fingerprint|time")
TEXT_FILES = (".md", ".tsv", ".txt", ".jsonl")
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
# Texts that differ between runs -> their replacement. Cards have speeds and durations in tables and sentences.
VARIABLE = {
    r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?)?": "DATE",
    r"\d+:\d\d:\d\d(\.\d+)?": "TIME",
    r"\d[\d.,]*(e[+-]?\d+)? (?=seconds|minutes|hours|ms\b|s\b|samples a second|tokens a second|examples a second)": "# ",
    r"(?<=seconds of all stages \| )[\d.]+": "#",
    r"((?:runtime|per_second|seconds|duration|[Ss]peed|time)[^|\n=]*[|=:] *)\d[\d.,]*(e[+-]?\d+)?": r"\1#",
    r"__version__ = \S+|hf_deberta_ext \d[\w.]*": "VERSION",
    # Seconds, the last column of a comparison.
    r"(?m)(\| (?:one|two) \| .*\| )\d+ \|$": r"\1# |",
    # Sizes of folders with code.
    r"\d[\d.,]* (kB|MB|B|bytes)(?!\w)": r"# \1",
}


def record_help(root: Path) -> dict:
    """Record the --help text of every script and command, 100 columns wide."""
    texts = {}
    for script in sorted([*root.glob("examples/*.py"), *root.glob("examples/benchmarks/*.py")]):
        program = script.relative_to(root / "examples").with_suffix("").as_posix()
        texts[program] = call(root, [program, "--help"])["stdout"]
    texts["deberta-ext"] = listing = call(root, ["deberta-ext", "--help"])["stdout"]
    names = re.findall(r"^    (\w+) ", "\n".join(listing), re.MULTILINE)
    return texts | {f"deberta-ext {name}": call(root, ["deberta-ext", name, "--help"])["stdout"] for name in names}


def record_outputs(root: Path) -> dict:
    """Record the outputs and gradients of each head, family and backend."""
    return dict(material.outputs_and_gradients())


def record_runs(root: Path) -> dict:
    """Record the status, last output and files of each run. Training scripts and benchmarks mostly print times."""
    material.write_files()
    facts = {}
    for line, command in material.commands().items():
        name, _, command = command.partition(": ")
        if name.startswith("card_"):
            material.write_for_card(name)
        facts[line] = call(root, shlex.split(command)) | dict(files=files_of(Path(name)))
        if command.startswith(("run_", "quickstart", "bench")):
            del facts[line]["stdout"]
    return facts


def call(root: Path, words: list[str]) -> dict:
    """Run a program in this process; return its exit status, error line and output."""
    program, *arguments = words
    stdout, stderr = io.StringIO(), io.StringIO()
    script = root / "examples" / f"{program}.py"
    before = sys.argv, sys.path[:]
    sys.argv = [str(script), *arguments]
    status = 0
    print("golden:", shlex.join(words), file=sys.stderr, flush=True)
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        try:
            if program == "deberta-ext":
                runpy.run_module("hf_deberta_ext", run_name="__main__", alter_sys=True)
            else:
                sys.path.insert(0, str(script.parent))
                runpy.run_path(str(script), run_name="__main__")
        except SystemExit as left:
            status = left.code if isinstance(left.code, int) else int(left.code is not None)
            if isinstance(left.code, str):
                print(left.code, file=stderr)
        except BaseException:
            status = "traceback"
            traceback.print_exc()
        finally:
            sys.argv, sys.path[:] = before
    print(stderr.getvalue()[-3000:] if status else "", file=sys.stderr, flush=True)
    # The dry run of a push lists each code file.
    printed = [line.rstrip() for line in normalised(stdout.getvalue(), root).splitlines() if not line.endswith(".py")]
    return dict(status=status, stdout=printed)


def files_of(folder: Path) -> dict:
    """Return the contents of text, JSON and weight files below a folder; of all other files, only the names."""
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return {path: content_of(folder / path) for path in paths}


def content_of(file: Path):
    if any(part.startswith("checkpoint-") for part in file.parts) or file.name == "tokenizer.json":
        return "a file"
    if file.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(file, "pt") as weights:
            slices = {name: weights.get_slice(name) for name in sorted(weights.keys())}
            return {name: [entry.get_dtype(), entry.get_shape()] for name, entry in slices.items()}
    if file.suffix == ".csv":
        # Only the header of a benchmark's table.
        return file.read_text(encoding="utf-8").splitlines()[:1]
    if file.suffix == ".json":
        return stable(json.loads(file.read_text(encoding="utf-8")))
    return normalised(file.read_text(encoding="utf-8")).splitlines() if file.suffix in TEXT_FILES else "a file"


def stable(value, name: str = ""):
    """Return the JSON value without entries that differ between runs."""
    if VOLATILE.search(name) and not isinstance(value, (dict, list)):
        return "~"
    if isinstance(value, dict):
        return {key: "~" if key in ("timings", "hardware") else stable(entry, key) for key, entry in value.items()}
    if isinstance(value, list):
        # peft writes a set, which has no order.
        return sorted(value) if name == "target_modules" else [stable(entry, name) for entry in value]
    return normalised(value) if isinstance(value, str) else value


def normalised(text: str, root: Path | None = None) -> str:
    for folder, name in ((Path.cwd(), "WORK"), (root, "ROOT"), (Path(tempfile.gettempdir()), "TEMPORARY")):
        text = text.replace(str(folder), name) if folder else text
    for pattern, replacement in VARIABLE.items():
        text = re.sub(pattern, replacement, text)
    return text


def leaves(value, place: str = ""):
    """Yield the path and value of each number, text or list of texts."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from leaves(entry, f"{place} > {key}")
    elif isinstance(value, list) and not all(isinstance(entry, str) for entry in value):
        for number, entry in enumerate(value):
            yield from leaves(entry, f"{place}[{number}]")
    else:
        yield place.removeprefix(" > "), value


def differences(before, after):
    """Yield the path and description of each difference between two facts."""
    before, after = dict(leaves(before)), dict(leaves(after))
    for place in {**before, **after}:
        old, new = before.get(place), after.get(place)
        if isinstance(old, list) and isinstance(new, list):
            if len(old) != len(new) or not all(map(same_value, old, new)):
                yield place, "\n    ".join(["", *list(difflib.unified_diff(old, new, lineterm="", n=0))[2:]])
        elif not same_value(old, new):
            yield place, f"{json.dumps(old)[:200]} -> {json.dumps(new)[:200]}"


def same_value(before, after) -> bool:
    """Return True if the values are equal up to rounding of numbers, and of fractions in texts."""
    if all(isinstance(value, (int, float)) for value in (before, after)):
        return math.isclose(before, after, rel_tol=1e-4, abs_tol=1e-6)
    if before == after or not (isinstance(before, str) and isinstance(after, str)):
        return before == after
    numbers = zip(NUMBER.findall(before), NUMBER.findall(after), strict=False)
    return NUMBER.sub("#", before) == NUMBER.sub("#", after) and all(
        a == b or (re.search("[.e]", a) and math.isclose(float(a), float(b), rel_tol=2e-3, abs_tol=1e-6)) for a, b in numbers
    )


def compare(before: Path, after: Path) -> int:
    """Print each difference once, with all entries that have it; return 1 if there are any."""
    count = 0
    for section in SECTIONS:
        old, new = (json.loads((folder / f"{section}.json").read_text(encoding="utf-8")) for folder in (before, after))
        entries = {}
        for key in {**old, **new}:
            for place, text in differences(old.get(key), new.get(key)):
                entries.setdefault(f"{place}: {text}".removeprefix(": "), []).append(key[:120])
        print(f"\n## {section}: {len(entries)} differences")
        for difference, keys in entries.items():
            print("", *keys[:3], *([f"... {len(keys)} in all"] if keys[3:] else []), f"    {difference}", sep="\n")
        count += len(entries)
    print(f"\n{count} differences")
    return int(count > 0)


def record(folder: Path, root: Path) -> int:
    """Record all facts in a separate process in an empty temporary folder; return its exit status. FOLDER/log.txt has the
    details.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="golden_") as work, open(folder / "log.txt", "w", encoding="utf-8") as log:
        environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(root)}
        command = [sys.executable, Path(__file__).resolve(), "worker", folder.resolve(), "--root", root]
        return subprocess.run(command, cwd=work, env=environment, stdout=log, stderr=log).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("action", choices=["record", "compare", "worker"])
    parser.add_argument("folder", type=Path, help="folder of the recorded facts")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2], help="repository to record")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    if arguments.action == "worker":
        for section in SECTIONS:
            facts = globals()[f"record_{section}"](root)
            text = json.dumps(facts, indent=1, ensure_ascii=False)
            (arguments.folder / f"{section}.json").write_text(text + "\n", encoding="utf-8")
        return 0
    if arguments.action == "record":
        return record(arguments.folder, root)
    with tempfile.TemporaryDirectory(prefix="golden_new_") as folder:
        if record(Path(folder), root):
            print("recording failed:", Path(folder, "log.txt").read_text(encoding="utf-8")[-5000:])
            return 1
        return compare(arguments.folder, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
