# SPDX-License-Identifier: Apache-2.0
"""Code in a model card that loads the model and tries it, from a folder or from a repository of the Hub."""

import posixpath
import re
from collections.abc import Sequence

from ..model.heads import HEADS

__all__ = ["AUTO_MODELS", "LOADING_LINES", "loading_code", "pin_loading_lines", "published_card", "sample_texts"]

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
PIPELINE = """from transformers import pipeline

{loading}
{name} = pipeline("{kind}", repo{options})
print({name}({inputs}))"""
# Kinds that have a pipeline: (name of the variable, options of the pipeline, its input).
PIPELINES = {
    "text-classification": ("classify", "", None),
    "token-classification": ("tag_words", ', aggregation_strategy="first"', '"She met Ann Lee in Paris."'),
    "fill-mask": ("fill_mask", "", '"Paris is the [MASK] of France."'),
}
MODEL = """{imports}
{loading}
model = {auto}.from_pretrained(repo{options})
tokenizer = AutoTokenizer.from_pretrained(repo{options})
{tried}"""
ALONE = """from transformers import {auto}

{loading}
model = {auto}.from_pretrained(repo{options})"""
ADAPTER = """{imports}
{loading}
base = "{base}"  # the path or Hub id of the model that was fine-tuned
base_revision = {base_revision}  # of the base on the Hub: a tag or commit
{base_model}
model = PeftModel.from_pretrained(model, repo, revision=revision).eval()
tokenizer = AutoTokenizer.from_pretrained({tokenizer})
{tried}"""
# The base with the adapter's configuration, which has the labels; or as it is, where the adapter has none.
BASE_WITH_CONFIG = """config = AutoConfig.from_pretrained(repo{options})
{model_class}options = dict(config=config, revision=base_revision, ignore_mismatched_sizes=True)
model = {auto}.from_pretrained(base, **options)"""
BASE_ALONE = "model = {auto}.from_pretrained(base, revision=base_revision{trust})"
# The code is that of the adapter's folder, at its revision: the base may have none.
MODEL_CLASS = """model_class = get_class_from_dynamic_module(config.auto_map["{auto}"], repo, revision=revision)
"""
# Inputs and outputs of models without a pipeline; the names are those of the variables above.
CLASSIFY = """inputs = tokenizer({inputs}, return_tensors="pt")
with torch.no_grad():
    logits = model(**inputs).logits[0]
print({answer})"""
ANSWER = """question, context = "Where did she sit?", "She sat on the bank of the river."
inputs = tokenizer(question, context, return_tensors="pt")
with torch.no_grad():
    outputs = model(**inputs)
# The best start and end, one by one: for long texts and questions without an answer, examples/run_squad.py --do_predict.
start, end = outputs.start_logits.argmax(), outputs.end_logits.argmax()
print(tokenizer.decode(inputs["input_ids"][0, start : end + 1]))"""
CHOOSE = """context, choices = "She sat on the bank of the river.", ["She had a loan.", "She had a fishing rod."]
inputs = tokenizer([context] * len(choices), choices, padding=True, return_tensors="pt")
with torch.no_grad():
    logits = model(**{name: values[None] for name, values in inputs.items()}).logits[0]
print(choices[logits.argmax()])"""
TAG = """inputs = tokenizer("She met Ann Lee in Paris.", return_tensors="pt")
with torch.no_grad():
    logits = model(**inputs).logits[0]
labels = [model.config.id2label[number] for number in logits.argmax(-1).tolist()]
print([*zip(tokenizer.convert_ids_to_tokens(inputs["input_ids"][0]), labels)])"""
FILL = """inputs = tokenizer("Paris is the [MASK] of France.", return_tensors="pt")
with torch.no_grad():
    logits = model(**inputs).logits[inputs["input_ids"] == tokenizer.mask_token_id]
print(tokenizer.decode(logits.argmax(-1)))"""
ENCODE = """inputs = tokenizer("A text.", return_tensors="pt")
with torch.no_grad():
    hidden_states = model(**inputs).last_hidden_state
print(hidden_states.shape)"""
# An encoder with another head or none, ready to be fine-tuned.
FINE_TUNE = """from transformers import AutoModelForSequenceClassification, AutoTokenizer

{loading}
# Or another AutoModelFor...: the head is new, and has to be fine-tuned.
model = AutoModelForSequenceClassification.from_pretrained(repo, num_labels=2{options})
tokenizer = AutoTokenizer.from_pretrained(repo{options})"""
JOINT = """from transformers import AutoModelForPreTraining, AutoTokenizer

{loading}
model = AutoModelForPreTraining.from_pretrained(repo{options})
tokenizer = AutoTokenizer.from_pretrained(repo{options})
# What to fine-tune and what fills masks; each is a model of its own, too: subfolder="discriminator", "generator".
discriminator, generator = model.export_discriminator(), model.export_generator()"""


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
    loading = LOADING_LINES.format(repo=repo)
    trust = ", trust_remote_code=True" if custom_code else ""
    options = f", revision=revision{trust}"
    if not tokenizer and adapter_base is None:
        auto = "AutoModelForPreTraining" if kind == "joint" else AUTO_MODELS.get(kind, "AutoModel")
        return ALONE.format(auto=auto, loading=loading, options=options)
    if kind in ("fine-tune", "joint"):
        return (FINE_TUNE if kind == "fine-tune" else JOINT).format(loading=loading, options=options)
    if kind in PIPELINES and adapter_base is None:
        name, extra, inputs = PIPELINES[kind]
        # All labels that hold, not the best alone.
        extra = ", top_k=None" if problem_type == "multi_label_classification" else extra
        if inputs is None:
            first, *pair = map(quoted, texts)
            inputs = f'{{"text": {first}, "text_pair": {pair[0]}}}' if pair else first
        return PIPELINE.format(kind=kind, loading=loading, name=name, options=options + extra, inputs=inputs)
    auto = AUTO_MODELS[kind]
    tried = {
        "text-classification": CLASSIFY.format(inputs=", ".join(map(quoted, texts)), answer=answer_code(problem_type)),
        "token-classification": TAG,
        "question-answering": ANSWER,
        "multiple-choice": CHOOSE,
        "fill-mask": FILL,
        "encoder": ENCODE,
    }[kind]
    if adapter_base is None:
        imports = f"import torch\nfrom transformers import {auto}, AutoTokenizer\n"
        return MODEL.format(imports=imports, loading=loading, auto=auto, options=options, tried=tried)
    revision = "None" if base_revision is None else f'"{base_revision}"'
    names, extra_imports = ["AutoConfig", "AutoTokenizer"], []
    if not own_config:
        names = [auto, "AutoTokenizer"]
        base_model = BASE_ALONE.format(auto=auto, trust=trust)
    elif custom_code:
        extra_imports = ["from transformers.dynamic_module_utils import get_class_from_dynamic_module"]
        model_class = MODEL_CLASS.format(auto=auto)
        base_model = BASE_WITH_CONFIG.format(auto="model_class", model_class=model_class, options=options)
    else:
        names.insert(1, auto)
        base_model = BASE_WITH_CONFIG.format(auto=auto, model_class="", options=options)
    imports = ["import torch", "from peft import PeftModel", f"from transformers import {', '.join(names)}"]
    return ADAPTER.format(
        imports="\n".join([*imports, *extra_imports, ""]), loading=loading, base=adapter_base, base_revision=revision,
        base_model=base_model, tokenizer=f"repo{options}" if tokenizer else f"base, revision=base_revision{trust}",
        tried=tried,
    )  # fmt: skip


def sample_texts(task: str | None, columns: Sequence[str]) -> Sequence[str]:
    """A text, or the two of a pair, that a text classifier is tried on.

    Args:
        columns (`list[str]`): of the task's texts.
    """
    texts = TEXTS.get(task) or TEXTS.get((*columns,))
    return texts or ("A text.", "Another text.")[: max(1, len(columns))]


def pin_loading_lines(text: str, repo_id: str, revision: str, *, pinned: bool = True) -> str:
    """A card whose code loads `repo_id` at `revision` (a tag or commit, or if not `pinned` a branch) instead of a folder."""
    lines = (PUBLISHED_LINES if pinned else UNPINNED_LINES).format(repo=repo_id, revision=revision)
    return REPO_LINES.sub(lambda _: lines, text)


def published_card(text: str, path: str, repo_id: str, revision: str, *, pinned: bool) -> str:
    """The card with the lines that load the model from the Hub.

    Args:
        path (`str`): of the card in the repository. Of the part of a joint model the folder is downloaded: some ways to
            load one (`pipeline`) take no folder of a repository.
        revision (`str`): a tag, or if not `pinned` a branch.
    """
    text = pin_loading_lines(text, repo_id, revision, pinned=pinned)
    part = posixpath.dirname(path)
    if not part:
        return text
    whole = (PUBLISHED_LINES if pinned else UNPINNED_LINES).format(repo=repo_id, revision=revision)
    note = "the line above pins weights and code" if pinned else "for good: the id of a commit, in the line above"
    return text.replace(whole, PART_LINES.format(repo=repo_id, revision=revision, part=part, note=note))


def answer_code(problem_type: str | None) -> str:
    return {
        "regression": "logits.item()",
        "multi_label_classification": "[model.config.id2label[n] for n, logit in enumerate(logits.tolist()) if logit > 0]",
    }.get(problem_type or "", "model.config.id2label[logits.argmax().item()]")


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
