# SPDX-License-Identifier: Apache-2.0
"""Test ReplacedTokenTrainer: joint and decoupled steps compared with explicit loops, logs, and exact resume."""

import copy
import math
from functools import partial

import pytest
import torch
from accumulation import exact_accumulation
from target_trainers import EPSILON, GREEDY, LAMBDA, build
from target_trainers import joint_rows as rows
from tiny_constants import SPECIAL
from torch.nn import functional
from transformers import default_data_collator as batch_of

from hf_deberta_ext.analysis.embedding_similarity import average_cosine_similarity
from hf_deberta_ext.pretraining.replaced_token_trainer import (
    ReplacedTokenArguments,
    ReplacedTokenTrainer,
    detection_metrics,
    guess_loss,
)


@pytest.fixture
def joint(joint):
    return partial(joint, std=0.3, num_hidden_layers=3, rtd_lambda=LAMBDA, rtd_temperature=GREEDY)


def by_hand(model, examples):
    """Sums: generator's loss, correct, targets; discriminator's loss, targets; true positives, predicted, replaced."""
    totals = torch.zeros(8, dtype=torch.float64)
    model.eval()
    for example in examples:
        with torch.no_grad():
            outputs = model(**batch_of([example]))
        targets = example["labels"][example["labels"] != -100]
        right = (outputs.generator_logits.argmax(-1) == targets).sum()
        counted = outputs.discriminator_labels != -100
        labels, logits = outputs.discriminator_labels[counted], outputs.discriminator_logits[counted]
        flagged = logits > 0
        totals += torch.stack([
            functional.cross_entropy(outputs.generator_logits, targets, reduction="sum"), right, torch.tensor(len(targets)),
            functional.binary_cross_entropy_with_logits(logits, labels.float(), reduction="sum"), counted.sum(),
            (flagged & (labels == 1)).sum(), flagged.sum(), (labels == 1).sum(),
        ])  # fmt: skip
    return totals.tolist()


def test_detection_metrics_and_the_loss_of_a_guess_of_hand_computed_cases():
    expected = dict(discriminator_precision=0.75, discriminator_recall=0.5, replaced_share=0.1)
    assert detection_metrics(3, 4, 6, 60) == expected
    assert detection_metrics(0, 0, 0, 60) == dict.fromkeys(expected, 0.0)
    assert guess_loss(0.5) == pytest.approx(math.log(2)) and guess_loss(0.0) == guess_loss(1.0) == 0
    labels = torch.tensor([1.0] * 15 + [0.0] * 85)
    logit = torch.tensor(0.15 / 0.85).log().expand(100)
    assert guess_loss(0.15) == pytest.approx(functional.binary_cross_entropy_with_logits(logit, labels).item(), rel=1e-6)


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_evaluation_weighs_every_token_alike(batch, joint, tmp_path):
    model, examples = joint(), rows(7)
    metrics = build(model, tmp_path, evaluate=examples, per_device_eval_batch_size=batch).evaluate()
    mlm, right, targets, rtd, counted, caught, flagged, replaced = by_hand(model, examples)
    expected = dict(
        generator_loss=mlm / targets, generator_accuracy=right / targets, generator_targets=targets,
        generator_perplexity=math.exp(mlm / targets), discriminator_loss=rtd / counted, discriminator_targets=counted,
        discriminator_precision=caught / flagged, discriminator_recall=caught / replaced, replaced_share=replaced / counted,
        loss=mlm / targets + LAMBDA * rtd / counted,
        discriminator_accuracy=1 - (flagged + replaced - 2 * caught) / counted,
    )  # fmt: skip
    for name, value in expected.items():
        assert metrics[f"eval_{name}"] == pytest.approx(value, rel=1e-5), name
    assert metrics["eval_discriminator_guess_loss"] == pytest.approx(guess_loss(replaced / counted))
    words = [word for word in range(64) if word not in SPECIAL]
    tables = model.get_input_embeddings().weight, model.discriminator.get_input_embeddings().table()
    for name, table in zip(("generator", "discriminator"), tables, strict=True):
        assert metrics[f"eval_{name}_similarity"] == pytest.approx(average_cosine_similarity(table[words]), rel=1e-6)


def test_evaluation_draws_the_same_replacements_each_time_and_disturbs_no_one(joint, tmp_path):
    trainer = build(joint(rtd_temperature=1.0), tmp_path, evaluate=rows(), per_device_eval_batch_size=3)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    trainer.row_sums(trainer.model.eval(), batch_of(rows()))
    assert torch.equal(torch.get_rng_state(), before)
    first = trainer.evaluate()
    torch.manual_seed(2)
    second = trainer.evaluate()
    names = [name for name in first if "runtime" not in name and "second" not in name]
    assert len(names) > 12 and all(first[name] == second[name] for name in names)


@exact_accumulation
@pytest.mark.parametrize("stepping", ["joint", "decoupled"])
@pytest.mark.parametrize("special", [True, False], ids=["all_tokens", "no_special_tokens"])
def test_accumulation_changes_neither_losses_nor_gradient(special, stepping, joint, tmp_path):
    examples, model = rows(), joint(rtd_special_tokens=special)
    mlm, right, targets, rtd, counted, caught, flagged, replaced = by_hand(model, examples)
    norms = []
    for accumulation in (1, 2, 8):
        trainer = build(
            copy.deepcopy(model), tmp_path, examples, max_steps=1, per_device_train_batch_size=8 // accumulation,
            gradient_accumulation_steps=accumulation, stepping=stepping,
        )  # fmt: skip
        trainer.train()
        log = trainer.state.log_history[0]
        assert log["loss"] == pytest.approx(mlm / targets + LAMBDA * rtd / counted, rel=1e-4)
        assert log["generator_loss"] == pytest.approx(mlm / targets, rel=1e-5)
        assert log["discriminator_loss"] == pytest.approx(rtd / counted, rel=1e-5)
        assert log["generator_accuracy"] == pytest.approx(right / targets)
        assert log["discriminator_precision"] == pytest.approx(caught / flagged)
        assert log["discriminator_recall"] == pytest.approx(caught / replaced)
        assert log["replaced_share"] == pytest.approx(replaced / counted)
        norms.append(float(log["grad_norm"]))
    assert norms[0] > 0.01 and norms == pytest.approx([norms[0]] * 3, rel=1e-4)


def adam(parameters, rate):
    return torch.optim.AdamW(parameters, rate, betas=(0.9, 0.999), eps=EPSILON, weight_decay=0.0)


def assert_same_weights(ours, theirs):
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5, msg=name)


@exact_accumulation
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("sharing", ["gdes", "nes"])
def test_decoupled_steps_are_those_of_two_optimizers_in_turn(sharing, accumulation, joint, tmp_path):
    """Step the generator, clipped separately; then train the discriminator on earlier samples, with the new E_G."""
    examples, model = rows(), joint(sharing)
    expected = copy.deepcopy(model).train()
    trainer = build(
        model, tmp_path, examples, max_steps=3, per_device_train_batch_size=8 // accumulation, max_grad_norm=0.5,
        gradient_accumulation_steps=accumulation, stepping="decoupled", learning_rate=1e-3,
        discriminator_learning_rate=4e-3, discriminator_max_grad_norm=2.0,
    )  # fmt: skip
    trainer.train()
    halves = {name: [*getattr(expected, name).parameters()] for name in ("generator", "discriminator")}
    optimizers = dict(generator=adam(halves["generator"], 1e-3), discriminator=adam(halves["discriminator"], 4e-3))
    for _ in range(3):
        batch = batch_of(examples)
        first = expected(**batch, part="generator")
        first.loss.backward()
        torch.nn.utils.clip_grad_norm_(halves["generator"], 0.5)
        optimizers["generator"].step()
        second = expected(
            first.corrupted_ids, batch["attention_mask"], labels=first.discriminator_labels, part="discriminator"
        )
        expected.zero_grad()
        second.loss.backward()
        assert all(parameter.grad is None for parameter in halves["generator"])
        torch.nn.utils.clip_grad_norm_(halves["discriminator"], 2.0)
        optimizers["discriminator"].step()
        expected.zero_grad()
    assert_same_weights(model, expected)
    assert trainer.state.log_history[0]["grad_norm"] > 0


def test_generator_does_not_depend_on_the_discriminator_under_gdes(joint, tmp_path):
    ends = []
    for stepping, weight in (("joint", 1.0), ("joint", 50.0), ("decoupled", 50.0)):
        model = joint(rtd_lambda=weight)
        build(model, tmp_path, rows(), max_steps=3, learning_rate=1e-3, stepping=stepping).train()
        ends.append(model.generator)
    assert_same_weights(ends[0], ends[1])
    assert_same_weights(ends[0], ends[2])


@pytest.mark.parametrize("stepping", ["joint", "decoupled"])
def test_halves_have_learning_rates_and_schedules_of_their_own_and_logs_have_them(stepping, joint, tmp_path):
    common = dict(max_steps=4, learning_rate=1e-3, lr_scheduler_type="linear", warmup_steps=2, stepping=stepping)
    trainer = build(
        joint(), tmp_path, rows(), discriminator_learning_rate=8e-3, discriminator_warmup_steps=0,
        discriminator_lr_scheduler_type="cosine", weight_decay=0.1, **common,
    )  # fmt: skip
    seen = []
    step = trainer.training_step

    def training_step(*args, **kwargs):
        seen.append({group["half"]: group["lr"] for group in trainer.optimizer.param_groups})
        return step(*args, **kwargs)

    trainer.training_step = training_step
    trainer.train()
    cosine = [8e-3 * 0.5 * (1 + math.cos(math.pi * i / 4)) for i in range(4)]
    assert [rates["generator"] for rates in seen] == pytest.approx([0, 0.5e-3, 1e-3, 0.5e-3])
    assert [rates["discriminator"] for rates in seen] == pytest.approx(cosine)
    decays = [(group["half"], group["weight_decay"]) for group in trainer.optimizer.param_groups]
    assert sorted(decays) == [("discriminator", 0.0), ("discriminator", 0.1), ("generator", 0.0), ("generator", 0.1)]
    counted = sum(len(group["params"]) for group in trainer.optimizer.param_groups)
    assert counted == len([p for p in trainer.model.parameters() if p.requires_grad])
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["discriminator_learning_rate"] for entry in logs] == pytest.approx(cosine)
    if stepping == "decoupled":
        assert logs[0]["generator_grad_norm"] > 0 and logs[0]["generator_grad_norm"] != logs[0]["grad_norm"]
    plain = build(joint(), tmp_path, rows(), **common)
    plain.train()
    assert "discriminator_learning_rate" not in plain.state.log_history[0]


@pytest.mark.parametrize("max_grad_norm", [0.0, 1.0])
@pytest.mark.parametrize("stepping", ["joint", "decoupled"])
def test_a_loss_scaler_changes_nothing_but_the_scale(stepping, max_grad_norm, joint, tmp_path):
    """Use the scaler on CPU: fp16 needs a GPU, but scaling and unscaling are the same."""
    from accelerate.optimizer import patch_optimizer_step
    from transformers import TrainerCallback

    class Scaler(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
            optimizer = trainer.optimizer
            trainer.accelerator.scaler = optimizer.scaler = scaler
            trainer.accelerator.native_amp, trainer.accelerator.state._mixed_precision = True, "fp16"
            optimizer._accelerate_step_called = False
            optimizer._optimizer_original_step_method = optimizer.optimizer.step
            optimizer._optimizer_patched_step_method = patch_optimizer_step(optimizer, optimizer.optimizer.step)

    ends = []
    for callbacks in ([], [Scaler()]):
        model = joint()
        common = dict(max_steps=3, learning_rate=1e-3, max_grad_norm=max_grad_norm, stepping=stepping)
        trainer = build(model, tmp_path, rows(), **common)
        for callback in callbacks:
            trainer.add_callback(callback)
        try:
            trainer.train()
        finally:
            trainer.accelerator.state._mixed_precision = "no"
        ends.append(model)
    assert_same_weights(*ends)


def test_rows_that_distributed_training_repeats_count_for_nothing(joint, tmp_path):
    from hf_deberta_ext.training.trainer import first_rows

    for stepping in ("joint", "decoupled"):
        examples = rows()
        trainer = build(joint(), tmp_path, examples, max_steps=1, stepping=stepping, per_device_train_batch_size=4)
        repeated = first_rows(batch_of(examples), -1)
        assert repeated["repeated"]
        trainer.create_optimizer_and_scheduler(1)
        # transformers 5.4 sets it during training.
        trainer.current_gradient_accumulation_steps = 1
        loss = trainer.training_step(trainer.model, repeated, torch.ones(2))
        assert loss == 0 and not trainer._sums.any()


def test_models_and_optimizers_that_do_not_fit_are_refused(joint, tmp_path):
    for sharing in ("es", "all"):
        with pytest.raises(ValueError, match=f"sharing = '{sharing}' needs joint steps: .* Use either stepping = 'joint'"):
            build(joint(sharing), tmp_path, stepping="decoupled")
    model = joint()
    args = ReplacedTokenArguments(str(tmp_path), discriminator_learning_rate=1e-3, report_to="none")
    with pytest.raises(ValueError, match="discriminator_learning_rate cannot be combined with `optimizers`"):
        ReplacedTokenTrainer(model, args, optimizers=(adam(model.parameters(), 1e-3), None))
    trainer = build(joint(), tmp_path, rows(), max_steps=2, discriminator_lr_scheduler_type="reduce_lr_on_plateau")
    with pytest.raises(ValueError, match=r"must be functions of the step, .* got constant and reduce_lr_on_plateau"):
        trainer.create_optimizer_and_scheduler(2)


NO_ACCELERATOR = pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")


@pytest.mark.parametrize(
    ("sharing", "stepping", "wrapper", "message"),
    [
        *((sharing, "joint", "is_fsdp_enabled", f"embedding_sharing = '{sharing}' cannot run under FSDP")
          for sharing in ("es", "all")),
        ("gdes", "decoupled", "is_fsdp_enabled", "stepping = 'decoupled' cannot run under FSDP 1.*set fsdp_version 2"),
        ("gdes", "decoupled", "is_deepspeed_enabled", "decoupled steps cannot run under DeepSpeed"),
        # accelerate would silently train unsharded.
        pytest.param("gdes", "joint", None, "fsdp = .* has no effect here: accelerate only shards on accelerators",
                     marks=NO_ACCELERATOR),
    ],
)  # fmt: skip
def test_what_cannot_be_sharded_is_refused(sharing, stepping, wrapper, message, joint, tmp_path):
    trainer = build(joint(sharing), tmp_path, stepping=stepping)
    if wrapper is None:
        # transformers rejects a single process.
        trainer.args.fsdp = ["full_shard"]
    else:
        setattr(trainer, wrapper, True)
    with pytest.raises(ValueError, match=message):
        trainer.check_wrappers()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(stepping="both"), "stepping must be joint or decoupled, got 'both'"),
        (dict(discriminator_learning_rate=-1.0), "discriminator_learning_rate must be 0 or a positive number, got -1.0"),
        (dict(discriminator_max_grad_norm=1.0), "discriminator_max_grad_norm needs stepping = 'decoupled'"),
        (dict(discriminator_lr_scheduler_type="round"), "round is not a valid SchedulerType"),
    ],
)
def test_impossible_arguments_are_refused(arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        ReplacedTokenArguments(str(tmp_path), **arguments)
