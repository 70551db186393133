# SPDX-License-Identifier: Apache-2.0
"""The models of the vLLM plugin, without vLLM: a stub provides the metadata of a step."""

from types import SimpleNamespace

import pytest
import torch
import transformers
import vllm_stub

from hf_deberta_ext import DebertaExtForSequenceClassification, DebertaExtForTokenClassification

LENGTHS = [5, 1, 40, 17, 2]


@pytest.fixture
def stub(monkeypatch):
    return vllm_stub.install(monkeypatch)


def vllm_config(config, longest=64, tensor=1, pipeline=1, graphs="NONE", quantised=None, adapters=None):
    """A `VllmConfig` of a server without special options."""
    return SimpleNamespace(
        model_config=SimpleNamespace(
            hf_config=config, model="folder", max_model_len=longest, head_dtype=torch.float32, pooler_config=None
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=tensor, pipeline_parallel_size=pipeline),
        compilation_config=SimpleNamespace(cudagraph_mode=SimpleNamespace(name=graphs)),
        quant_config=quantised,
        lora_config=adapters,
    )


def step(stub, model, lengths):
    """Set the requests of the next step, through the builder that the runner would call."""
    ends = torch.tensor([0, *lengths]).cumsum(0)
    builder = model.boundaries.get_attn_backend().get_builder_cls()()
    metadata = builder.build(0, SimpleNamespace(query_start_loc_cpu=ends))
    stub.metadata = {stub.models.BOUNDARIES: metadata}
    return ends[:-1]


def served(stub, name, reference, **options):
    model = getattr(stub.models, name)(vllm_config=vllm_config(reference.config, **options)).eval()
    model.load_weights(reference.state_dict().items())
    return model


@pytest.fixture
def reference(stock_config, tiny_config, shake):
    """reference(kind): a model of transformers, or of this package, with random weights."""

    def build(kind):
        if kind == "types":
            fields = dict(type_vocab_size=2, position_biased_input=True, max_position_embeddings=128, num_labels=1)
            return shake(transformers.DebertaV2ForSequenceClassification(stock_config("v2", **fields)))
        builders = {
            "v1": lambda: transformers.DebertaForSequenceClassification(stock_config("v1", num_labels=3)),
            "v2": lambda: transformers.DebertaV2ForSequenceClassification(stock_config("v2", num_labels=1)),
            "v3": lambda: transformers.DebertaV2ForSequenceClassification(stock_config("v3", num_labels=3)),
            "ours": lambda: DebertaExtForSequenceClassification(tiny_config("v3", num_labels=3)),
            "tokens": lambda: transformers.DebertaV2ForTokenClassification(stock_config("v3", num_labels=5)),
            "tokens with a dense layer": lambda: DebertaExtForTokenClassification(tiny_config("v3", classifier_act="gelu")),
            "encoder": lambda: transformers.DebertaV2Model(stock_config("v3")),
        }
        return shake(builders[kind]())

    return build


def tokens(seed=0):
    return torch.randint(5, 63, (sum(LENGTHS),), generator=torch.Generator().manual_seed(seed))


def one_by_one(model, ids, **inputs):
    """The output of each document in its own call, [CLS]'s logits or the states of all tokens."""
    outputs = []
    for n, part in enumerate(ids.split(LENGTHS)):
        more = {name: value.split(LENGTHS)[n][None] for name, value in inputs.items()}
        with torch.no_grad():
            outputs.append(model(part[None], **more)[0])
    return outputs


@pytest.mark.parametrize("kind", ["v1", "v2", "v3", "ours", "types"])
def test_requests_of_a_step_get_the_logits_of_calls_one_by_one(stub, reference, relative_error, kind):
    theirs, ids = reference(kind), tokens()
    model = served(stub, "DebertaSequenceClassifier", theirs)
    types = dict(token_type_ids=(torch.arange(len(ids)) % 7 < 3).int()) if kind == "types" else {}
    firsts = step(stub, model, LENGTHS)
    with torch.no_grad():
        logits = model.pooler["classify"](model(ids, torch.arange(len(ids)), **types), firsts)
    expected = torch.cat(one_by_one(theirs, ids, **types))
    assert relative_error("served classifiers", logits, expected) < 3e-5
    # Fails if the boundaries of the requests are lost.
    step(stub, model, [len(ids)])
    with torch.no_grad():
        mixed = model.pooler["classify"](model(ids, torch.arange(len(ids)), **types), firsts)
    assert (mixed - expected).abs().max() > 1e-3


@pytest.mark.parametrize(
    "name, kind",
    [
        ("DebertaTokenClassifier", "tokens"),
        ("DebertaTokenClassifier", "tokens with a dense layer"),
        ("DebertaEmbedder", "encoder"),
    ],
)
def test_every_token_gets_the_output_of_a_call_with_its_document_only(stub, reference, relative_error, name, kind):
    theirs, ids = reference(kind), tokens()
    model = served(stub, name, theirs)
    step(stub, model, LENGTHS)
    with torch.no_grad():
        outputs = model(ids, torch.arange(len(ids)))
    assert relative_error("served tokens", outputs, torch.cat(one_by_one(theirs, ids), 1)[0]) < 1e-5


def test_tokens_without_a_request_are_documents_of_at_most_the_longest_input(stub, reference):
    model = served(stub, "DebertaSequenceClassifier", reference("types"), longest=16)
    assert model(torch.full((50,), 5), torch.arange(50)).shape == (50, model.config.hidden_size)
    step(stub, model, [3, 0, 4])
    assert stub.models.document_lengths(25, longest=16) == [3, 4, 16, 2]


@pytest.mark.parametrize(
    "changes, named",
    [
        (dict(tensor=2), "--tensor-parallel-size"),
        (dict(pipeline=2), "--pipeline-parallel-size"),
        (dict(quantised=object()), "--quantization"),
        (dict(adapters=object()), "--enable-lora"),
        (dict(graphs="FULL"), "--enforce-eager"),
        (dict(longest=100_000), "--max-model-len must be at most max_position_embeddings = "),
    ],
)
def test_an_option_that_is_not_supported_is_named_at_the_start(stub, reference, changes, named):
    with pytest.raises(ValueError, match=named):
        served(stub, "DebertaSequenceClassifier", reference("types"), **changes)


def test_a_checkpoint_without_the_head_is_refused(stub, reference):
    theirs = reference("v3")
    tensors = {name: tensor for name, tensor in theirs.state_dict().items() if not name.startswith("classifier.")}
    model = stub.models.DebertaSequenceClassifier(vllm_config=vllm_config(theirs.config))
    with pytest.raises(ValueError, match=r"folder lacks parameters: classifier\.bias, classifier\.weight"):
        model.load_weights(tensors.items())
