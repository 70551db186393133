# SPDX-License-Identifier: Apache-2.0
"""Checks of a folder before it is published. Every problem names its way out."""

import ast
import contextlib
import json
import mmap
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from huggingface_hub import get_token

from .._version import __version__
from ..model.configuration_deberta_ext import DebertaExtConfig
from ..model.remote_code import AUTO_MAP, CODE_MARK
from .card_checks import card_problems, linked_pictures
from .facts import HALVES

__all__ = [
    "check_folder",
    "clean_environment",
    "code_problems",
    "link_or_copy",
    "load_problems",
    "readme_problems",
    "size_problems",
    "token_problems",
]

CODE = Path(__file__).resolve().parent.parent / "model"
# What transformers itself requires, and so everybody has.
REQUIRED = {"torch", "transformers", "safetensors", "huggingface_hub", "numpy"}
# Variables that a process needs to run. Any other may hold a secret, or change the code that is loaded.
ENVIRONMENT = (
    "PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT",
    "WINDIR", "PATHEXT", "LANG", "LC_ALL", "LC_CTYPE", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY",
)  # fmt: skip
WEIGHTS = (".safetensors", ".bin", ".safetensors.index.json", ".bin.index.json")
# huggingface_hub uploads files of up to 50 GB (HfApi.upload_file), and downloads no larger ones (MAX_HTTP_DOWNLOAD_SIZE).
FILE_LIMIT = 50 * 1000**3
# Above 10 MB the Hub stores a file apart from the repository, and shows no card of it.
CARD_LIMIT = 10 * 1000**2
LOAD_SECONDS = 30 * 60
TOKEN = re.compile(rb"\bhf_[A-Za-z0-9]{34}")
# Problems of one card.
SHOWN = 5
SAVE_AGAIN = "save the model again with model.save_pretrained(folder)"


def check_folder(
    folder: str | os.PathLike, files: Mapping[str, Path], token: str | None = None, *, needs_card: bool = True
) -> list[str]:
    """The problems of a folder that is to be published; empty if there is none.

    Nothing is sent, nothing in the folder is changed. The models in it are loaded in a process of their own.

    Args:
        folder (`str` or path): the folder of a model or of an adapter.
        files (`dict[str, Path]`): what of it is published: path in the repository -> file.
        token (`str`, *optional*): the token of the push; it and the saved token must be in none of the files.
        needs_card (`bool`): False where the Hub has a card that stays.
    """
    folder = Path(folder)
    problems = [
        *code_problems(folder, files),
        *size_problems(files),
        *token_problems(files, token),
        *(readme_problems(folder, files) if needs_card or "README.md" in files else ()),
    ]
    # It would only say the same of a folder in which something is missing, and take longer.
    return problems or load_problems(files)


def code_problems(folder: str | os.PathLike, files: Mapping[str, Path]) -> list[str]:
    """Missing files and values in the models of a folder: configuration, weights, code, or an adapter's base model."""
    problems = []
    if "adapter_config.json" in files:
        problems = adapter_problems(files["adapter_config.json"])
    elif "config.json" not in files:
        return [f"config.json is not in {folder}, so it is no saved model: {SAVE_AGAIN}, and push that folder"]
    return problems + [problem for part in model_folders(files) for problem in model_problems(files, part)]


def model_folders(files: Mapping[str, Path]) -> list[str]:
    """ "" and those of "discriminator" and "generator" that have a configuration; an adapter need not have one."""
    return [part for part in ("", *HALVES) if str(PurePosixPath(part, "config.json")) in files]


def adapter_problems(file: Path) -> list[str]:
    try:
        base = json.loads(file.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (ValueError, AttributeError) as error:
        return [f"adapter_config.json is no JSON object ({error}): save the adapter again"]
    edit = 'edit "base_model_name_or_path" in adapter_config.json to the id on the Hub of the model that was adapted'
    if not base:
        return [f"adapter_config.json names no base model: {edit}"]
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", base) or base.startswith(".") or Path(base).exists():
        return [f"adapter_config.json: the base model {base!r} is a folder of this machine: {edit}"]
    return []


def model_problems(files: Mapping[str, Path], part: str) -> list[str]:
    def at(name: str) -> str:
        return str(PurePosixPath(part, name))

    files_of_part = {PurePosixPath(name).name: file for name, file in files.items() if at(PurePosixPath(name).name) == name}
    problems = []
    if "adapter_config.json" not in files_of_part and not any(name.endswith(WEIGHTS) for name in files_of_part):
        problems.append(f"{at('model.safetensors')} is not there, nor other weights: {SAVE_AGAIN}")
    try:
        config = json.loads(files_of_part["config.json"].read_text(encoding="utf-8"))
        auto_map, model_type = config.get("auto_map") or {}, config.get("model_type")
    except (ValueError, AttributeError) as error:
        return [*problems, f"{at('config.json')} is no JSON object ({error}): {SAVE_AGAIN}"]
    if model_type == DebertaExtConfig.model_type:
        if absent := [name for name in AUTO_MAP if name not in auto_map]:
            problems.append(f"{at('config.json')}: auto_map lacks {', '.join(absent)}: {SAVE_AGAIN}")
    code = {name[: -len(".py")]: file for name, file in files_of_part.items() if name.endswith(".py")}
    for name, reference in auto_map.items():
        if problem := reference_problem(reference, code):
            problems.append(f"{at('config.json')}: auto_map has {name} = {reference!r}, {problem}: {SAVE_AGAIN}")
    if auto_map:
        problems += [f"{at(problem)}" for problem in import_problems(code)]
        problems += [f"{at(problem)}" for problem in copy_problems(code)]
    return problems


def reference_problem(reference: object, code: Mapping[str, Path]) -> str | None:
    """The problem of an entry of auto_map, which is to be "module.Class" of a file in the folder."""
    if not isinstance(reference, str) or reference.count(".") != 1:
        return 'which is not "module.Class"'
    if "--" in reference:
        return "which is in another repository"
    module, class_name = reference.split(".")
    if module not in code:
        return f"but {module}.py is not published with it"
    return None if has_class(module, class_name, code) else f"but {module}.py has no class {class_name}"


def has_class(module: str, class_name: str, code: Mapping[str, Path]) -> bool:
    """True if the file defines the class, or imports it from another published file."""
    try:
        tree = ast.parse(code[module].read_text(encoding="utf-8"))
    except SyntaxError:
        # A problem by itself.
        return True
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            return True
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module in code:
            names = {alias.asname or alias.name: alias.name for alias in node.names}
            if class_name in names:
                rest = {name: file for name, file in code.items() if name != module}
                return node.module in rest and has_class(node.module, names[class_name], rest)
    return False


def import_problems(code: Mapping[str, Path]) -> Iterator[str]:
    """ "file.py:line ..." for every import that does not work where only the folder is."""
    for module, file in sorted(code.items()):
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except SyntaxError as error:
            yield f"{module}.py:{error.lineno} is no Python ({error.msg}): {SAVE_AGAIN}"
            continue
        for node in imports_outside_try(tree):
            place = f"{module}.py:{node.lineno}"
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            level = getattr(node, "level", 0)
            for name in names:
                if level > 1 or (level == 1 and (not name or "." in name)):
                    line = f"from {'.' * level}{name} import ..."
                    yield f"{place} has `{line}`, which the Hub's loader does not follow: import from .module, in one folder"
                elif level == 1 and name not in code:
                    yield f"{place} imports .{name}, but {name}.py is not published with it: {SAVE_AGAIN}"
                elif level == 0 and name.split(".")[0] not in REQUIRED | sys.stdlib_module_names:
                    package = name.split(".")[0]
                    yield f"{place} imports {package}, which not everybody has who has transformers: import it inside of try"


def imports_outside_try(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Relative ones inside of try too: there, only a package may be missing."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        elif isinstance(child, ast.Try):
            yield from (inner for inner in ast.walk(child) if isinstance(inner, ast.ImportFrom) and inner.level)
        else:
            yield from imports_outside_try(child)


def copy_problems(code: Mapping[str, Path]) -> Iterator[str]:
    """Files with the mark of this package that are not those of the installed one."""
    marked = {file.name: data for file in code.values() if CODE_MARK.encode() in (data := file.read_bytes())[:200]}
    outdated = [
        name for name, data in sorted(marked.items()) if not (CODE / name).is_file() or (CODE / name).read_bytes() != data
    ]
    if outdated:
        yield (
            f"{', '.join(outdated)}: not the code of hf_deberta_ext {__version__} that is installed, but older or edited: "
            f"{SAVE_AGAIN}, or give --skip_checks"
        )


def load_problems(files: Mapping[str, Path]) -> list[str]:
    """Load in a clean process: AutoConfig, AutoTokenizer, the model with its weights, on two tokens, and
    every other Auto class without weights.

    The process sees the files alone, as they would be published: no hf_deberta_ext, no triton, no cache, no token, no
    variables but those that it needs to run. huggingface_hub is offline in it; code that makes connections of
    its own is not kept from that. Of an adapter no weights are loaded, because its base model is elsewhere.
    """
    models = model_folders(files)
    if not models:
        return []
    # No message of a logger: commands silence those.
    print("loading the model in a process without hf_deberta_ext; this may take a minute", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="hf_deberta_ext_check_", ignore_cleanup_errors=True) as scratch:
        copy = Path(scratch, "model")
        for name, file in files.items():
            link_or_copy(file, copy / name)
        jobs, answers, worker = (Path(scratch, name) for name in ("jobs.json", "problems.json", "load_worker.py"))
        # Where they are installed; of `python -I` neither PYTHONPATH nor a user's own packages are on the path.
        paths = {str(Path(find_spec(name).origin).parent.parent) for name in REQUIRED}
        folders = [str(copy / part) for part in models]
        jobs.write_text(json.dumps({"paths": sorted(paths), "folders": folders}), encoding="utf-8")
        shutil.copyfile(Path(__file__).with_name(worker.name), worker)
        command = [sys.executable, "-I", str(worker), str(jobs), str(answers)]
        try:
            done = subprocess.run(
                command, cwd=scratch, env=clean_environment(scratch), timeout=LOAD_SECONDS, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return [f"loading took longer than {LOAD_SECONDS // 60} minutes; give --skip_checks if that is to be expected"]
        if done.returncode:
            last = next(reversed(done.stdout.strip().splitlines()), "no message")
            killed = ", perhaps for want of memory" if done.returncode < 0 else ""
            return [f"the process that loads the folder ended with status {done.returncode}{killed}: {last}"]
        problems_of_models = json.loads(answers.read_text(encoding="utf-8"))
    scratch_path = re.compile(re.escape(str(copy)) + r"[/\\]?")
    return [
        f"{part + '/' if part else ''}{scratch_path.sub('', problem)} (loaded without hf_deberta_ext): {SAVE_AGAIN}"
        for part, problems in zip(models, problems_of_models, strict=True)
        for problem in problems
    ]


def link_or_copy(file: Path, target: Path, link: Callable[[Path, Path], None] = os.symlink) -> Path:
    """The file under another name: a link where that is possible, because weights are large."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # Links are not to be had in every file system, nor on Windows without developer mode.
    with contextlib.suppress(OSError):
        if file.stat().st_size > 1_000_000:
            link(file.resolve(), target)
            return target
    return Path(shutil.copyfile(file, target))


def clean_environment(scratch: str) -> dict[str, str]:
    """Environment variables for a process that loads a folder offline, with its caches below `scratch`."""
    # Of Windows they have any case.
    needed = {name: value for name, value in os.environ.items() if name.upper() in ENVIRONMENT}
    return needed | {
        "HOME": scratch,
        "USERPROFILE": scratch,
        "HF_HOME": os.path.join(scratch, "home"),
        "HF_MODULES_CACHE": os.path.join(scratch, "modules"),
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TOKENIZERS_PARALLELISM": "false",
    }


def token_problems(files: Mapping[str, Path], *tokens: str | None) -> list[str]:
    """Return a line for each file that holds a token of the Hub: one of `tokens`, the saved one, or any other.

    Other kinds of secrets are searched by the Hub itself, after a push.
    """
    own = [token.encode() for token in (*tokens, get_token()) if token]
    problems = []
    for name, file in sorted(files.items()):
        if file.stat().st_size == 0:
            continue
        with open(file, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if TOKEN.search(data) or any(data.find(token) >= 0 for token in own):
                problems.append(f"{name} holds a token of the Hub: take it out, and revoke it in your account's settings")
    return problems


def size_problems(files: Mapping[str, Path]) -> list[str]:
    """Files that the Hub does not take, or does not show."""
    problems = []
    for name, file in sorted(files.items()):
        size = file.stat().st_size
        if size > FILE_LIMIT:
            problems.append(
                f"{name} has {size / 1000**3:.1f} GB, more than the {FILE_LIMIT // 1000**3} GB of a file on the Hub: save "
                'the model in smaller files, model.save_pretrained(folder, max_shard_size="5GB")'
            )
        elif name == "README.md" and size > CARD_LIMIT:
            problems.append(f"README.md has {size / 1000**2:.1f} MB: above {CARD_LIMIT // 1000**2} MB the Hub shows no card")
    return problems


def readme_problems(folder: str | os.PathLike, files: Mapping[str, Path]) -> list[str]:
    """A model card that is missing or not valid, and pictures of it that are not published."""
    if "README.md" not in files:
        return [f"README.md, the model card, is not there: write it with `deberta-ext card {folder}`"]
    try:
        text = files["README.md"].read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        return [f"README.md is not UTF-8 ({error}): save it as UTF-8"]
    problems = [f"README.md: {problem}" for problem in card_problems(text, folder)]
    if len(problems) > SHOWN:
        # A template that nobody has filled in has dozens.
        rest = f"README.md: {len(problems) - SHOWN} more; `deberta-ext card {folder} --overwrite` writes it anew"
        problems = [*problems[:SHOWN], rest]
    for number, link in linked_pictures(text):
        picture = os.path.normpath(link).replace(os.sep, "/")
        # One that is not in the folder is a problem of the card.
        if picture not in files and Path(folder, picture).is_file():
            problems.append(f"README.md: line {number} shows {link}, which is not published: --include {picture} adds it")
    return problems
