# SPDX-License-Identifier: Apache-2.0
"""Runs transformers' own model tests against our classes, and prints counts and every failure by name.

    python tests/outside/run_transformers_mixins.py                  # the tests of the installed version of transformers
    python tests/outside/run_transformers_mixins.py --archive transformers-5.23.0.tar.gz --json outcomes.json -- -k V3

The tests lie in the source distribution of exactly that version, which pip downloads. They are unpacked into a temporary
folder, where mixin_tests.py of this folder joins them; nothing of them comes into this repository. Needs `parameterized`.
Exit status 0 if every test passes, is skipped, or fails for a reason in EXPLAINED. About four minutes on two cores.
"""

import argparse
import collections
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Modules that the tests import and that the source distribution lacks.
STAND_INS = {
    "tests/exporters/test_export.py": "class ExportTesterMixin:\n    pass\n",
    "tests/generation/test_utils.py": "class GenerationTesterMixin:\n    pass\n",
    "tests/utils/test_configuration_utils.py": "config_common_kwargs = {}\n",
}
TIED = "the decoder is the word embedding table: no released checkpoint has another, and the configuration refuses it"
FROZEN = (
    "transformers 5.4 asks for a gradient of every parameter, also of the absolute position table, which this head never "
    "reads and which is frozen for that reason; newer versions leave frozen parameters out"
)
NOTHING_FITS = "a file of which no tensor belongs to the model is refused here: it would be a model of random weights"
# Why a test fails and may: by its name, and a part of what it says.
EXPLAINED = {
    ("test_load_save_without_tied_weights", "tie_word_embeddings = False must be True"): TIED,
    ("test_resize_embeddings_untied", "tie_word_embeddings = False must be True"): TIED,
    ("test_resize_embeddings_untied_no_reinit_on_post_init", "tie_word_embeddings = False must be True"): TIED,
    ("test_model_weights_reload_no_missing_tied_weights", "are these the weights of another model?"): NOTHING_FITS,
    ("test_training_gradient_checkpointing", "embeddings.position_embeddings.weight"): FROZEN,
    ("test_training_gradient_checkpointing_use_reentrant_false", "embeddings.position_embeddings.weight"): FROZEN,
    ("test_training_gradient_checkpointing_use_reentrant_true", "embeddings.position_embeddings.weight"): FROZEN,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--archive", type=Path, help="the source distribution, where it is at hand")
    parser.add_argument("--json", type=Path, help="write the outcome of every test to this file")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, behind --")
    arguments = parser.parse_args(argv)
    version = importlib.metadata.version("transformers")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = unpack(arguments.archive or download(version, folder), folder)
        outcomes = run(source, arguments.pytest)
    if arguments.json:
        arguments.json.write_text(json.dumps(outcomes, indent=1) + "\n", encoding="utf-8")
    return report(outcomes, version)


def download(version: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
    subprocess.run([*command, "-d", str(folder), f"transformers=={version}"], check=True)
    return next(folder.glob("transformers-*.tar.gz"))


def unpack(archive: Path, folder: Path) -> Path:
    """The unpacked distribution, with the stand-ins and our tests in it."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    source = next(path for path in folder.iterdir() if path.is_dir())
    ours = source / "tests" / "models" / "deberta_ext"
    ours.mkdir(parents=True)
    for name, text in STAND_INS.items():
        file = source / name
        file.parent.mkdir(parents=True, exist_ok=True)
        (file.parent / "__init__.py").touch()
        if not file.exists():
            file.write_text(text, encoding="utf-8")
    for package in (source / "tests", ours.parent, ours):
        (package / "__init__.py").touch()
    shutil.copyfile(HERE / "mixin_tests.py", ours / "test_modeling_deberta_ext.py")
    return source


def run(source: Path, more: Sequence[str]) -> dict[str, tuple[str, str]]:
    """(passed, failed or skipped; what it says) of every test, by its name."""
    results = source / "results.xml"
    paths = os.pathsep.join(map(str, (source, ROOT)))
    environment = os.environ | {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "RUN_TRAINING_TESTS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(source)]
    command += ["-W", "ignore", "--tb", "short", f"--junitxml={results}", str(source / "tests/models/deberta_ext"), *more]
    subprocess.run(command, cwd=source, env=environment)
    outcomes: dict[str, tuple[str, str]] = {}
    for case in ElementTree.parse(results).iter("testcase"):
        said = {child.tag: f"{child.get('message', '')}\n{child.text or ''}" for child in case}
        kind = next((kind for kind in ("failure", "error", "skipped") if kind in said), "passed")
        name = f"{case.get('classname').rpartition('.')[2]}::{case.get('name')}"
        # A test with subtests is there once for each of them.
        if name not in outcomes or kind in ("failure", "error"):
            outcomes[name] = ("failed" if kind in ("failure", "error") else kind, said.get(kind, ""))
    return outcomes


def explanation(name: str, said: str) -> str | None:
    test = name.partition("::")[2].partition("[")[0]
    return next((why for (about, part), why in EXPLAINED.items() if about == test and part in said), None)


def report(outcomes: dict[str, tuple[str, str]], version: str) -> int:
    """Prints counts, then each failure; 1 if one of them is not explained."""
    failed = {name: said for name, (kind, said) in outcomes.items() if kind == "failed"}
    reasons = {name: explanation(name, said) for name, said in failed.items()}
    unexplained = [name for name, reason in reasons.items() if reason is None]
    counts = collections.Counter(kind for kind, _ in outcomes.values())
    shown = ", ".join(f"{counts[kind]} {kind}" for kind in ("passed", "failed", "skipped"))
    print(f"\ntransformers {version}: {shown}; {len(failed) - len(unexplained)} of the failures are explained")
    for name, reason in reasons.items():
        print(f"explained: {name}: {reason}" if reason else f"FAILED: {name}: {failed[name].splitlines()[0][:200]}")
    if not outcomes:
        print("no test was found")
    return 1 if unexplained or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
