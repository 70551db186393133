# SPDX-License-Identifier: Apache-2.0
"""Test SiFT: the perturbation, the effect of the ascent, the state of the model afterwards, and every head and model."""

import dataclasses

import pytest
import torch
import transformers
from toy_task import CONFIGS

from hf_deberta_ext import DebertaExtForPreTraining, DebertaExtForSequenceClassification, DebertaExtModel
from hf_deberta_ext.sift import PRESETS, Sift, SiftOptions, embedding_norm
from hf_deberta_ext.sift.output_distance import divergence


def inputs_of(lengths=(7, 4), seed=0, **more):
    generator = torch.Generator().manual_seed(seed)
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(5, 32, mask.shape, generator=generator) * mask
    return {"input_ids": ids, "attention_mask": mask} | more


def noise(seed=0):
    return torch.Generator().manual_seed(seed)


def perturb(model, inputs, options=None, seed=0, **more):
    with Sift(model, options) as sift:
        with sift.clean_pass():
            outputs = model(**inputs)
        return outputs, sift(outputs, inputs, generator=noise(seed), **more)


@pytest.fixture
def classifier(tiny_config, shake):
    def build(train=False, dropout=0.0, **more):
        config = tiny_config("v3", num_labels=3, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, **more)
        torch.manual_seed(0)
        return shake(DebertaExtForSequenceClassification(config)).train(train)

    return build


def test_delta_is_added_to_the_normalised_sum_of_the_embeddings(classifier):
    model = classifier()
    inputs = inputs_of((5, 5), labels=torch.tensor([0, 2]))
    seen = []
    norm = model.deberta.embeddings.LayerNorm
    with Sift(model, SiftOptions(steps=0, init_size=0.3)) as sift:
        handle = norm.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach()))
        with sift.clean_pass():
            outputs = model(**inputs)
        result = sift(outputs, inputs, generator=noise())
        handle.remove()
    clean, perturbed = seen
    normalised = (clean - clean.mean(-1, keepdim=True)) / clean.var(-1, unbiased=False, keepdim=True).add(1e-7).sqrt()
    expected = (0.3 * torch.randn(clean.shape, generator=noise())).clamp(-0.6, 0.6)
    torch.testing.assert_close(perturbed - normalised, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(result.delta, expected)
    assert result.size.item() == pytest.approx(expected.square().mean().sqrt().item())


def test_one_step_is_the_gradient_over_its_norm_and_the_ball_cuts_it(classifier):
    model, inputs = classifier(), inputs_of((6, 6))
    steps = {}
    for norm in ("linf", "rms", "sequence_rms"):
        options = SiftOptions(norm=norm, learning_rate=0.2, init_size=0.01, projection="none")
        start = perturb(model, inputs, dataclasses.replace(options, steps=0))[1].delta
        steps[norm] = perturb(model, inputs, options)[1].delta - start
    assert torch.allclose(steps["linf"].abs().amax(-1), torch.tensor(0.2), atol=1e-5)
    assert torch.allclose(steps["rms"].square().mean(-1).sqrt(), torch.tensor(0.2), atol=1e-5)
    assert torch.allclose(steps["sequence_rms"].square().mean((1, 2)).sqrt(), torch.tensor(0.2), atol=1e-5)
    # Each token has the direction of its gradient, up to the size.
    cosines = torch.cosine_similarity(steps["linf"], steps["rms"], dim=-1)
    assert torch.allclose(cosines, torch.tensor(1.0), atol=1e-4)
    for norm, sizes in {"rms": lambda x: x.square().mean(-1).sqrt(), "linf": lambda x: x.abs().amax(-1)}.items():
        delta = perturb(model, inputs, SiftOptions(norm=norm, learning_rate=0.2, radius=0.05, projection="ball"))[1].delta
        assert torch.allclose(sizes(delta), torch.tensor(0.05), atol=1e-5)
    clamped = perturb(model, inputs, SiftOptions(learning_rate=0.2, radius=0.05, projection="clamp"))[1].delta
    assert clamped.abs().max().item() == pytest.approx(0.05) and (clamped.abs() < 0.049).any()


@pytest.mark.parametrize("form", ["virtual", "adversarial"])
def test_the_ascent_changes_the_outputs_more_than_noise_of_the_same_size(classifier, form):
    model = classifier()
    inputs = inputs_of((9, 5, 7), labels=torch.tensor([0, 1, 2]))
    options = SiftOptions(form=form, learning_rate=0.1, radius=0.1, init_size=0.01)
    _, ascended = perturb(model, inputs, options)
    clean = model(**inputs).loss.item() if form == "adversarial" else 0.0
    for seed in range(5):
        _, random = perturb(model, inputs, SiftOptions(form=form, steps=0, init_size=0.11), seed=seed)
        assert random.size.item() == pytest.approx(ascended.size.item(), rel=0.2)
        assert ascended.loss.item() - clean > 3 * (random.loss.item() - clean)
    _, more = perturb(model, inputs, dataclasses.replace(options, steps=3, learning_rate=0.05))
    assert more.loss.item() > ascended.loss.item() and more.size.item() <= 0.1 + 1e-6


def test_the_official_preset_is_mostly_noise_and_its_step_vanishes_with_the_gradient(classifier):
    """Compare with DeBERTa/sift/sift.py: delta + eps * grad / (1e-6 + max |grad| of the token)."""
    model, inputs = classifier().double(), inputs_of((9, 5, 7))
    official = dataclasses.replace(PRESETS["official"], same_dropout=True)
    _, ascended = perturb(model, inputs, official)
    _, noise_alone = perturb(model, inputs, dataclasses.replace(official, steps=0))
    full = perturb(model, inputs, dataclasses.replace(official, gradient_eps=0.0))[1].delta - noise_alone.delta
    step = ascended.delta - noise_alone.delta
    with Sift(model, official) as sift:
        with sift.clean_pass():
            outputs = model(**inputs)
        delta = noise_alone.delta.clone().requires_grad_()
        with sift.perturbed(delta):
            changes = divergence(outputs, model(**inputs), inputs, model.config, official.loss)[0]
    (gradient,) = torch.autograd.grad(changes.sum(), delta)
    largest = gradient.abs().amax(-1, keepdim=True)
    real = largest[..., 0] > 0
    torch.testing.assert_close(step[real], (1e-4 * gradient / (1e-6 + largest))[real], rtol=1e-6, atol=1e-14)
    assert full.abs().max().item() == pytest.approx(1e-4, rel=1e-6) and step.abs().max() < full.abs().max()
    assert ascended.loss.item() == pytest.approx(noise_alone.loss.item(), rel=1e-3)


def test_dropout_noise_of_the_passes_is_one_and_the_loop_draws_what_it_would_without_sift(classifier):
    model = classifier(train=True, dropout=0.3)
    inputs = inputs_of(labels=torch.tensor([0, 2]))
    torch.manual_seed(5)
    plain, following = model(**inputs).loss, torch.rand(3)
    for steps in (0, 2):
        torch.manual_seed(5)
        options = SiftOptions(steps=steps, init_size=1e-9, learning_rate=0.0, radius=1e-9)
        outputs, result = perturb(model, inputs, options)
        assert outputs.loss.item() == plain.item()
        assert torch.equal(torch.rand(3), following)
        # A negligible perturbation, so that equal dropout gives equal outputs.
        assert result.change.item() < 1e-5 and result.loss.item() < 1e-9
    torch.manual_seed(5)
    _, other = perturb(model, inputs, dataclasses.replace(options, same_dropout=False))
    assert other.change.item() > 1e-3
    assert not torch.equal(torch.rand(3), following)


def test_no_parameter_gets_a_gradient_from_the_ascent_and_nothing_is_left_behind(classifier):
    model = classifier(train=True, dropout=0.1)
    learning = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    inputs = inputs_of(labels=torch.tensor([0, 2]))
    sift = Sift(model, SiftOptions(steps=3))
    with sift:
        with sift.clean_pass():
            outputs = model(**inputs)
        result = sift(outputs, inputs)
        assert all(parameter.grad is None for parameter in model.parameters())
        assert not result.delta.requires_grad
        result.loss.backward()
        assert sift._delta is None and sift._seen is None
        with torch.no_grad():
            model(**inputs)
        assert sift._seen is None
    assert not model.deberta.embeddings.LayerNorm._forward_pre_hooks
    assert {name for name, parameter in model.named_parameters() if parameter.requires_grad} == learning
    # The adversarial loss trains all parameters, including the embeddings.
    assert {name for name in learning if model.get_parameter(name).grad is None} == set()
    assert model.deberta.embeddings.word_embeddings.weight.grad.any()


def test_detached_embeddings_learn_from_the_clean_pass_alone(classifier):
    inputs = inputs_of(labels=torch.tensor([0, 2]))
    gradients = []
    for detach in (False, True):
        model = classifier()
        options = SiftOptions(detach_embeddings=detach, loss="kl")
        perturb(model, inputs, options)[1].loss.backward()
        # In KL, the clean pass is a constant.
        gradients.append(model.deberta.embeddings.word_embeddings.weight.grad)
    assert gradients[0].any() and gradients[1] is None


@pytest.mark.parametrize("padded", [False, True], ids=["one-stream", "padded"])
def test_padding_counts_neither_in_the_perturbation_nor_in_the_loss(classifier, padded):
    """Check with and without removal of padding: a single row gives the same result as the row in a batch."""
    model = classifier()
    model.set_unpadding(not padded)
    inputs = inputs_of((8, 3))
    options = SiftOptions(norm="sequence_rms", steps=2, init_size=0.3, learning_rate=0.3, radius=0.3)

    def with_noise(rows):
        batch = {name: value[rows] for name, value in inputs.items()}
        # The same initial noise for each token at any position.
        tokens = (torch.randn(2, 8, 32, generator=noise(1)) * 0.3)[rows][batch["attention_mask"].bool()]
        with Sift(model, options) as sift:

            def first(inputs, generator, make=sift.first_delta):
                delta, real, places = make(inputs, generator)
                return torch.zeros_like(delta).masked_scatter(real.expand_as(delta), tokens), real, places

            sift.first_delta = first
            with sift.clean_pass():
                outputs = model(**batch)
            return sift(outputs, batch)

    both, short = with_noise([0, 1]), with_noise([1])
    expected = (2, 8, 32) if padded else (1, 11, 32)
    assert tuple(both.delta.shape) == expected
    tokens = both.delta[1, :3] if padded else both.delta[0, 8:]
    torch.testing.assert_close(tokens, short.delta[0, :3], atol=1e-5, rtol=1e-4)
    assert both.delta.square().sum() > 0 and (not padded or not both.delta[1, 3:].any())
    long = with_noise([0])
    assert both.loss.item() == pytest.approx((long.loss.item() + short.loss.item()) / 2, rel=1e-4)


def test_a_step_whose_gradient_is_not_finite_leaves_delta_as_it_is(classifier):
    model, inputs = classifier(), inputs_of((4, 4))
    with Sift(model, SiftOptions(projection="none")) as sift:
        with sift.clean_pass():
            model(**inputs)
        delta, real, rows = sift.first_delta(inputs, noise())
        gradient = torch.randn(delta.shape, generator=noise(1))
        gradient[0, 1] = torch.nan
        gradient[1] = 0
        moved = sift.ascend(delta, gradient, real, rows)
        assert torch.equal(moved[0, 1], delta[0, 1]) and torch.equal(moved[1], delta[1])
        assert torch.isfinite(moved).all() and not torch.equal(moved[0, 0], delta[0, 0])
        tiny = sift.ascend(delta, 1e-30 * gradient, real, rows)
        torch.testing.assert_close(tiny, moved)


CLASSIFIER = transformers.AutoModelForSequenceClassification
OF_TOKENS = torch.tensor([[-100, 0, 1, 2, 0, 1, -100], [-100, 1, 2, -100, -100, -100, -100]])
CLASSES = torch.tensor([[0.0, 1, 1], [1, 0, 0]])
SPANS = dict(start_positions=torch.tensor([1, 0]), end_positions=torch.tensor([3, 2]))
HEADS = {
    "classification": (CLASSIFIER, dict(num_labels=3), dict(labels=torch.tensor([0, 2]))),
    "regression": (CLASSIFIER, dict(num_labels=1), dict(labels=torch.tensor([0.5, 2.0]))),
    "multi-label": (CLASSIFIER, dict(num_labels=3, problem_type="multi_label_classification"), dict(labels=CLASSES)),
    "tokens": (transformers.AutoModelForTokenClassification, dict(num_labels=3), dict(labels=OF_TOKENS)),
    "answers": (transformers.AutoModelForQuestionAnswering, dict(num_labels=2), SPANS),
    "choices": (transformers.AutoModelForMultipleChoice, {}, dict(labels=torch.tensor([1]))),
}


@pytest.mark.parametrize("form", ["virtual", "adversarial"])
@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("family", ["ours", "bert", "albert", "electra"])
def test_every_head_of_every_family(family, kind, form):
    auto_class, more, labels = HEADS[kind]
    config = CONFIGS[family]()
    config = type(config).from_dict(config.to_dict() | more)
    torch.manual_seed(0)
    model = auto_class.from_config(config).train()
    inputs = inputs_of() | labels
    if kind == "choices":
        inputs |= {name: inputs[name][None] for name in ("input_ids", "attention_mask")}
    options = SiftOptions(form=form, init_size=0.05, learning_rate=0.2, radius=0.2)
    # Both with the same dropout.
    torch.manual_seed(1)
    _, result = perturb(model, inputs, options)
    torch.manual_seed(1)
    _, random = perturb(model, inputs, dataclasses.replace(options, steps=0))
    assert result.loss.dim() == 0 and torch.isfinite(result.loss) and result.loss > random.loss
    assert torch.isfinite(result.change) and result.change > 0 and result.size > 0
    result.loss.backward()
    assert torch.isfinite(next(model.parameters()).grad).all()


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "albert", "v2", "distilbert"])
def test_the_norm_over_the_embeddings_is_found(family):
    small = transformers.DistilBertConfig(vocab_size=32, dim=32, n_layers=2, n_heads=4, hidden_dim=48)
    model = CLASSIFIER.from_config(small if family == "distilbert" else CONFIGS[family]())
    name, module = embedding_norm(model)
    assert name.endswith("embeddings.LayerNorm") and module is model.get_submodule(name)
    assert embedding_norm(model, "embeddings.LayerNorm") == (name, module)


def test_embeddings_in_place_of_ids_and_masks_of_pairs(classifier):
    model = classifier()
    ids = inputs_of((6, 4))
    embedded = model.get_input_embeddings()(ids["input_ids"]).detach()
    by_ids = perturb(model, ids)[1]
    by_embeddings = perturb(model, {"inputs_embeds": embedded, "attention_mask": ids["attention_mask"]})[1]
    torch.testing.assert_close(by_ids.loss, by_embeddings.loss)
    model.set_unpadding(False)
    mask = ids["attention_mask"]
    pairs = mask[:, :, None] * mask[:, None, :]
    of_pairs = perturb(model, {"input_ids": ids["input_ids"], "attention_mask": pairs})[1]
    of_tokens = perturb(model, ids)[1]
    torch.testing.assert_close(of_pairs.loss, of_tokens.loss)


def test_options_out_of_range_and_models_whose_norm_is_not_found_or_not_unique_are_refused(tiny_config):
    for wrong, message in (
        (dict(norm="l2"), "norm must be one of linf, rms, sequence_rms, got 'l2'"),
        (dict(learning_rate=-1.0), "learning_rate must be 0 or a positive number, got -1.0"),
        (dict(init_size=float("nan")), "init_size must be 0 or a positive number, got nan"),
        (dict(init_size=0.0), "init_size must be positive with form='virtual', got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            SiftOptions(**wrong)
    stock = CLASSIFIER.from_config(transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=64))
    joint = DebertaExtForPreTraining(tiny_config(generator=dict(num_hidden_layers=1)))
    for model, name, message in (
        (stock, None, r"one LayerNorm over its embeddings in GPT2.*, got 0; .*Names: transformer\.h\.0\.ln_1"),
        (DebertaExtModel(tiny_config()), "norm_of_all", "one LayerNorm named 'norm_of_all' in DebertaExtModel, got 0"),
        (joint, None, r"one LayerNorm over its embeddings in .*, got 2; .*generator"),
    ):
        with pytest.raises(ValueError, match=message):
            Sift(model, layer_norm=name)
    assert Sift(joint, layer_norm="generator.deberta.embeddings.LayerNorm").layer_norm.startswith("generator")


def test_a_loop_that_forgets_a_part_and_a_norm_that_does_not_see_tokens_are_named(classifier):
    model, inputs = classifier(), inputs_of()
    sift, outputs = Sift(model), model(**inputs)
    with pytest.raises(RuntimeError, match="must be called inside `with sift:`"):
        sift(outputs, inputs)
    with sift:
        with sift.clean_pass():
            outputs = model(**inputs)
        sift(outputs, inputs)
        with pytest.raises(RuntimeError, match="must be called inside `with sift:`"):
            sift(outputs, inputs)
        with sift.clean_pass():
            outputs = model(**inputs)
        sift._seen = (torch.Size((2, 9, 32)), *sift._seen[1:])
        with pytest.raises(ValueError, match=r"each token of the mask \[2, 7\], got shape \[2, 9, 32\]"):
            sift(outputs, inputs)
