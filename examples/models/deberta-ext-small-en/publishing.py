# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""`push_to_hub`: weights, configuration, code, tokenizer and model card in one commit, from a model alone."""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, ModelCard, ModelCardData
from huggingface_hub.errors import HfHubHTTPError
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from .checkpoint_files import TOKENIZER_FILES, stale_weights
from .heads import HEADS

logger = logging.get_logger(__name__)

__all__ = ["AUTOMATIC", "is_automatic_card", "new_card", "push_model", "refuse_other_privacy"]

# What transformers writes into a repository without a card of its own, config.push_to_hub and tokenizer.push_to_hub too.
AUTOMATIC = (
    "This is the model card of a 🤗 transformers model that has been pushed on the Hub. This model card has been "
    "automatically generated."
)
CARD = """---
{metadata}
---

# {title}

{noun} ({name}) of {parameters:.1f} million parameters.
Its author has not yet written what it was trained on, how well it does, and where its limits are.

## How to load it

```python
from transformers import {imports}

repo = "{repo_id}"
revision = "{revision}"  # for good: the id of a commit, huggingface_hub.model_info(repo).sha, pins weights and code
model = {auto}.from_pretrained(repo, revision=revision, trust_remote_code=True)
{tokenizer}```

The folder brings its code along, which runs on your machine: pin a revision that you have read. Where hf_deberta_ext is
installed and imported, `trust_remote_code` is not needed.
"""
LOAD_TOKENIZER = "tokenizer = AutoTokenizer.from_pretrained(repo, revision=revision, trust_remote_code=True)\n"


def push_model(
    model: PreTrainedModel,
    repo_id: str,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    commit_message: str | None = None,
    commit_description: str | None = None,
    private: bool | None = None,
    token: bool | str | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    max_shard_size: int | str = "50GB",
    tags: list[str] | None = None,
    saving: dict[str, Any] | None = None,
) -> CommitInfo:
    """Publishes weights, config.json, the model's code, the tokenizer and a model card in one commit.

    A repository without a card gets a short one; one that somebody has written stays, with `tags` added. Weights on the
    Hub that would be loaded instead of these are removed.

    Args:
        repo_id (`str`): "name" or "owner/name"; made if it is not there.
        tokenizer (*optional*): goes along, with its files.
        private (`bool`, *optional*): of a repository that is made; None: as its owner has set.
        token (`bool` or `str`, *optional*): None: that of `hf auth login`.
        revision (`str`, *optional*): the branch, made if it is not there; "refs/pr/N" adds to a pull request.
        create_pr (`bool`): opens a pull request instead of committing to the branch.
        max_shard_size (`int` or `str`): larger models are saved in several files.
        tags (`list[str]`, *optional*): of the card's metadata.
        saving (`dict`, *optional*): other arguments of `save_pretrained`.

    Raises:
        OSError: what the Hub refuses, `huggingface_hub.errors.HfHubHTTPError`; 412: somebody has pushed meanwhile.
    """
    with tempfile.TemporaryDirectory() as folder:
        # What cannot be saved leaves no empty repository behind.
        model.save_pretrained(folder, **{"max_shard_size": max_shard_size} | (saving or {}))
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        files = {file.relative_to(folder).as_posix(): file for file in sorted(Path(folder).rglob("*")) if file.is_file()}

        api = HfApi(token=token)
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        if private is not None:
            refuse_other_privacy(repo_id, bool(api.model_info(repo_id).private), private, f"private={private}")
        if revision is not None and not revision.startswith("refs/pr/"):
            try:
                api.create_branch(repo_id, branch=revision, exist_ok=True)
            except HfHubHTTPError as error:
                # Who may only open pull requests; the branch exists, or the commit says that it does not.
                if error.response.status_code != 403 or not create_pr:
                    raise
        info = api.model_info(repo_id, revision=revision)
        published = {sibling.rfilename for sibling in info.siblings or ()}

        has_tokenizer = bool({*TOKENIZER_FILES} & {*published, *files})
        if not has_tokenizer:
            logger.warning(f"{repo_id} has no tokenizer: model.push_to_hub({repo_id!r}, tokenizer=tokenizer) brings it too")
        config = json.loads(files["config.json"].read_text(encoding="utf-8"))
        name = (config.get("architectures") or [type(model).__name__])[0]
        facts = dict(revision=revision or "main", parameters=model.num_parameters(), has_tokenizer=has_tokenizer)
        tags = [*(model.model_tags or ()), *(tags or ())]
        if "README.md" in published:
            file = api.hf_hub_download(repo_id, "README.md", revision=info.sha)
            card = _updated_card(Path(file).read_text(encoding="utf-8"), name, repo_id, tags, facts)
        else:
            card = new_card(name, repo_id, **facts, metadata={"tags": tags})
        stale = stale_weights(published, files)
        if stale:
            logger.warning(f"removed from {repo_id}, since they are not of this model: {', '.join(stale)}")
        operations = [CommitOperationDelete(path_in_repo=name, is_folder=False) for name in stale]
        operations += [CommitOperationAdd(path_in_repo=name, path_or_fileobj=str(file)) for name, file in files.items()]
        if card is not None:
            operations.append(CommitOperationAdd(path_in_repo="README.md", path_or_fileobj=card.encode()))
        return api.create_commit(
            repo_id,
            operations,
            commit_message=commit_message or "Upload model",
            commit_description=commit_description,
            revision=revision,
            create_pr=create_pr,
            # The commit that was read: a push of somebody else in between is not undone.
            parent_commit=info.sha,
        )


def refuse_other_privacy(repo_id: str, is_private: bool, private: bool | None, argument: str):
    """Refuse to push to a repository that is private where a public one was asked for, or the other way round.

    Args:
        private (`bool`, *optional*): asked for by `argument`; None = either.
    """
    if private is not None and is_private != private:
        states = ("private", "public")
        raise ValueError(
            f"{repo_id} is there already and {states[private]}, and a push does not make it {states[not private]}: leave "
            f"{argument} out, or change it in the settings of the repository; nothing was sent"
        )


def is_automatic_card(text: str, name: str, *automatic_cards: str) -> bool:
    """True for a card without text of a person, whatever its title, metadata, numbers, repository and revision.

    Args:
        name (`str`): of the model's class.
        automatic_cards (`str`): further ones.
    """

    def words(card: str | ModelCard) -> str:
        text = card.text if isinstance(card, ModelCard) else ModelCard(card, ignore_metadata_errors=True).text
        return " ".join(re.sub(r"^(repo|revision) = .*$|^# .*$|\d[\d.,]*", "", text, flags=re.MULTILINE).split())

    facts = dict(revision="main", parameters=0, metadata={})
    first_cards = [new_card(name, "user/name", has_tokenizer=has_tokenizer, **facts) for has_tokenizer in (True, False)]
    template = ModelCard.from_template(ModelCardData(library_name="transformers"), model_description=AUTOMATIC)
    return words(text) in map(words, [template, *first_cards, *automatic_cards])


def _updated_card(text: str, name: str, repo_id: str, tags: list[str], facts: dict[str, Any]) -> str | None:
    """The README.md to push in place of the one on the Hub, or None where that stays as it is."""
    old = ModelCard(text, ignore_metadata_errors=True)
    old_tags = old.data.tags or []
    merged_tags = [*dict.fromkeys([*old_tags, *tags])]
    if is_automatic_card(text, name):
        return new_card(name, repo_id, **facts, metadata=old.data.to_dict() | {"tags": merged_tags})
    if {*tags} <= {*old_tags}:
        return None
    old.data.tags = merged_tags
    return str(old)


def new_card(
    name: str, repo_id: str, *, revision: str, parameters: int, has_tokenizer: bool, metadata: dict[str, Any]
) -> str:
    """The model card of a repository that has none: no more than is known of any model.

    Args:
        name (`str`): of the model's class.
        metadata (`dict[str, Any]`): of the card, beside the usual ones or instead of them; tags are added.
    """
    head = next((head for head in HEADS.values() if head.model_class == name), HEADS["base"])
    # A head without an Auto class of its own is loaded as the encoder that it has trained.
    auto = head.auto_class or "AutoModel"
    title = repo_id.rpartition("/")[2]
    defaults = dict(library_name="transformers", pipeline_tag=head.pipeline_tag if head.model_class == name else None)
    tags = [*dict.fromkeys(["deberta", "hf_deberta_ext", *(metadata.get("tags") or ())])]
    data = ModelCardData(**defaults | metadata | {"tags": tags})
    return CARD.format(
        metadata=data.to_yaml(),
        title=title,
        noun=head.description,
        name=name,
        parameters=parameters / 1e6,
        imports=f"{auto}, AutoTokenizer" if has_tokenizer else auto,
        auto=auto,
        repo_id=repo_id,
        revision=revision,
        tokenizer=LOAD_TOKENIZER if has_tokenizer else "",
    )
