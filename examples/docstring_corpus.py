# SPDX-License-Identifier: Apache-2.0
"""A text corpus that every Python has: which package of the standard library does a docstring come from?

They depend on the Python version (3.11: 8,200 docstrings of 270,000 words, and 65,000 words of `pydoc` topics).
"""

import ast
import functools
import inspect
import json
import random
import re
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from hf_deberta_ext.publishing.folder_checks import clean_environment

# The classes: in every Python from 3.10 on, also where tkinter, idlelib and distutils are packaged apart or gone.
PACKAGES = (
    "asyncio", "decimal", "email", "http", "importlib", "logging", "multiprocessing", "turtle", "unittest", "xml",
)  # fmt: skip
MASK_WORD = "module"

# decimal's own docstrings are in the Python twin of its C module.
_ALIASES = {"_pydecimal": "decimal"}
_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "_bundled", "lib-dynload", "__pycache__"}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_WITH_STATEMENTS = (ast.mod, ast.stmt, ast.ExceptHandler, ast.match_case)


@dataclass(frozen=True)
class Docstring:
    """A docstring, the dotted module that it is in, and that module's top-level package."""

    text: str
    module: str
    package: str


@dataclass(frozen=True)
class Split:
    """Texts with their labels (index into the packages), for training, choosing and reporting."""

    train: list[tuple[str, int]]
    validation: list[tuple[str, int]]
    test: list[tuple[str, int]]


def _stdlib() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def _parse(path: Path) -> ast.Module | None:
    """The syntax tree of a file, or None for the few that are broken on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            return None


def _documented(node: ast.AST):
    """The modules, classes and functions at and below `node`, in the order of the file."""
    if isinstance(node, _DOCUMENTED):
        yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _WITH_STATEMENTS):
            yield from _documented(child)


def collect_docstrings(root: Path | None = None) -> list[Docstring]:
    """Every docstring below `root` (*optional*; the standard library), once, in the order of the sorted paths.

    Files are parsed, never imported. Tests, installed packages and bundled wheels are left out.

    Raises:
        ValueError: there is no docstring at all (a standard library without its sources).
    """
    root = _stdlib() if root is None else Path(root)
    entries: dict[str, Docstring] = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if _LEFT_OUT & set(parts):
            continue
        module = ".".join(part for part in parts if part != "__init__")
        package = _ALIASES.get(parts[0], parts[0])
        for node in _documented(_parse(path) or ast.Module([], [])):
            text = ast.get_docstring(node)
            if text and text.strip():
                entries.setdefault(text, Docstring(text, module, package))
    if not entries:
        raise ValueError(f"no docstrings below {root}; expected a standard library with its .py files")
    return list(entries.values())


def collect_topics(root: Path | None = None) -> list[str]:
    """The texts behind `help("topic")`, from `pydoc_data/topics.py` below `root`; empty where that is missing."""
    path = (_stdlib() if root is None else Path(root)) / "pydoc_data" / "topics.py"
    tree = _parse(path) if path.exists() else None
    for node in tree.body if tree else []:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            topics = ast.literal_eval(node.value)
            return [topics[name].strip() for name in sorted(topics)]
    return []


def class_names(docstrings: list[Docstring], packages: tuple[str, ...] = PACKAGES) -> set[str]:
    """The names that would give a class away: the packages and all of their submodules, in lower case."""
    modules = [part for entry in docstrings if entry.package in packages for part in entry.module.split(".")]
    return {name.strip("_").lower() for name in (*packages, *modules)} - {"", "main", "init"}


def mask_names(text: str, names: set[str]) -> str:
    """Replace each of `names`, or its plural, in any case and inside dotted_names, by "module"; a chain by one.

    `xml.dom.Node`, `_xml_parser`, `XML's` become `module.Node`, `_module_parser`, `module's`; `xmlfile` stays.
    """
    return _name_pattern(frozenset(names)).sub(MASK_WORD, text) if names else text


@functools.lru_cache(maxsize=8)
def _name_pattern(names: frozenset[str]) -> re.Pattern:
    any_name = "|".join(sorted(map(re.escape, names), key=lambda name: (-len(name), name)))
    # Underscores separate words here, where they would join them for \b.
    name = rf"(?<![^\W_])(?:{any_name})s?(?![^\W_])"
    return re.compile(rf"{name}(?:\.{name})*", flags=re.IGNORECASE)


def _key(text: str, names: set[str]) -> str:
    """A docstring with names, case and white space removed: equal for texts that are the same to the task."""
    return " ".join(mask_names(text, names).lower().split())


def task_examples(
    docstrings: list[Docstring], packages: tuple[str, ...] = PACKAGES, min_words: int = 5
) -> list[tuple[str, int]]:
    """The classification examples (masked text, index of the package).

    Texts of fewer than `min_words` words are dropped; so are repetitions after masking, and texts of several packages.

    Raises:
        ValueError: a package has fewer than 10 examples.
    """
    names = class_names(docstrings, packages)
    owners: dict[str, set[str]] = {}
    texts: dict[str, tuple[str, int]] = {}
    for entry in docstrings:
        if entry.package not in packages or len(entry.text.split()) < min_words:
            continue
        key = _key(entry.text, names)
        owners.setdefault(key, set()).add(entry.package)
        texts.setdefault(key, (mask_names(entry.text, names), packages.index(entry.package)))
    examples = [example for key, example in texts.items() if len(owners[key]) == 1]
    counts = Counter(label for _, label in examples)
    for label, package in enumerate(packages):
        if counts[label] < 10:
            raise ValueError(f"expected at least 10 docstrings of {package!r} in this library, got {counts[label]}")
    return examples


def split_by_package(
    examples: list[tuple[str, int]], seed: int, validation: float = 0.15, test: float = 0.45, limit: int | None = None
) -> Split:
    """A stratified split: every label gives the same shares, rounded, and at least one text to each part.

    Args:
        examples (`list[tuple[str, int]]`): texts and labels; each label needs three texts.
        seed (`int`): decides which text goes where.
        validation, test (`float`): their shares, in (0, 1).
        limit (`int`, *optional*): at most so many texts of each label.
    """
    rng = random.Random(seed)
    parts = Split([], [], [])
    for label in sorted({label for _, label in examples}):
        group = [example for example in examples if example[1] == label]
        rng.shuffle(group)
        group = group[:limit]
        first, second = (max(1, round(share * len(group))) for share in (test, validation))
        parts.test.extend(group[:first])
        parts.validation.extend(group[first : first + second])
        parts.train.extend(group[first + second :])
    for part in (parts.train, parts.validation, parts.test):
        rng.shuffle(part)
    return parts


def pretraining_texts(docstrings: list[Docstring], topics: list[str], held_out: list[tuple[str, int]]) -> list[str]:
    """All docstrings but those in `held_out` (compared without case and spaces), then the topics; names masked alike."""
    names = class_names(docstrings)
    kept_apart = {" ".join(text.lower().split()) for text, _ in held_out}
    kept = [entry.text for entry in docstrings if _key(entry.text, names) not in kept_apart]
    return [mask_names(text, names) for text in kept + topics]


def pack_blocks(texts: list[str], tokenizer, length: int) -> list[dict[str, list[int]]]:
    """Texts end to end in blocks of `length` tokens: [CLS] text [SEP] text ... [SEP]. The rest is dropped."""
    stream = []
    for ids in tokenizer(texts, add_special_tokens=False, truncation=False)["input_ids"]:
        stream.extend([*ids, tokenizer.sep_token_id])
    room = length - 2
    ends = range(room, len(stream) + 1, room)
    blocks = [[tokenizer.cls_token_id, *stream[end - room : end], tokenizer.sep_token_id] for end in ends]
    return [{"input_ids": block, "attention_mask": [1] * length} for block in blocks]


def mask_blocks(blocks: list[dict[str, list[int]]], collator, seed: int) -> list[dict[str, torch.Tensor]]:
    """The blocks as `collator` masks them, once and for all, so that every evaluation asks for the same tokens."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        batch = collator(blocks)
    return [{name: values[i] for name, values in batch.items()} for i in range(len(blocks))]


def majority_accuracy(train: list[tuple[str, int]], test: list[tuple[str, int]]) -> float:
    """The accuracy on `test` of always answering the most frequent label of `train`."""
    guess = Counter(label for _, label in train).most_common(1)[0][0]
    return sum(label == guess for _, label in test) / len(test)


def compare_runs(pretrained: list[float], random_weights: list[float]) -> dict[str, float | int | str]:
    """What pre-training changed: the difference of the mean accuracies, and a verdict that says so plainly.

    Args:
        pretrained, random_weights (`list[float]`): accuracies in [0, 1], one for each seed, in the same order.
    """
    difference = statistics.mean(pretrained) - statistics.mean(random_weights)
    pairs = list(zip(pretrained, random_weights, strict=True))
    wins = sum(first > second for first, second in pairs)
    did = "did NOT help" if difference <= 0 else "helped" if wins == len(pairs) else "helped on average only"
    seeds = f"{wins} of {len(pairs)} seed{'s' if len(pairs) > 1 else ''}"
    verdict = f"Pre-training {did}: {100 * difference:+.1f} points against random weights, better in {seeds}."
    return {"difference": difference, "seeds_better": wins, "verdict": verdict}


@torch.no_grad()
def predict_logits(model, tokenizer, texts, batch_size=32):
    """The logits [number of texts, number of labels] of a sequence classifier, in float32, in the order of `texts`."""
    model.eval()
    rows = []
    for start in range(0, len(texts), batch_size):
        batch = tokenizer(texts[start : start + batch_size], truncation=True, padding=True, return_tensors="pt")
        rows.append(model(**batch.to(model.device)).logits.float().cpu())
    return torch.cat(rows)


_FRESH_PROCESS = """
import json, sys

# Neither can be imported.
sys.modules.update(hf_deberta_ext=None, triton=None)
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

{predict_logits}

folder, texts_file, logits_file = sys.argv[1:]
model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
with open(texts_file, encoding="utf-8") as file:
    logits = predict_logits(model, tokenizer, json.load(file))
with open(logits_file, "w", encoding="utf-8") as file:
    json.dump(logits.tolist(), file)
"""


def check_reload(folder: Path | str, texts: list[str], logits: torch.Tensor) -> dict[str, float | int | bool]:
    """Load a saved classifier in a fresh process that cannot import hf_deberta_ext, and compare its answers.

    The process runs elsewhere, offline, without PYTHONPATH, and with an empty cache of remote code.

    Args:
        folder (`Path`): a saved sequence classifier with its code and its tokenizer.
        texts (`list[str]`): what to classify.
        logits (`torch.Tensor`): [number of texts, number of labels], the logits of `predict_logits` in this process.
    Returns:
        texts (how many), same_predictions, max_logit_difference, and passed: same predictions, logits equal to 1e-5.
    Raises:
        RuntimeError: the fresh process failed; with the end of what it said.
    """
    with tempfile.TemporaryDirectory() as scratch:
        texts_file, logits_file = Path(scratch, "texts.json"), Path(scratch, "logits.json")
        texts_file.write_text(json.dumps(texts), encoding="utf-8")
        code = _FRESH_PROCESS.replace("{predict_logits}", inspect.getsource(predict_logits))
        command = [sys.executable, "-c", code, str(Path(folder).resolve()), str(texts_file), str(logits_file)]
        run = subprocess.run(command, cwd=scratch, env=clean_environment(scratch), capture_output=True, text=True)
        if run.returncode:
            raise RuntimeError(f"the saved folder did not load in a fresh process:\n{run.stderr[-2000:]}")
        reloaded = torch.tensor(json.loads(logits_file.read_text(encoding="utf-8")))
    if reloaded.shape != logits.shape:
        raise RuntimeError(f"expected logits {list(logits.shape)} from the fresh process, got {list(reloaded.shape)}")
    same = bool((reloaded.argmax(-1) == logits.argmax(-1)).all())
    difference = (reloaded - logits).abs().max().item()
    passed = same and difference <= 1e-5
    return {"texts": len(texts), "same_predictions": same, "max_logit_difference": difference, "passed": passed}
