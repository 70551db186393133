# SPDX-License-Identifier: Apache-2.0
"""Replaced token detection in one model: sampling, corruption, the four ways of sharing, and the flow of gradients."""

import copy
import pickle

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from rounding import equal_outputs
from tiny_constants import SHARING, SPECIAL
from torch.nn import functional
from transformers import AutoModelForPreTraining
from watch import Watch

from hf_deberta_ext import DebertaExtForMaskedLM, DebertaExtForPreTraining
from hf_deberta_ext.model.replaced_tokens_deberta_ext import GradientDisentangledEmbedding, sample_replacements


def gradients(model):
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def test_samples_follow_the_softmax_and_special_tokens_are_never_drawn():
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0, -1.0]]).repeat(200_000, 1)
    for temperature in (1.0, 2.0):
        drawn = sample_replacements(logits, [1], temperature, torch.Generator().manual_seed(0))
        shares = torch.bincount(drawn, minlength=5) / len(drawn)
        expected = (logits[0] / temperature).masked_fill(torch.tensor([False, True, False, False, False]), -torch.inf)
        assert shares[1] == 0
        # Five standard deviations.
        torch.testing.assert_close(shares, expected.softmax(0), atol=5 * (0.25 / len(drawn)) ** 0.5, rtol=0)


def test_samples_of_hand_made_random_numbers(monkeypatch):
    """Test P = 1/8, 1/8, 1/2, 1/4, with the distribution function 0.125, 0.25, 0.75, 1."""

    def drawn(places, logits, special=()):
        column = torch.tensor(places, dtype=torch.float64)[:, None]
        monkeypatch.setattr(torch, "rand", lambda *size, **options: column)
        return sample_replacements(logits.repeat(len(places), 1), [*special]).tolist()

    logits = torch.tensor([1.0, 1.0, 4.0, 2.0]).log()
    assert drawn([0.0, 0.12, 0.13, 0.26, 0.74, 0.76], logits) == [0, 0, 1, 2, 2, 3]
    # Without the first, P = 1/7, 4/7, 2/7.
    assert drawn([0.0, 0.12, 0.13, 0.26, 0.74, 0.76], logits, [0]) == [1, 1, 1, 2, 3, 3]
    # With odds of 1 to e^16, which truncated noise would never draw.
    assert drawn([1 - 1e-6, 1 - 1e-8], torch.tensor([16.0, 0.0])) == [0, 1]
    # The largest random number draws the last token that may be drawn.
    logits = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert drawn([1 - 2**-53], logits, [997, 998, 999]) == [996]
    # NaN logits still give a valid id, so that the loss is NaN instead of an index error.
    assert 0 <= drawn([0.5], torch.full((10,), torch.nan), [0])[0] < 10


def test_samples_do_not_depend_on_how_many_are_drawn_at_a_time_nor_on_the_dtype(monkeypatch):
    logits = torch.randn(300, 64, generator=torch.Generator().manual_seed(1)).bfloat16()

    def draw(logits):
        return sample_replacements(logits, SPECIAL, random_generator=torch.Generator().manual_seed(2))

    whole = draw(logits)
    assert len({*whole.tolist()}) > 10 and torch.equal(draw(logits.float()), whole)
    monkeypatch.setattr("hf_deberta_ext.model.replaced_tokens_deberta_ext.CHUNK", 64 * 7)
    assert torch.equal(draw(logits), whole) and draw(logits[:0]).shape == (0,)


def test_only_selected_positions_change_lucky_samples_count_as_original_and_special_tokens_by_flag(joint, masked):
    model, (batch, original) = joint(), masked
    selected = batch["labels"] != -100
    n = int(selected.sum())
    logits = torch.full((n, 64), -50.0)
    wanted = torch.arange(n) % 7 + 20
    # The first and the last sample are the original token.
    wanted[0], wanted[-1] = batch["labels"][selected][0], batch["labels"][selected][-1]
    logits[torch.arange(n), wanted] = 50.0
    corrupted, replaced = model.corrupt(batch["input_ids"], batch["labels"], logits, batch["attention_mask"])
    assert torch.equal(corrupted[selected], wanted) and torch.equal(corrupted[~selected], original[~selected])
    counted = batch["attention_mask"] != 0
    assert torch.equal(replaced == -100, ~counted)
    assert torch.equal(replaced[counted] == 1, (corrupted != original)[counted])
    assert replaced[selected][0] == 0 and replaced[selected][-1] == 0 and replaced.clamp(min=0).sum() >= n - 4
    labels = joint(rtd_special_tokens=False)(**batch).discriminator_labels
    special = torch.isin(original, torch.tensor(SPECIAL))
    assert torch.equal(labels == -100, special | (batch["attention_mask"] == 0)) and special.sum() > 5
    assert (joint()(**batch).discriminator_labels == -100).sum() == (batch["attention_mask"] == 0).sum()


def test_losses_are_those_of_both_halves_their_weighted_sum_and_zero_without_a_selected_position(joint, masked):
    batch, original = masked
    model = joint(rtd_lambda=7.0)
    outputs = model(**batch, random_generator=torch.Generator().manual_seed(0))
    generator, discriminator = model.export_generator(), model.export_discriminator()
    expected = generator(**batch, masked_only=True)
    torch.testing.assert_close(outputs.generator_loss, expected.loss)
    torch.testing.assert_close(outputs.generator_logits, expected.logits)
    judged = discriminator(outputs.corrupted_ids, batch["attention_mask"], labels=outputs.discriminator_labels)
    torch.testing.assert_close(outputs.discriminator_loss, judged.loss)
    counted = batch["attention_mask"] != 0
    labels = outputs.discriminator_labels[counted].float()
    by_hand = functional.binary_cross_entropy_with_logits(outputs.discriminator_logits[counted], labels)
    torch.testing.assert_close(outputs.discriminator_loss, by_hand)
    torch.testing.assert_close(outputs.loss, outputs.generator_loss + 7 * outputs.discriminator_loss)
    assert outputs.generator_logits.shape == (15, 64) and outputs.discriminator_logits.shape == (3, 16)
    outputs = joint().train()(original, batch["attention_mask"], labels=torch.full_like(original, -100))
    outputs.loss.backward()
    assert outputs.generator_loss == 0 and torch.equal(outputs.corrupted_ids, original)
    assert not outputs.discriminator_labels.clamp(min=0).any() and outputs.discriminator_loss > 0


@pytest.mark.parametrize("positions", [False, True], ids=["emd", "positions_in_the_input"])
def test_gdes_sends_each_loss_to_its_own_table_also_after_reloading_and_another_step(positions, joint, masked, tmp_path):
    batch, _ = masked
    model = joint(position_biased_input=positions).train()
    tables = ["word_embeddings"] + ["position_embeddings"] * positions
    theirs = {f"generator.deberta.embeddings.{name}.weight" for name in tables}
    deltas = {f"discriminator.deberta.embeddings.{name}.delta.weight" for name in tables}
    for round_ in range(3):
        for loss, trained, untouched in (("discriminator_loss", deltas, theirs), ("generator_loss", theirs, deltas)):
            model.zero_grad()
            model(**batch)[loss].backward()
            found = gradients(model)
            assert {*found} >= trained | untouched
            # Exactly zero for every parameter of the other model.
            half = loss.removesuffix("_loss")
            assert {name for name, grad in found.items() if grad is not None} == {
                name for name in found if name.startswith(half)
            }
            for name in trained:
                assert found[name].abs().sum() > 0, (round_, name)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        model.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
        if round_ == 0:
            model.save_pretrained(tmp_path)
            before = model.state_dict()
            model = DebertaExtForPreTraining.from_pretrained(tmp_path).train()
            assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        elif round_ == 1:
            model = copy.deepcopy(model)
            # The copy reads its own generator.
            assert model.discriminator.get_input_embeddings().source is model.generator.get_input_embeddings()


def test_gdes_begins_with_the_generators_table_and_makes_no_table_of_sums(tiny_config, joint, masked):
    model = DebertaExtForPreTraining(tiny_config())
    shared = model.discriminator.get_input_embeddings()
    assert isinstance(shared, GradientDisentangledEmbedding) and not shared.delta.weight.any()
    assert torch.equal(shared.table(), model.get_input_embeddings().weight)
    with torch.no_grad():
        shared.delta.weight[7] += 2
        model.get_input_embeddings().weight[8] += 3
    assert torch.equal(shared(torch.tensor([7, 8])), shared.table()[[7, 8]])
    model = joint(vocab_size=640)
    outputs = model(**masked[0], part="generator")
    with Watch() as watch:
        model(outputs.corrupted_ids, labels=outputs.discriminator_labels, part="discriminator")
    views = ("detach", "alias", "t.default")
    made = {shape for name, _, shape, _ in watch.seen if not any(view in name for view in views)}
    assert (3, 16, 32) in made and (640, 32) not in made


def test_es_trains_one_table_by_both_losses_nes_shares_nothing_and_all_the_whole_encoder(joint, masked):
    batch, _ = masked
    model = joint("es").train()
    table = model.get_input_embeddings().weight
    assert model.discriminator.get_input_embeddings().weight is table
    parts = []
    for loss in ("generator_loss", "discriminator_loss", "loss"):
        model.zero_grad()
        model(**batch, random_generator=torch.Generator().manual_seed(0))[loss].backward()
        parts.append(table.grad.clone())
    assert all(part.abs().sum() > 0 for part in parts)
    torch.testing.assert_close(parts[0] + model.config.rtd_lambda * parts[1], parts[2], atol=1e-5, rtol=1e-4)
    model = joint("nes").train()
    assert len({id(p) for p in model.parameters()}) == len([*model.named_parameters(remove_duplicate=False)]) - 1
    model(**batch).discriminator_loss.backward()
    assert {name.split(".")[0] for name, grad in gradients(model).items() if grad is not None} == {"discriminator"}
    model = joint("all")
    ours, theirs = model.discriminator.deberta, model.generator.deberta
    shared = dict(theirs.named_parameters())
    assert all(parameter is shared[name] for name, parameter in ours.named_parameters())
    assert len([*ours.parameters()]) > 60 and len(ours.encoder.layer) == len(theirs.encoder.layer) == 4
    model.train()(**batch).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("fields", [{}, dict(position_biased_input=True, type_vocab_size=2), dict(embedding_size=16)])
def test_every_way_of_sharing_survives_saving_copying_and_pickling(sharing, fields, joint, masked, tmp_path):
    batch, _ = masked
    model = joint(sharing, **fields)
    model.save_pretrained(tmp_path)
    copies = [DebertaExtForPreTraining.from_pretrained(tmp_path), copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    expected = model(**batch, random_generator=torch.Generator().manual_seed(0))
    shared = len({id(p) for p in model.parameters()})
    for other in copies:
        outputs = other.eval()(**batch, random_generator=torch.Generator().manual_seed(0))
        assert equal_outputs(outputs.discriminator_logits, expected.discriminator_logits)
        assert equal_outputs(outputs.generator_logits, expected.generator_logits)
        assert len({id(p) for p in other.parameters()}) == shared
        assert not {id(p) for p in other.parameters()} & {id(p) for p in model.parameters()}


@pytest.mark.slow
def test_a_compiled_model_has_the_same_losses_and_gradients(joint, masked):
    """Regression test: compiled by torch 2.6, the loss was only the generator's."""
    model = joint().train()
    plain = model(**masked[0], random_generator=torch.Generator().manual_seed(0))
    plain.loss.backward()
    expected = gradients(model)
    model.zero_grad(set_to_none=True)
    # Traced as by every other compiler, and then run by torch.
    compiled = torch.compile(model, backend="eager")
    torch.manual_seed(0)
    outputs = compiled(**masked[0])
    outputs.loss.backward()
    found = gradients(model)
    for name in ("loss", "generator_loss", "discriminator_loss"):
        torch.testing.assert_close(outputs[name], plain[name], msg=name)
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, atol=1e-5, rtol=1e-4, msg=name)


def test_the_generator_decodes_with_emd_and_the_discriminator_has_none(joint, masked):
    """The generator's last layer runs twice, on queries with absolute positions; the discriminator's run once."""
    batch, _ = masked
    model = joint(rtd_temperature=1e-6)
    ran = dict(generator=[], discriminator=[])
    for name, places in ran.items():
        for place, layer in enumerate(getattr(model, name).deberta.encoder.layer):
            layer.attention.self.register_forward_hook(lambda *_, places=places, place=place: places.append(place))
    with torch.no_grad():
        before = model(**batch)
        assert ran == dict(generator=[0, 1, 1], discriminator=[0, 1, 2, 3])
        assert not hasattr(model.discriminator.deberta.embeddings, "position_embeddings")
        asked = dict(input_ids=before.corrupted_ids, attention_mask=batch["attention_mask"])
        answers = model.discriminator(**asked).logits
        assert torch.equal(model.discriminator(**asked, position_ids=torch.arange(16)[None] + 9).logits, answers)
        model.generator.deberta.embeddings.position_embeddings.weight.mul_(-1)
        after = model(**batch)
    assert not torch.allclose(after.generator_logits, before.generator_logits, atol=1e-2)


def test_unpadding_is_set_in_both_halves(joint):
    model = joint()
    model.set_unpadding(False)
    assert model.generator.deberta.unpadding is False and model.discriminator.deberta.unpadding is False


@pytest.mark.parametrize(
    "fields, message",
    [
        (dict(generator={"layers": 2}), "generator = .* has unknown fields: layers"),
        (dict(generator={"num_hidden_layers": 0}), "generator = .*num_hidden_layers must be at least 1, got 0"),
        (dict(generator={"rtd_lambda": 1.0}), "has unknown fields: rtd_lambda"),
        (dict(generator={"vocab_size": 32}), "needs the same vocab_size in generator and discriminator, got 32 and 64"),
        (dict(generator={"embedding_size": 16}), "'gdes' needs the same embedding_size in .*, got 16 and 32"),
        (
            dict(generator={"num_hidden_layers": 2}, embedding_sharing="all"),
            "'all' needs the same num_hidden_layers in .*, got 2 and 3",
        ),
        (dict(special_token_ids=[64]), r"special_token_ids = \[64\] must be in \[0, vocab_size = 64\)"),
    ],
)
def test_contradictory_configurations_are_refused(fields, message, tiny_config):
    with pytest.raises(StrictDataclassError, match=message):
        tiny_config(**fields)


def test_wrong_calls_of_a_joint_model_are_refused(joint, masked):
    batch, _ = masked
    model = joint()
    for call, message in (
        (lambda: model(**batch, part="both"), "part must be None, 'generator' or 'discriminator', got 'both'"),
        (lambda: model(batch["input_ids"], part="generator"), "part = 'generator' requires labels"),
        (lambda: model.resize_token_embeddings(70), "export generator and discriminator, resize both"),
        (lambda: model.extend_position_embeddings(128), "cannot be extended to 128 positions"),
        (lambda: joint(special_token_ids=None)(**batch), r"special_token_ids must list .* None.*tokenizer.all_special_ids"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_a_joint_checkpoint_keeps_its_form_and_is_no_masked_language_model(joint, tmp_path):
    joint("gdes").save_pretrained(tmp_path)
    for changes in (dict(embedding_sharing="nes"), dict(generator={"num_hidden_layers": 3})):
        name = next(iter(changes))
        for auto in (DebertaExtForPreTraining, AutoModelForPreTraining):
            with pytest.raises(ValueError, match=f"{name} must be .* as in the joint model .*, got .*from_checkpoints"):
                auto.from_pretrained(tmp_path, **changes)
    assert DebertaExtForPreTraining.from_pretrained(tmp_path, rtd_lambda=3.0).config.rtd_lambda == 3.0
    with pytest.raises(ValueError, match=r"MaskedLM needs a single model, but .* has a generator and a discriminator: pass"):
        DebertaExtForMaskedLM.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"expects a single model, got the joint model .*from_pretrained"):
        DebertaExtForPreTraining.from_checkpoints(tmp_path)


def test_exchanging_the_table_keeps_what_is_shared(joint):
    for sharing in ("gdes", "es", "all"):
        model = joint(sharing)
        model.set_input_embeddings(torch.nn.Embedding(64, 32, padding_idx=0))
        table, ours = model.get_input_embeddings(), model.discriminator.get_input_embeddings()
        assert ours.source is table if sharing == "gdes" else ours.weight is table.weight
