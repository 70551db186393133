# SPDX-License-Identifier: Apache-2.0
"""One model called by several threads that call eval() first, like web services and CrossEncoder.predict."""

import os
import sys
import threading

import pytest
import torch
from backends import NAMES, NATIVE
from every_head import CLASSES, call_of, small
from stock_families import FAMILIES, stock_model

from hf_deberta_ext.replaced_attention import replace_attention

THREADS = 6
# Calls per test. When caches had several entries, about 1 of 100 calls failed.
CALLS = int(os.environ.get("DEBERTA_EXT_THREAD_CALLS") or 240)
LENGTHS = (5, 9, 14)
# Heads wide enough for the backend "native".
WIDE = dict(hidden_size=32)


@pytest.fixture(autouse=True)
def switching_after_every_instruction():
    """Switch threads a thousand times as often as by default."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def output_of(model, call):
    model.eval()
    with torch.no_grad():
        outputs = model(**call)
    return torch.cat([x.float().flatten() for x in outputs.to_tuple() if torch.is_tensor(x)])


def shortened(call, length):
    """Return the call with only the first tokens of each row, without labels of the other tokens."""
    ids, mask = call["input_ids"][..., :length], call["attention_mask"][..., :length]
    extra = {name: x for name, x in call.items() if name == "entity_indices"}
    return dict(input_ids=ids, attention_mask=mask) | extra


def check(model, call):
    """Compare the outputs of all threads with those of one, for inputs of different lengths."""
    whole = call["input_ids"].shape[-1]
    calls = [shortened(call, length) for length in ((whole,) if "entity_indices" in call else LENGTHS)]
    expected = [output_of(model, call) for call in calls]
    errors, wrong = [], []

    def work(thread):
        for turn in range(thread, CALLS, THREADS):
            index = turn % len(calls)
            try:
                output = output_of(model, calls[index])
            except Exception as error:
                errors.append(repr(error))
            else:
                if not torch.allclose(output, expected[index], rtol=1e-4, atol=1e-5):
                    wrong.append((output - expected[index]).abs().max().item())

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and not wrong, f"{CALLS} calls: {len(errors)} errors, {errors[:1]}, {len(wrong)} other values"


# Kinds take turns over heads, which all have the same attention with its caches.
@pytest.mark.parametrize(("head", "kind"), [(head, ("v1", "v3")[place % 2]) for place, head in enumerate(CLASSES)])
def test_heads_give_the_values_of_one_thread(head, kind, tiny_config, shake):
    fields = dict(generator={}, special_token_ids=[0]) if head == "pretraining" else {}
    model = shake(small(head, kind, tiny_config, **WIDE, **fields))
    if head == "pretraining":
        model.tie_weights()
        model = model.discriminator
    check(model, call_of(head))


@pytest.mark.parametrize("name", [*NAMES, NATIVE])
def test_backends_give_the_values_of_one_thread(name, tiny_config, shake):
    model = shake(small("base", "v2", tiny_config, **WIDE))
    model.set_attn_implementation(name)
    check(model, call_of("base"))


@pytest.mark.parametrize("family", FAMILIES)
def test_replaced_attention_gives_the_values_of_one_thread(family, stock_config, shake):
    model = shake(stock_model(family, stock_config))
    replace_attention(model)
    check(model, call_of("base"))
