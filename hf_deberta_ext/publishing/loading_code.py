# SPDX-License-Identifier: Apache-2.0
"""Code in a model card that loads the model and tries it, from a folder or from a repository of the Hub."""

import posixpath
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..model.heads import HEADS

__all__ = [
    "AUTO_MODELS",
    "LOADING_LINES",
    "loading_code",
    "published_card",
    "render_template",
    "sample_texts",
]

# The first lines of the code that loads a model; a push replaces both lines.
LOADING_LINES = """repo = "{repo}"  # the path of this folder, or its id on the Hub
revision = None  # on the Hub: a tag or commit, which pins weights and code"""
PUBLISHED_LINES = """repo = "{repo}"
revision = "{revision}"  # pins weights and code"""
UNPINNED_LINES = """repo = "{repo}"
revision = "{revision}"  # for good: the id of a commit, huggingface_hub.model_info(repo).sha, pins weights and code"""
REPO_LINES = re.compile(r'^repo = ".*?".*\nrevision = .*$', re.MULTILINE)
# Loading of a model in a folder of a repository.
PART_LINES = """from huggingface_hub import snapshot_download

repo = snapshot_download("{repo}", revision="{revision}", allow_patterns="{part}/*") + "/{part}"
revision = None  # {note}"""
# Texts that a text classifier is tried on: by task where its texts have a form of their own, or else by their columns.
TEXTS = {
    "multirc": ("She sat on the bank of the river.", "Where did she sit? On the bank."),
    "record": ("Ann and Mary met at the river.", "Mary saw Ann there."),
    "wic": ("bank: She sat on the bank of the river.", "He went to the bank for a loan."),
    "wsc": ("Mary saw # Ann # , and * she * waved .",),
    ("sentence1", "sentence2"): ("She sat by the river.", "She was sitting beside the river."),
    ("premise", "hypothesis"): ("She sat on the bank of the river.", "She was near water."),
    ("question1", "question2"): ("Where did she sit?", "What did she sit on?"),
    ("question", "sentence"): ("Where did she sit?", "She sat on the bank of the river."),
    ("question", "passage"): ("Did she sit?", "She sat on the bank of the river."),
}
# The Hub's name of a task: its Auto class; "encoder" is one without a head.
AUTO_MODELS = {
    head.pipeline_tag: head.auto_class for head in HEADS.values() if head.pipeline_tag and head.auto_class != "AutoModel"
} | {"encoder": "AutoModel"}


def loading_code(
    kind: str,
    repo: str,
    *,
    custom_code: bool,
    texts: Sequence[str] = ("A text.",),
    problem_type: str | None = None,
    adapter_base: str | None = None,
    base_revision: str | None = None,
    own_config: bool = True,
    tokenizer: bool = True,
) -> str:
    """Python that loads a model, pinned to a revision, and tries it.

    Args:
        kind (`str`): a name in AUTO_MODELS; "fine-tune" for an encoder whose own head is of no use afterwards; "joint" for
            generator and discriminator.
        repo (`str`): the name of the folder.
        custom_code (`bool`): the model needs the code in its folder.
        texts (`tuple[str]`): a text, or the two of a pair, that a text classifier is tried on.
        problem_type (`str`, *optional*): of a text classifier.
        adapter_base (`str`, *optional*): the model that the adapter (LoRA) in the folder is for, of which a local one is
            only named; None = a whole model.
        base_revision (`str`, *optional*): of `adapter_base` on the Hub.
        own_config (`bool`): the folder of an adapter has a config.json.
        tokenizer (`bool`): the folder has one; else a model is loaded alone, and an adapter with that of its base.
    """
    return render_template(
        "loading_code.jinja", kind=kind,
        auto_class="AutoModelForPreTraining" if kind == "joint" else AUTO_MODELS.get(kind, "AutoModel"),
        loading_lines=LOADING_LINES.format(repo=repo), texts=[quoted(text) for text in texts], custom_code=custom_code,
        problem_type=problem_type, adapter_base=adapter_base, base_revision=base_revision, own_config=own_config,
        tokenizer=tokenizer,
    )  # fmt: skip


def render_template(name: str, **values: Any) -> str:
    """The text that a Jinja template beside this file makes of the values."""
    from jinja2 import Template

    template = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return Template(template, trim_blocks=True, lstrip_blocks=True).render(values).strip()


def sample_texts(task: str | None, columns: Sequence[str]) -> Sequence[str]:
    """A text, or the two of a pair, that a text classifier is tried on.

    Args:
        columns (`list[str]`): of the task's texts.
    """
    texts = TEXTS.get(task) or TEXTS.get((*columns,))
    return texts or ("A text.", "Another text.")[: max(1, len(columns))]


def published_card(text: str, path: str, repo_id: str, revision: str, *, pinned: bool) -> str:
    """A card whose code loads `repo_id` from the Hub instead of a folder.

    Args:
        path (`str`): of the card in the repository. Of the part of a joint model the folder is downloaded: some ways to
            load one (`pipeline`) take no folder of a repository.
        revision (`str`): a tag or commit, or if not `pinned` a branch.
    """
    lines = (PUBLISHED_LINES if pinned else UNPINNED_LINES).format(repo=repo_id, revision=revision)
    if part := posixpath.dirname(path):
        note = "the line above pins weights and code" if pinned else "for good: the id of a commit, in the line above"
        lines = PART_LINES.format(repo=repo_id, revision=revision, part=part, note=note)
    return REPO_LINES.sub(lambda _: lines, text)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
