# SPDX-License-Identifier: Apache-2.0
"""peft adapters on a base model without the head: new weights are saved with the adapter, or training raises an error. LoRA
on all backends.

transformers' DeBERTa saves the classifier with an adapter, but silently drops the new pooler before it.
"""

import re

import peft
import pytest
import torch
from backends import NAMES as BACKENDS
from every_head import CLASSES, call_of
from tiny_models import TINY

from hf_deberta_ext import DebertaExtConfig, DebertaExtModel
from hf_deberta_ext.finetuning.arguments import ModelArguments
from hf_deberta_ext.finetuning.models import add_adapters

# peft's task type of a head, and the outcome for its new weights with each of METHODS, in this order; "-" = peft has no such
# adapter for this task.
HEADS = {
    "sequence-classification": ("SEQ_CLS", "saved saved refused refused refused refused"),
    "multiple-choice": (None, "refused refused refused refused - -"),
    "token-classification": ("TOKEN_CLS", "saved saved - saved - -"),
    "question-answering": ("QUESTION_ANS", "saved saved - saved saved saved"),
    "entity-scoring": (None, "refused refused - refused - -"),
    "masked-lm": (None, "refused refused refused refused - -"),
    "replaced-token-detection": (None, "refused refused refused refused - -"),
}
TEXT = "sequence-classification"
# peft's default for deberta-v2, which has the same names of layers.
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
TABLE = [
    (head, method, outcome)
    for head, (_, outcomes) in HEADS.items()
    for method, outcome in zip(METHODS, outcomes.split(), strict=True)
    if outcome != "-"
]


@pytest.fixture(scope="module")
def body(tmp_path_factory):
    """Save an encoder without a head; return its folder."""
    folder = tmp_path_factory.mktemp("body")
    torch.manual_seed(0)
    DebertaExtModel(DebertaExtConfig(**TINY)).save_pretrained(folder)
    return folder


def load(head, folder, seed=1, **fields):
    """Load the model from its folder; missing weights are initialised from the seed."""
    torch.manual_seed(seed)
    model = CLASSES[head].from_pretrained(folder, **fields)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def train(model, head, steps=3):
    model.train()
    optimizer = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        model(**call_of(head)).loss.backward()
        optimizer.step()
    return model.eval()


def logits(model, head):
    inputs = {name: value for name, value in call_of(head).items() if not name.endswith(("labels", "positions"))}
    with torch.no_grad():
        return model(**inputs).to_tuple()[0]


def assert_survives(model, head, base, folder, name="default", **fields):
    """Check that the saved adapter on a reloaded base gives the logits of the trained model."""
    expected = logits(model, head)
    model.save_pretrained(folder)
    base = load(head, base, seed=2, **fields)
    again = peft.PeftModel.from_pretrained(base, folder if name == "default" else folder / name).eval()
    assert torch.allclose(logits(again, head), expected, atol=1e-6)


def options_of(message):
    """Return the adapter options that the error message asks for."""
    options = {"modules_to_save": re.findall(r"[\w.]+", re.search(r"modules_to_save=\[(.*)\]", message)[1])}
    if task := re.search(r"task_type='(\w+)'", message):
        options["task_type"] = task[1]
    elif "task_type=None" in message:
        options["task_type"] = None
    return options


@pytest.mark.parametrize(("head", "method", "outcome"), TABLE)
def test_new_weights_are_saved_with_an_adapter_or_its_training_is_refused(head, method, outcome, body, tmp_path):
    """Bug: a new pooler was neither trained nor saved, and logits of the reloaded adapter had a relative error of 1."""
    options = {"task_type": HEADS[head][0]}
    model = peft.get_peft_model(load(head, body), METHODS[method](**options))
    if outcome == "refused":
        with pytest.raises(ValueError, match="the adapter would neither train nor save them") as error:
            train(model, head)
        options |= options_of(str(error.value))
        model = peft.get_peft_model(load(head, body), METHODS[method](**options))
    assert_survives(train(model, head), head, body, tmp_path)


@pytest.mark.parametrize("head", [TEXT, "token-classification", "masked-lm"])
def test_each_of_two_adapters_has_a_head_of_its_own(head, body, tmp_path):
    """Without its own modules to save, a second adapter would be trained on the pooler of the base."""
    options = {"task_type": HEADS[head][0]}
    if head != "token-classification":
        model = peft.get_peft_model(load(head, body), METHODS["LoRA"](**options))
        model.add_adapter("second", METHODS["LoRA"](**options))
        model.set_adapter("second")
        with pytest.raises(ValueError, match="neither train nor save") as error:
            train(model, head)
        options |= options_of(str(error.value))
    model = peft.get_peft_model(load(head, body), METHODS["LoRA"](**options))
    model.add_adapter("second", METHODS["LoRA"](**options))
    train(model, head)
    first = logits(model, head)
    model.set_adapter("second")
    assert_survives(train(model, head, steps=2), head, body, tmp_path / "both", "second")
    model.set_adapter("default")
    assert torch.equal(logits(model, head), first)
    assert_survives(model, head, body, tmp_path / "both")


@pytest.mark.parametrize(
    ("head", "pipeline", "fields"),
    [
        (TEXT, "text-classification", {}),
        ("multiple-choice", "multiple-choice", {}),
        ("token-classification", "token-classification", {}),
        ("token-classification", "token-classification", dict(classifier_act="gelu")),
        ("question-answering", "question-answering", {}),
    ],
)
def test_adapters_of_runs_hold_all_that_is_new(head, pipeline, fields, body, tmp_path):
    """Test --lora of all scripts. Bug: query_proj also matched `proj`, the dense layer of a token classifier."""
    model = load(head, body, **fields)
    new_weights = model.loading_report.initialised
    model = add_adapters(model, new_weights, ModelArguments(str(body), lora=True, lora_dropout=0.0), pipeline)
    assert_survives(train(model, head), head, body, tmp_path, **fields)


@pytest.mark.parametrize("method", ["LoRA", "IA3", "prompt"])
def test_a_head_of_the_checkpoint_stays_as_it_is(method, body, tmp_path, caplog):
    """peft saves what it would save anyway, and no error is raised; a base without the head gives a warning."""
    load(TEXT, body).save_pretrained(tmp_path / "mine")
    model = peft.get_peft_model(load(TEXT, tmp_path / "mine"), METHODS[method](task_type="SEQ_CLS"))
    assert {*model.peft_config["default"].modules_to_save} == {"classifier", "score"}
    assert_survives(train(model, TEXT), TEXT, tmp_path / "mine", tmp_path / "adapter")
    if method == "LoRA":
        peft.PeftModel.from_pretrained(load(TEXT, body, seed=2), tmp_path / "adapter")
        assert "neither the adapter nor the base model has weights for pooler" in caplog.text


@pytest.fixture
def adapted(tiny_config, shake):
    """adapted(kind, **fields): a classifier with adapters that change its output; only adapters and head are trained."""

    def build(kind="v3", **fields):
        config = METHODS["LoRA"](task_type="SEQ_CLS", modules_to_save=["classifier", "pooler"])
        model = peft.get_peft_model(shake(CLASSES[TEXT](tiny_config(kind, num_labels=3, **fields))), config).eval()
        # The second factor of an adapter is initialised to zero, the first one at random.
        generator = torch.Generator().manual_seed(0)
        for name, parameter in sorted(model.named_parameters()):
            if "lora_" in name:
                parameter.data.normal_(0, 0.3, generator=generator)
        return model

    return build


def test_adapters_change_the_output_of_every_backend_alike(adapted, batch, relative_error):
    """A backend that reads weights instead of calling modules would ignore the adapters."""
    model = adapted()
    ids, mask = batch(2, 40, [40, 23])
    states = {}
    for name in BACKENDS:
        model.base_model.model.set_attn_implementation(name)
        with torch.no_grad():
            states[name] = model.base_model.model.deberta(ids, attention_mask=mask).last_hidden_state
            with model.disable_adapter():
                plain = model.base_model.model.deberta(ids, attention_mask=mask).last_hidden_state
        assert {served for served, _ in model.base_model.model.attention_backends().values()} == {name}
        assert (states[name] - plain).norm() > 0.05 * plain.norm()
        assert relative_error("adapters, backends", states[name], states["eager"], mask.bool()) < 1e-5


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("kind", ["v1", "v3"])
def test_gradient_checkpointing_gives_adapters_the_same_gradients_on_every_backend(kind, name, adapted, batch):
    """The embeddings must require gradients; transformers' DeBERTa failed with an in-place change of a leaf."""
    ids, mask = batch(2, 20, [20, 11])
    grads = []
    for checkpointing in (False, True):
        model = adapted(kind, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1).train()
        model.base_model.model.set_attn_implementation(name)
        if checkpointing:
            checkpoint = getattr(model.base_model.model, "activation_checkpointing_enable", None)
            (checkpoint or model.gradient_checkpointing_enable)()
            model.enable_input_require_grads()
        torch.manual_seed(0)
        model(input_ids=ids, attention_mask=mask, labels=torch.tensor([2, 1])).loss.backward()
        grads.append({key: p.grad for key, p in model.named_parameters() if p.requires_grad})
    assert len(grads[0]) == 2 * 2 * 3 + 4 and grads[0].keys() == grads[1].keys()
    for key, grad in grads[0].items():
        assert grad.any(), key
        assert torch.allclose(grad, grads[1][key], rtol=1e-4, atol=1e-7), key
