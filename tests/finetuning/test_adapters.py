# SPDX-License-Identifier: Apache-2.0
"""peft's adapters on a base without the head: all that is new is saved with them, or a line refuses the training.

transformers' DeBERTa saves the classifier of an adapter, but not the new pooler before it, without a word.
"""

import copy
import re
from typing import NamedTuple

import pytest
import torch
from tiny_models import TINY

from hf_deberta_ext import (
    DebertaExtConfig,
    DebertaExtForEntityScoring,
    DebertaExtForMaskedLM,
    DebertaExtForMultipleChoice,
    DebertaExtForQuestionAnswering,
    DebertaExtForReplacedTokenDetection,
    DebertaExtForSequenceClassification,
    DebertaExtForTokenClassification,
    DebertaExtModel,
)
from hf_deberta_ext.finetuning.arguments import ModelArguments
from hf_deberta_ext.finetuning.models import add_adapters

peft = pytest.importorskip("peft", reason="peft is in the extra `test`")

IDS = torch.randint(5, TINY["vocab_size"], (2, 12), generator=torch.Generator().manual_seed(1))
ROWS = torch.tensor([0, 1])
TOKENS = dict(input_ids=IDS, labels=IDS % 2)
ENTITIES = dict(input_ids=IDS, entity_indices=torch.tensor([[[1, 2], [3, 0]]] * 2), labels=torch.tensor([[1, 0]] * 2))


class Case(NamedTuple):
    """A head: its inputs, peft's name of its task, and what becomes of its new weights with each of `METHODS`."""

    model_class: type
    batch: dict
    task: str | None
    outcomes: str
    fields: dict = {}  # noqa: RUF012


# In the order of METHODS; "-" = peft itself has no such adapter for it.
HEADS = {
    "text": Case(
        DebertaExtForSequenceClassification, dict(input_ids=IDS, labels=ROWS), "SEQ_CLS",
        "saved  saved  refused  refused  refused  refused",
    ),
    "choice": Case(
        DebertaExtForMultipleChoice, dict(input_ids=IDS.view(2, 2, 6), labels=ROWS), None,
        "refused  refused  refused  refused  -  -",
    ),
    "tokens": Case(DebertaExtForTokenClassification, TOKENS, "TOKEN_CLS", "saved  saved  -  saved  -  -"),
    "tokens, dense": Case(
        DebertaExtForTokenClassification, TOKENS, "TOKEN_CLS", "saved  saved  -  saved  -  -", dict(classifier_act="gelu")
    ),
    "span": Case(
        DebertaExtForQuestionAnswering, dict(input_ids=IDS, start_positions=ROWS, end_positions=ROWS + 2), "QUESTION_ANS",
        "saved  saved  -  saved  saved  saved",
    ),
    "entities": Case(DebertaExtForEntityScoring, ENTITIES, None, "refused  refused  -  refused  -  -"),
    "entities, as tokens": Case(
        DebertaExtForEntityScoring, ENTITIES, "TOKEN_CLS", "saved  saved  -  saved  refused  refused"
    ),
    "words": Case(
        DebertaExtForMaskedLM, dict(input_ids=IDS, labels=IDS), None, "refused  refused  refused  refused  -  -"
    ),
    "replaced": Case(
        DebertaExtForReplacedTokenDetection, TOKENS, None, "refused  refused  refused  refused  -  -"
    ),
}  # fmt: skip
# What peft takes for deberta-v2, whose names ours are.
QUERIES = dict(target_modules=["query_proj", "value_proj"])
IA3 = dict(target_modules=["key_proj", "value_proj", "output.dense"], feedforward_modules=["output.dense"])
DENSE = dict(target_modules=["query_proj", "key_proj", "value_proj", "dense"])
METHODS = {
    "LoRA": lambda **options: peft.LoraConfig(r=4, **(QUERIES | options)),
    "IA3": lambda **options: peft.IA3Config(**IA3, **options),
    "LoRA, all linear": lambda **options: peft.LoraConfig(r=4, target_modules="all-linear", **options),
    "AdaLoRA": lambda **options: peft.AdaLoraConfig(total_step=10, **DENSE, **options),
    "prompt": lambda **options: peft.PromptTuningConfig(num_virtual_tokens=3, **options),
    "p-tuning": lambda **options: peft.PromptEncoderConfig(num_virtual_tokens=3, encoder_hidden_size=16, **options),
}
TABLE = {
    (head, method): outcome
    for head, case in HEADS.items()
    for method, outcome in zip(METHODS, case.outcomes.split(), strict=True)
    if outcome != "-"
}


@pytest.fixture(scope="module")
def body(tmp_path_factory):
    """The folder of an encoder without a head."""
    folder = tmp_path_factory.mktemp("body")
    torch.manual_seed(0)
    DebertaExtModel(DebertaExtConfig(**TINY)).save_pretrained(folder)
    return folder


def load(case: Case, folder, seed: int):
    """The model from its folder; what that lacks is drawn from the seed."""
    torch.manual_seed(seed)
    model = case.model_class.from_pretrained(folder, **case.fields)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def train(model, batch: dict, steps=3):
    model.train()
    optimizer = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    return model.eval()


def logits(model, batch: dict) -> torch.Tensor:
    inputs = {name: value for name, value in batch.items() if name not in ("labels", "start_positions", "end_positions")}
    with torch.no_grad():
        return model(**inputs).to_tuple()[0]


def assert_survives(model, case: Case, base, folder, name="default"):
    """The adapter, saved and put on its base that is loaded once more, gives the logits of the trained model."""
    expected = logits(model, case.batch)
    model.save_pretrained(folder)
    again = peft.PeftModel.from_pretrained(load(case, base, seed=2), folder if name == "default" else folder / name).eval()
    assert torch.allclose(logits(again, case.batch), expected, atol=1e-6)


def options_of(message: str) -> dict:
    """Options of an adapter's configuration that a refusal asks for."""
    options = {"modules_to_save": re.findall(r"[\w.]+", re.search(r"modules_to_save=\[(.*)\]", message)[1])}
    if task := re.search(r"task_type='(\w+)'", message):
        options["task_type"] = task[1]
    elif "no task_type" in message:
        options["task_type"] = None
    return options


@pytest.mark.parametrize(("head", "method"), TABLE, ids=lambda name: name.replace(", ", " "))
def test_new_weights_are_saved_with_an_adapter_or_its_training_is_refused(head, method, body, tmp_path):
    """A new pooler was neither trained nor saved: the logits of the adapter, loaded again, had a relative error of 1."""
    case, options = HEADS[head], {"task_type": HEADS[head].task}
    model = peft.get_peft_model(load(case, body, seed=1), METHODS[method](**options))
    if TABLE[head, method] == "refused":
        with pytest.raises(ValueError, match="are new, and the adapter would neither train nor save them") as error:
            train(model, case.batch)
        options |= options_of(str(error.value))
        model = peft.get_peft_model(load(case, body, seed=1), METHODS[method](**options))
    assert_survives(train(model, case.batch), case, body, tmp_path)


@pytest.mark.parametrize("head", ["text", "tokens", "span", "words"])
def test_each_of_two_adapters_has_a_head_of_its_own(head, body, tmp_path):
    """A second adapter without the first one's modules would be trained on the pooler of the base."""
    case, options = HEADS[head], {"task_type": HEADS[head].task}
    if head in ("text", "words"):
        model = peft.get_peft_model(load(case, body, seed=1), METHODS["LoRA"](task_type="SEQ_CLS" if case.task else None))
        model.add_adapter("second", METHODS["LoRA"](**options))
        model.set_adapter("second")
        with pytest.raises(ValueError, match="neither train nor save") as error:
            train(model, case.batch)
        options |= options_of(str(error.value))
    model = peft.get_peft_model(load(case, body, seed=1), METHODS["LoRA"](**options))
    model.add_adapter("second", METHODS["LoRA"](**options))
    train(model, case.batch)
    first = logits(model, case.batch)
    model.set_adapter("second")
    assert_survives(train(model, case.batch, steps=2), case, body, tmp_path / "both", "second")
    model.set_adapter("default")
    assert torch.equal(logits(model, case.batch), first)
    assert_survives(model, case, body, tmp_path / "both")


@pytest.mark.parametrize(
    ("head", "pipeline"),
    [
        ("text", "text-classification"),
        ("choice", "multiple-choice"),
        ("tokens", "token-classification"),
        ("tokens, dense", "token-classification"),
        ("span", "question-answering"),
    ],
)
def test_adapters_of_runs_hold_all_that_is_new(head, pipeline, body, tmp_path):
    """--lora of run_glue.py and the others. The dense layer of a token classifier, proj, ended in peft's TypeError: to it
    query_proj had that name as well."""
    case = HEADS[head]
    model = load(case, body, seed=1)
    new_weights = model.loading_report.initialised
    model = add_adapters(model, new_weights, ModelArguments(str(body), lora=True, lora_dropout=0.0), pipeline)
    assert_survives(train(model, case.batch), case, body, tmp_path)


@pytest.mark.parametrize("method", ["LoRA", "IA3", "prompt"])
def test_a_head_of_the_checkpoint_stays_as_it_is(method, body, tmp_path):
    """Nothing is added to what peft saves, and nothing refused."""
    case = HEADS["text"]
    load(case, body, seed=1).save_pretrained(tmp_path / "mine")
    model = peft.get_peft_model(load(case, tmp_path / "mine", seed=1), METHODS[method](task_type="SEQ_CLS"))
    assert {*model.peft_config["default"].modules_to_save} == {"classifier", "score"}
    assert_survives(train(model, case.batch), case, tmp_path / "mine", tmp_path / "adapter")


def test_a_model_merged_with_its_adapter_has_none(body):
    case = HEADS["text"]
    model = peft.get_peft_model(load(case, body, seed=1), METHODS["LoRA"](task_type="SEQ_CLS"))
    expected = logits(train(model, case.batch), case.batch)
    merged = copy.deepcopy(model).merge_and_unload()
    assert not hasattr(merged, "peft_config") and torch.allclose(logits(merged, case.batch), expected, atol=1e-5)
    # Frozen on purpose, with another part trained.
    merged.requires_grad_(False).classifier.requires_grad_(True)
    train(merged, case.batch)


def test_an_adapter_without_weights_that_its_base_lacks_too_is_warned_of(body, tmp_path, caplog):
    """Made on a folder with a head, or by transformers' class."""
    case = HEADS["text"]
    load(case, body, seed=1).save_pretrained(tmp_path / "mine")
    model = peft.get_peft_model(load(case, tmp_path / "mine", seed=1), METHODS["LoRA"](task_type="SEQ_CLS"))
    model.save_pretrained(tmp_path / "a")
    base = load(case, body, seed=2)
    peft.PeftModel.from_pretrained(base, tmp_path / "a")
    assert "the adapter has no weights for pooler, which the base lacks too" in caplog.text
