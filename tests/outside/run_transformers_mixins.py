# SPDX-License-Identifier: Apache-2.0
"""Run transformers' own model tests on our classes; print a table, and every failure by name with the reason that allows
it.

    python tests/outside/run_transformers_mixins.py                            # installed version of transformers
    python tests/outside/run_transformers_mixins.py --version 5.4.0            # another version, in a temporary folder
    python tests/outside/run_transformers_mixins.py -- -k MaskedLM -n 2

The tests are in the source distribution of exactly that version, which pip downloads. They are unpacked into a temporary
folder, to which the other files of this folder are copied; none of them are added to this repository. Needs
`parameterized`. The exit status is 0 if every test passes, is skipped, or fails for a reason in EXPLAINED. An explained
test that passes counts as a failure, because its explanation is no longer true. Takes about six minutes on two cores.
"""

import argparse
import collections
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Modules that the tests import and that are not in the source distribution.
STAND_INS = {
    "tests/exporters/test_export.py": "class ExportTesterMixin:\n    pass\n",
    "tests/generation/test_utils.py": "class GenerationTesterMixin:\n    pass\n",
    # Common configuration fields, with values that differ from their defaults.
    "tests/utils/test_configuration_utils.py": (
        'config_common_kwargs = {"return_dict": False, "output_hidden_states": True, "output_attentions": True, '
        '"dtype": "float16", "architectures": ["DebertaExtModel"], "id2label": {0: "label"}, "label2id": {"label": 0}, '
        '"problem_type": "regression", "chunk_size_feed_forward": 5, "pad_token_id": 7, "bos_token_id": 8}\n'
    ),
}
KINDS = ("passed", "failed", "explained", "skipped")


class Explained(NamedTuple):
    """Tests that may fail, and the reason."""

    tests: tuple[str, ...]
    # A part of the failure message.
    says: str
    why: str
    # Pattern for the names of all classes that fail.
    classes: str = ""
    # First version of transformers in which they pass.
    passes_from: tuple[int, ...] = (6,)


# Classes that support "sdpa" according to mixin_tests.py.
WITH_SDPA = "(DebertaExtModel|DebertaExtForMaskedLM)_.*"
UNTIED = (
    "test_load_save_without_tied_weights test_resize_embeddings_untied test_resize_embeddings_untied_no_reinit_on_post_init"
)
CHECKPOINTING = "test_training_gradient_checkpointing"
EXPLAINED = (
    Explained(
        tuple(UNTIED.split()),
        says="tie_word_embeddings must be True",
        why="the decoder is the word embedding table: no released checkpoint has a different one, so it is an error",
    ),
    Explained(
        ("test_model_weights_reload_no_missing_tied_weights",),
        says="are these the weights of another model?",
        why="the test loads a file without any tensor of the model, an error here: all weights would be random",
    ),
    Explained(
        ("test_eager_matches_sdpa_inference_24_fp32_pad_left_output_attentions",),
        says="it does not return attention probabilities; 'eager' can",
        why="the test asks 'sdpa' for probabilities, where transformers takes 'eager'; ours never falls back",
        classes=WITH_SDPA,
    ),
    Explained(
        ("test_sdpa_can_dispatch_non_composite_models",),
        says='model_sdpa.config._attn_implementation == "sdpa"',
        why="the test expects 'sdpa' in the configuration by default; here it is None, the best backend for each call",
        classes=WITH_SDPA,
    ),
    Explained(
        ("test_can_set_attention_dynamically",),
        says="must be one of 'eager', 'sdpa', 'blocked', 'triton'",
        why="an unknown backend raises ValueError, as the test asks, but with our text, the names of all backends",
        classes=WITH_SDPA,
    ),
    Explained(
        ("test_load_with_mismatched_shapes", "test_can_load_ignoring_mismatched_shapes"),
        says="'Reinit due to size mismatch' not found in ''",
        why="the test looks for a row of transformers' loading table; model.loading_report names these parameters here",
        classes="DebertaExtForSequenceClassification_.*",
    ),
    Explained(
        ("test_resize_tokens_embeddings",),
        says="a joint model cannot be resized",
        why="generator and discriminator in one model cannot be resized here; resize both models, then join them",
        classes="DebertaExtForPreTraining_.*",
    ),
    Explained(
        (CHECKPOINTING, f"{CHECKPOINTING}_use_reentrant_false", f"{CHECKPOINTING}_use_reentrant_true"),
        says="position_embeddings.weight",
        why="the test asks for a gradient of every parameter, also of the table of absolute positions, which only masked "
        "language modelling reads, and which is frozen elsewhere for that reason; 5.20 leaves out what is frozen",
        classes="DebertaExtFor(ReplacedTokenDetection|SequenceClassification|TokenClassification|QuestionAnswering|"
        "MultipleChoice)_(V3|V2|V1)",
        passes_from=(5, 20),
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", help="transformers version to download with pip (default: the installed one)")
    parser.add_argument("--archive", type=Path, help="local source distribution of that version")
    parser.add_argument("--slow", action="store_true", help="also run the tests that transformers runs at night")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --, such as -k EXPRESSION")
    arguments = parser.parse_args(argv)
    if arguments.version is None and importlib.util.find_spec("parameterized") is None:
        parser.error("transformers' tests need the package parameterized: pip install parameterized")
    version = arguments.version or importlib.metadata.version("transformers")
    paths = [ROOT]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.version is not None:
            paths.append(install(version, folder))
        source = unpack(arguments.archive or download(version, folder), folder)
        return report(run(source, paths, arguments.pytest, arguments.slow), version)


def install(version: str, folder: Path) -> Path:
    """Return a folder with that version of transformers, to put before the installed packages in the search path."""
    place = folder / "packages"
    command = [sys.executable, "-m", "pip", "install", "-q", "--upgrade", "--target", str(place)]
    subprocess.run([*command, f"transformers=={version}", "parameterized"], check=True)
    return place


def download(version: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
    subprocess.run([*command, "-d", str(folder), f"transformers=={version}"], check=True)
    return next(folder.glob(f"transformers-{version}.tar.gz"))


def unpack(archive: Path, folder: Path) -> Path:
    """Return the unpacked distribution with the missing modules and our tests in it."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
        source = folder / tar.getmembers()[0].name.partition("/")[0]
    ours = source / "tests" / "models" / "deberta_ext"
    ours.mkdir(parents=True, exist_ok=True)
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


def run(source: Path, paths: Sequence[Path], more: Sequence[str], slow: bool) -> dict[str, tuple[str, list[str]]]:
    """Return (passed, failed or skipped; messages of the test and its subtests) of every test, by its name."""
    results = source / "results.xml"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (source, *paths))),
        "HF_HUB_OFFLINE": "1",
        "RUN_TRAINING_TESTS": "1",
        "RUN_SLOW": str(int(slow)),
        "TOKENIZERS_PARALLELISM": "false",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(source)]
    # Standard output has one line for each failure; the report has the traceback.
    command += ["-W", "ignore", "--tb", "short", "--show-capture", "no", f"--junitxml={results}"]
    log = source / "log.txt"
    with log.open("w") as file:
        command = [*command, str(source / "tests/models/deberta_ext"), *more]
        status = subprocess.run(command, cwd=source, env=environment, stdout=file, stderr=subprocess.STDOUT).returncode
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    # 1: tests failed; 5: no test was found; any other status is not a result of tests.
    print("\n".join(lines[-1:] if status in (0, 1, 5) else lines[-40:]))
    outcomes: dict[str, tuple[str, list[str]]] = {}
    if not results.exists():
        return outcomes
    # A test with subtests appears once for each of them.
    for case in ElementTree.parse(results).iter("testcase"):
        name = f"{case.get('classname').rpartition('.')[2]}::{case.get('name')}"
        kind, said = outcomes.get(name, ("passed", []))
        for child in case:
            if child.tag in ("failure", "error"):
                kind, said = "failed", said if kind == "failed" else []
                said.append(f"{child.get('message', '')}\n{child.text or ''}")
            elif child.tag == "skipped" and kind != "failed":
                kind = "skipped"
                said.append(child.get("message", ""))
        outcomes[name] = (kind, said)
    return outcomes


def explanation(name: str, version: str) -> Explained | None:
    """Return the reason why this test may fail with this version, or None."""
    model_class, _, test = name.partition("::")
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    for explained in EXPLAINED:
        if test in explained.tests and re.fullmatch(explained.classes or ".*", model_class):
            return explained if numbers < explained.passes_from else None
    return None


def report(outcomes: dict[str, tuple[str, list[str]]], version: str) -> int:
    """Print counts, failures and reasons; return 1 for a failure without a reason, or a reason without a failure."""
    counts = collections.defaultdict(collections.Counter)
    reasons = collections.defaultdict(list)
    wrong = []
    for name, (kind, said) in outcomes.items():
        explained = explanation(name, version)
        if kind == "failed" and explained is not None and all(explained.says in message for message in said):
            kind = "explained"
            reasons[explained.why].append(name)
        elif kind == "failed":
            wrong += [f"FAILED: {name}: {message.strip().splitlines()[0][:200]}" for message in said]
        elif kind == "passed" and explained is not None:
            wrong.append(f"PASSES although explained: {name}: take it out of EXPLAINED ({explained.why})")
        for row in (name.partition("::")[0].partition("_")[0], "all"):
            counts[row][kind] += 1
    print(f"{'transformers ' + version:40}" + "".join(f"{kind:>11}" for kind in KINDS))
    for row, numbers in sorted(counts.items()):
        print(f"{row:40}" + "".join(f"{numbers[kind]:>11}" for kind in KINDS))
    for why, names in reasons.items():
        print(f"\nexplained: {why}\n    {', '.join(names)}")
    if not outcomes:
        wrong.append("no test was found")
    print("\n" + "\n".join(wrong or ["Every failure is explained."]))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
