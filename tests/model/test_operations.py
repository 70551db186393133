# SPDX-License-Identifier: Apache-2.0
"""Operations of models: supported by every device, without reading values, through calls of modules."""

import pytest
import torch
from every_head import HEADS, KINDS, NAMES, call_of, small, step
from watch import Watch

# Generator and discriminator select positions by labels, so shapes depend on the labels.
CHOOSING = {"masked-lm, masked_only", "pretraining"}
PLAIN = [head for head in HEADS if head not in CHOOSING and not head.startswith("sift")]
DROPOUT = dict(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head", PLAIN)
def test_no_value_is_read_and_no_shape_depends_on_one(head, kind, tiny_config):
    """Run forward, loss and backward with padding on the meta device, where reading a value raises an error."""
    model = small(head, kind, tiny_config, **DROPOUT).train().to("meta")
    arguments = {name: x.to("meta") for name, x in call_of(head).items()}
    tensors, gradients = step(head, model, arguments)
    assert gradients and all(x.is_meta for x in (*tensors.values(), *gradients.values()))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("head", PLAIN)
def test_nothing_is_computed_in_float64(head, name, tiny_config):
    """Check that models run on MPS, which has no float64."""
    model = small(head, KINDS[PLAIN.index(head) % 3], tiny_config, **DROPOUT).train()
    model.set_attn_implementation(name)
    model.set_unpadding(False)
    arguments = call_of(head)
    with Watch() as watch:
        outputs = model(**arguments)
        loss = outputs.get("loss")
        (outputs[0].square().mean() if loss is None else loss).backward()
    assert {backend for backend, _ in model.attention_backends().values()} == {name}
    assert len(watch.seen) > 100
    assert [function for function, dtype, *_ in watch.seen if dtype in (torch.float64, torch.complex128)] == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_hooks_of_every_module_fire_on_every_backend(kind, name, tiny_config):
    """Sharding, offloading and adapters depend on hooks, which miss a module whose weights are read without a call."""
    model = small("sequence-classification", kind, tiny_config)
    model.set_attn_implementation(name)
    own = {key: module for key, module in model.named_modules() if any(True for _ in module.parameters(recurse=False))}
    fired = set()
    for key, module in own.items():
        module.register_forward_pre_hook(lambda *_, key=key: fired.add(key))
    model(**call_of("sequence-classification")).loss.backward()
    # Only the decoder of masked language models reads absolute positions.
    silent = {key for key in own.keys() - fired if not key.endswith("position_embeddings")}
    assert silent == set() and len(fired) > 20
