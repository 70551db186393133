# SPDX-License-Identifier: Apache-2.0
"""The stages of a fine-tuning run, with a made task: folders, resume, seeds, models of all families, LoRA, refusals."""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AlbertConfig,
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    DataCollatorWithPadding,
    DebertaConfig,
    DebertaV2Config,
    ElectraConfig,
    RobertaConfig,
    TrainerCallback,
    pipeline,
)

from hf_deberta_ext import DebertaExtConfig
from hf_deberta_ext.tasks import fine_tuning
from hf_deberta_ext.tasks.arguments import DataArguments, parse
from hf_deberta_ext.tasks.task import EncodedTask, EvaluationSet
from hf_deberta_ext.tasks.trainer import TaskTrainer
from hf_deberta_ext.tokenization import finish

datasets = pytest.importorskip("datasets")
for package in ("accelerate", "matplotlib"):
    pytest.importorskip(package)

WORDS = "good fine great bad poor awful film play book was the a so here today".split()
SAVING = dict(save_strategy="steps", save_steps=2)
GOOD = {"good", "fine", "great"}
SIZES = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, vocab_size=32, pad_token_id=2,
    max_position_embeddings=40,
)  # fmt: skip
V2 = dict(relative_attention=True, position_biased_input=False, pos_att_type="p2c|c2p")
CONFIGS = {
    "ours": lambda: DebertaExtConfig(**SIZES, position_buckets=16),
    "v1": lambda: DebertaConfig(**SIZES, **V2),
    "v2": lambda: DebertaV2Config(
        **SIZES, **V2, position_buckets=16, share_att_key=True, norm_rel_ebd="layer_norm", type_vocab_size=0
    ),
    "bert": lambda: BertConfig(**SIZES),
    "roberta": lambda: RobertaConfig(**SIZES, type_vocab_size=2),
    "electra": lambda: ElectraConfig(**SIZES, embedding_size=16),
    "albert": lambda: AlbertConfig(**SIZES, embedding_size=16),
}


# ------- a task that this file makes


def sentences(count, seed, labelled=True):
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        words = [*rng.sample(WORDS[6:], 3), rng.choice(WORDS[:6])]
        rng.shuffle(words)
        rows.append({"text": " ".join(words)} | ({"label": int(bool(GOOD & {*words}))} if labelled else {}))
    return rows


@dataclass
class ToyArguments(DataArguments):
    labels: list[str] = field(default_factory=lambda: ["bad", "good"])
    train_count: int = 24
    evaluation_count: int = 10
    test_count: int = 6
    second_set: bool = False


class ToyData:
    """Sentences with a good or a bad word in them."""

    pipeline, auto_class, dataset = "text-classification", AutoModelForSequenceClassification, "made here"

    def __init__(self, data_args, model_args):
        self.args, self.name = data_args, data_args.task_name or "toy"
        self.num_train, self.num_evaluation = data_args.train_count, data_args.evaluation_count

    def config_fields(self):
        labels = dict(enumerate(self.args.labels))
        return dict(num_labels=len(labels), id2label=labels, label2id={name: n for n, name in labels.items()})

    def encode(self, tokenizer, config):
        def features(count, seed, labelled=True):
            rows = sentences(count, seed, labelled)
            columns = dict(tokenizer([row["text"] for row in rows]))
            if labelled:
                columns["labels"] = [row["label"] for row in rows]
            return datasets.Dataset.from_dict(columns)

        def write(predictions, folder, stem):
            file = folder / f"{stem}_answers.json"
            file.write_text(json.dumps(predictions.argmax(-1).tolist()), encoding="utf-8")
            return [file]

        def accuracy(predictions, labels):
            return {"accuracy": float((predictions.argmax(-1) == labels).mean())}

        def evaluation_set(count, seed, labelled=True):
            return EvaluationSet(features(count, seed, labelled), accuracy if labelled else None, write, count)

        evaluation = {"": evaluation_set(self.num_evaluation, 1)} if self.num_evaluation else {}
        if self.args.second_set:
            evaluation["mm"] = evaluation_set(7, 2)
        test = {"": evaluation_set(self.args.test_count, 3, labelled=False)} if self.args.test_count else {}
        train = features(self.num_train, 0) if self.num_train else None
        return EncodedTask(train, evaluation, test, DataCollatorWithPadding(tokenizer), "accuracy")


@pytest.fixture(scope="module")
def tokenizer():
    vocabulary = {word: n for n, word in enumerate(["[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", *WORDS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return finish(backend, model_max_length=40)


@pytest.fixture(scope="module")
def folder_of(tokenizer, tmp_path_factory):
    """folder_of(family): a tiny masked language model with random weights, and the tokenizer."""
    made = {}

    def build(family):
        if family not in made:
            torch.manual_seed(0)
            made[family] = tmp_path_factory.mktemp(family)
            AutoModelForMaskedLM.from_config(CONFIGS[family]()).save_pretrained(made[family])
            tokenizer.save_pretrained(made[family])
        return made[family]

    return build


def flags(model, folder, *more, **given):
    common = dict(
        model_name_or_path=model, output_dir=folder, max_steps=4, per_device_train_batch_size=4, report_to="none",
        disable_tqdm="true", logging_steps=1, learning_rate=1e-2, save_strategy="no",
    )  # fmt: skip
    return [str(part) for name, value in (common | given).items() for part in (f"--{name}", value)] + [*map(str, more)]


def run(*argv, **given):
    data_args, model_args, args, names = parse(flags(*argv, **given), ToyArguments, description="toy")
    return fine_tuning.run(ToyData, data_args, model_args, args, names)


def weights(folder):
    return load_file(Path(folder) / "model.safetensors")


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(value, b[name]) for name, value in a.items())


def read(folder, name):
    return json.loads(Path(folder, name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def finished(folder_of, tmp_path_factory):
    """A run of everything, with two evaluation sets."""
    folder = tmp_path_factory.mktemp("runs") / "everything"
    argv = ("--do_train", "--do_eval", "--do_predict", "--second_set")
    return folder, run(folder_of("ours"), folder, *argv, eval_strategy="steps", eval_steps=2, **SAVING)


# ------- what a run leaves


def test_run_leaves_results_predictions_model_and_card(finished):
    folder, metrics = finished
    for name in (
        "train_results.json", "eval_results.json", "eval_mm_results.json", "predict_results.json", "all_results.json",
        "trainer_state.json", "run_arguments.json", "README.md", "tokenizer.json", "model.safetensors",
        "eval_answers.json", "eval_mm_answers.json", "predict_answers.json",
    ):  # fmt: skip
        assert (folder / name).is_file(), name
    assert (folder / "curves.png").read_bytes()[:4] == b"\x89PNG"
    everything = read(folder, "all_results.json")
    assert everything.items() >= metrics.items()
    assert {*metrics} >= {"train_loss", "eval_accuracy", "eval_mm_accuracy", "predict_samples"}
    assert read(folder, "eval_mm_results.json")["eval_mm_accuracy"] == metrics["eval_mm_accuracy"]
    assert not any(name.startswith("eval_mm") for name in read(folder, "eval_results.json"))
    assert (metrics["eval_samples"], metrics["eval_mm_samples"], metrics["predict_samples"]) == (10, 7, 6)
    assert len(read(folder, "predict_answers.json")) == 6


def test_results_are_those_of_the_saved_model(finished):
    folder, metrics = finished
    guess = pipeline("text-classification", str(folder))
    rows = sentences(10, 1)
    guessed = [answer["label"] for answer in guess([row["text"] for row in rows])]
    right = [answer == ("bad", "good")[row["label"]] for answer, row in zip(guessed, rows, strict=True)]
    assert np.mean(right) == pytest.approx(metrics["eval_accuracy"])
    assert read(folder, "eval_answers.json") == [("bad", "good").index(answer) for answer in guessed]


def test_main_metric_chooses_the_best_checkpoint(folder_of, tmp_path):
    run(
        folder_of("bert"), tmp_path / "run", "--do_train", "--load_best_model_at_end", eval_strategy="steps", eval_steps=2,
        **SAVING,
    )  # fmt: skip
    state = read(tmp_path / "run", "trainer_state.json")
    scores = [entry["eval_accuracy"] for entry in state["log_history"] if "eval_accuracy" in entry]
    assert state["best_metric"] == max(scores)
    run(
        folder_of("bert"), tmp_path / "by_loss", "--do_train", "--load_best_model_at_end", eval_strategy="steps",
        eval_steps=2, metric_for_best_model="loss", **SAVING,
    )  # fmt: skip
    state = read(tmp_path / "by_loss", "trainer_state.json")
    assert state["best_metric"] == min(entry["eval_loss"] for entry in state["log_history"] if "eval_loss" in entry)


def test_evaluation_alone_leaves_the_checkpoint_as_it_is(finished, tmp_path):
    folder, metrics = finished
    again = run(folder, tmp_path / "run", "--do_eval", "--do_predict", "--second_set")
    for name in ("eval_accuracy", "eval_loss", "eval_mm_accuracy"):
        assert again[name] == pytest.approx(metrics[name], rel=1e-6)
    left = {file.name for file in (tmp_path / "run").iterdir()}
    assert "model.safetensors" not in left and "README.md" not in left and "eval_results.json" in left


# ------- models


@pytest.mark.parametrize("family", CONFIGS)
def test_models_of_every_family_are_trained(family, folder_of, tmp_path):
    before = weights(folder_of(family))
    metrics = run(folder_of(family), tmp_path / "run", "--do_train", "--do_eval", max_steps=2)
    after = weights(tmp_path / "run")
    assert 0 <= metrics["eval_accuracy"] <= 1 and all(torch.isfinite(value).all() for value in after.values())
    shared = {*before} & {*after}
    assert len(shared) > 10 and any(not torch.equal(before[name], after[name]) for name in shared)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run")
    assert type(model.config).__name__ == type(CONFIGS[family]()).__name__ and model.config.id2label == {0: "bad", 1: "good"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_checkpoints_are_trained_in_float32(dtype, folder_of, tmp_path):
    folder = tmp_path / "half"
    AutoModelForMaskedLM.from_pretrained(folder_of("v2"), dtype=dtype).save_pretrained(folder)
    AutoTokenizer.from_pretrained(folder_of("v2")).save_pretrained(folder)
    assert {value.dtype for value in weights(folder).values()} == {dtype}
    run(folder, tmp_path / "run", "--do_train", max_steps=1)
    assert {value.dtype for value in weights(tmp_path / "run").values()} == {torch.float32}


def test_parameters_may_be_bfloat16_but_not_float16(folder_of, tmp_path, caplog):
    run(folder_of("bert"), tmp_path / "run", "--do_train", max_steps=1, dtype="bfloat16")
    assert {value.dtype for value in weights(tmp_path / "run").values()} == {torch.bfloat16}
    with pytest.raises(ValueError, match="--dtype float16 would train float16 parameters"):
        run(folder_of("bert"), tmp_path / "other", "--do_train", dtype="float16")
    assert not (tmp_path / "other").exists()


def test_training_from_scratch_takes_the_shape_alone(folder_of, tmp_path):
    run(folder_of("bert"), tmp_path / "run", "--do_train", "--from_scratch", max_steps=1, learning_rate=0.0)
    before, after = weights(folder_of("bert")), weights(tmp_path / "run")
    name = "bert.encoder.layer.0.output.dense.weight"
    assert before[name].shape == after[name].shape and not torch.equal(before[name], after[name])
    assert "trained from random weights" in (tmp_path / "run" / "README.md").read_text(encoding="utf-8")


def test_official_checkpoints_are_read_as_this_packages_model(folder_of, tmp_path):
    """The same function: the stock model's loss at a learning rate of zero."""
    run(folder_of("v2"), tmp_path / "stock", "--do_train", "--do_eval", learning_rate=0.0, max_steps=1)
    stock = tmp_path / "stock"
    metrics = run(
        stock, tmp_path / "ours", "--do_train", "--do_eval", learning_rate=0.0, max_steps=1, model_type="deberta-ext"
    )
    assert read(tmp_path / "ours", "config.json")["model_type"] == "deberta-ext"
    assert metrics["eval_loss"] == pytest.approx(read(stock, "all_results.json")["eval_loss"], rel=1e-5)


def test_fields_of_the_configuration_can_be_replaced(folder_of, tmp_path):
    overrides = "hidden_dropout_prob=0,num_hidden_layers=1"
    run(folder_of("bert"), tmp_path / "run", "--do_train", "--from_scratch", max_steps=1, config_overrides=overrides)
    config = AutoConfig.from_pretrained(tmp_path / "run")
    assert (config.hidden_dropout_prob, config.num_hidden_layers) == (0, 1)
    for text, message in (
        ("hiden=1", "'hiden' is no field of BertConfig, which has .*hidden_size"),
        ("a", "takes name=value"),
    ):
        with pytest.raises(ValueError, match=message):
            run(folder_of("bert"), tmp_path / "other", "--do_train", config_overrides=text)


def test_the_dropout_of_a_recipe_reaches_the_model(folder_of, tmp_path):
    recipe = dict(task_name="cola", recipe="base", max_steps=1)
    run(folder_of("v2"), tmp_path / "run", "--do_train", **recipe)
    assert AutoConfig.from_pretrained(tmp_path / "run").cls_dropout == 0.15
    run(folder_of("v2"), tmp_path / "own", "--do_train", **recipe, config_overrides="cls_dropout=0.5")
    assert AutoConfig.from_pretrained(tmp_path / "own").cls_dropout == 0.5


def test_the_adversarial_loss_is_trained_and_logged(folder_of, tmp_path):
    run(folder_of("bert"), tmp_path / "run", "--do_train", sift_weight=1, max_steps=2)
    history = read(tmp_path / "run", "trainer_state.json")["log_history"]
    assert all(entry["sift_size"] > 0 for entry in history if "loss" in entry)
    assert "weight 1, default" in (tmp_path / "run" / "README.md").read_text(encoding="utf-8")


# ------- LoRA


@pytest.mark.parametrize(
    ("family", "adapted", "head"),
    [
        ("ours", "query_proj", {"pooler", "classifier"}),
        ("v1", "in_proj", {"pooler", "classifier"}),
        ("bert", "query", {"bert.pooler", "classifier"}),
        ("electra", "query", {"classifier"}),
    ],
)
def test_adapters_are_saved_with_head_and_labels_and_used_again(family, adapted, head, folder_of, tmp_path):
    peft = pytest.importorskip("peft")
    folder = tmp_path / "run"
    labels = ("--labels", "bad", "good", "other")
    metrics = run(folder_of(family), folder, "--do_train", "--do_eval", "--lora", *labels, learning_rate=0.1)
    assert not (folder / "model.safetensors").exists()
    config = read(folder, "adapter_config.json")
    assert adapted in config["target_modules"] and {*config["modules_to_save"]} >= head
    saved = load_file(folder / "adapter_model.safetensors")
    assert any(f"{adapted}.lora_A" in name for name in saved)
    assert {part for part in head if any(f"{part}." in name for name in saved)} == head

    # As the card says.
    labelled = AutoConfig.from_pretrained(folder)
    assert labelled.id2label == {0: "bad", 1: "good", 2: "other"}
    model = AutoModelForSequenceClassification.from_pretrained(folder_of(family), config=labelled)
    model = peft.PeftModel.from_pretrained(model, folder).eval()
    rows = sentences(10, 1)
    inputs = AutoTokenizer.from_pretrained(folder)([row["text"] for row in rows], padding=True, return_tensors="pt")
    with torch.no_grad():
        guessed = model(**inputs).logits.argmax(-1).tolist()
    assert guessed == read(folder, "eval_answers.json")
    # And by the script itself, which trains it further.
    again = run(folder, tmp_path / "again", "--do_eval", *labels)
    assert again["eval_loss"] == pytest.approx(metrics["eval_loss"], rel=1e-5)
    run(folder, tmp_path / "further", "--do_train", *labels, max_steps=1)
    further = load_file(tmp_path / "further" / "adapter_model.safetensors")
    assert further.keys() == saved.keys() and not equal(further, saved)
    assert f'from_pretrained("{folder_of(family).name}"' in (tmp_path / "further" / "README.md").read_text(encoding="utf-8")


def test_adapters_train_nothing_but_themselves_and_the_head(folder_of, tmp_path):
    pytest.importorskip("peft")
    run(folder_of("v2"), tmp_path / "run", "--do_train", "--lora", "--lora_target_modules", "key_proj", lora_r=2)
    saved = load_file(tmp_path / "run" / "adapter_model.safetensors")
    adapted = [value.shape for name, value in saved.items() if "lora_A" in name]
    assert adapted == [(2, 32)] * 2 and all("key_proj" in name for name in saved if "lora_" in name)
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert "rank 2, alpha 16" in card and "library_name: peft" in card
    with pytest.raises(ValueError, match=r"not all of nothing are there; linear layers of this model: .*query_proj"):
        run(folder_of("v2"), tmp_path / "other", "--do_train", "--lora", "--lora_target_modules", "nothing")


# ------- what is wrong with a model


def altered(source, target, change):
    """A copy of a model whose weights `change` edits."""
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    state = weights(target)
    change(state)
    save_file(state, target / "model.safetensors", metadata={"format": "pt"})
    return target


def test_checkpoints_that_lack_weights_of_their_body_are_refused(folder_of, tmp_path):
    name = "bert.encoder.layer.1.output.dense.weight"
    broken = altered(folder_of("bert"), tmp_path / "broken", lambda state: state.pop(name))
    with pytest.raises(ValueError, match=f"lacks 1 weights of its model, {name} for one"):
        run(broken, tmp_path / "run", "--do_train")
    assert not (tmp_path / "run").exists()


def test_heads_for_other_labels_are_refused_unless_a_new_one_is_asked_for(finished, tmp_path, caplog):
    folder, _ = finished
    argv = ("--do_train", "--labels", "bad", "good", "other")
    with pytest.raises(ValueError, match=r"head is for 2 labels, the task has 3; give --ignore_mismatched_sizes"):
        run(folder, tmp_path / "run", *argv)
    assert not (tmp_path / "run").exists()
    run(folder, tmp_path / "run", *argv, "--ignore_mismatched_sizes", max_steps=1)
    assert weights(tmp_path / "run")["classifier.weight"].shape == (3, 32)


def test_weights_of_another_shape_in_the_body_are_refused_always(folder_of, tmp_path):
    with pytest.raises(ValueError, match=r"is \[48.*\] in .*, but \[64.*\] here: its configuration and its weights"):
        run(
            folder_of("bert"), tmp_path / "run", "--do_train", "--ignore_mismatched_sizes",
            config_overrides="intermediate_size=64",
        )  # fmt: skip


def test_damaged_weights_are_refused(folder_of, tmp_path):
    broken = altered(folder_of("bert"), tmp_path / "broken", lambda state: None)
    file = broken / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ValueError, match="cannot be read, or do not fit"):
        run(broken, tmp_path / "run", "--do_train")


def test_models_that_are_not_there_are_named(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        run(tmp_path / "nowhere", tmp_path / "run", "--do_train")
    with pytest.raises(ValueError, match="--model_name_or_path is missing"):
        data_args, model_args, args, given = parse(flags("x", tmp_path, "--do_train"), ToyArguments, description="toy")
        model_args.model_name_or_path = None
        fine_tuning.run(ToyData, data_args, model_args, args, given)


@pytest.mark.parametrize("family", ["bert", "v2"])
def test_tokenizers_that_do_not_fit_the_model_are_refused(family, folder_of, tokenizer, tmp_path):
    big = finish(Tokenizer(models.WordLevel({f"word{n}": n for n in range(99)} | {"[UNK]": 99}, unk_token="[UNK]")))
    big.save_pretrained(tmp_path / "big")
    with pytest.raises(ValueError, match=r"32 (embeddings|rows)"):
        run(folder_of(family), tmp_path / "run", "--do_train", tokenizer_name=tmp_path / "big")
    bare = AutoTokenizer.from_pretrained(folder_of("bert"))
    bare.backend_tokenizer.post_processor = None
    bare.save_pretrained(tmp_path / "bare")
    if family == "bert":
        with pytest.raises(ValueError, match=r"does not put its \[CLS\] around a text"):
            run(folder_of(family), tmp_path / "run", "--do_train", tokenizer_name=tmp_path / "bare")
    else:
        # This package's tokenizer brings the template back.
        run(folder_of(family), tmp_path / "run", "--do_train", tokenizer_name=tmp_path / "bare", max_steps=1)


def test_a_loss_that_is_not_finite_ends_the_run(folder_of, tmp_path):
    broken = altered(
        folder_of("bert"), tmp_path / "broken", lambda state: state["bert.embeddings.LayerNorm.weight"].fill_(torch.nan)
    )
    with pytest.raises(ValueError, match="the loss of step 1 is nan"):
        run(broken, tmp_path / "run", "--do_train")


@pytest.mark.parametrize(
    ("argv", "given", "message"),
    [
        (["--do_train"], dict(train_count=0), "--do_train has no data: give --train_file"),
        (["--do_train", "--do_eval"], dict(evaluation_count=0), "--do_eval has no data: give --validation_file"),
        (["--do_predict"], dict(test_count=0), "--do_predict has no data: give --test_file"),
        (["--do_train"], dict(evaluation_count=0, eval_strategy="steps", eval_steps=1), "--do_eval has no data"),
        (["--do_train"], dict(prediction_loss_only="true"), "--prediction_loss_only must be False"),
        (["--do_eval"], dict(resume_from_checkpoint="last"), "--resume_from_checkpoint is for training"),
        (["--do_train"], dict(sift_weight=1, sift_layer_norm="nothing"), "no LayerNorm named 'nothing'"),
    ],
    ids=["train", "eval", "predict", "strategy", "predictions", "resume", "sift"],
)  # fmt: skip
def test_runs_that_cannot_do_what_they_are_told_write_nothing(argv, given, message, folder_of, tmp_path):
    with pytest.raises(ValueError, match=message):
        run(folder_of("bert"), tmp_path / "run", *argv, **given)
    assert not (tmp_path / "run").exists()


# ------- folders, and runs that go on


class _Stop(TrainerCallback):
    """Ends the process's training as a kill would, after a step."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.step:
            raise KeyboardInterrupt


@pytest.fixture
def stop_after(monkeypatch):
    """stop_after(step): trainers made from now on are stopped in their training; None lets them run."""
    steps = []
    make = TaskTrainer.__init__

    def init(self, *args, **kwargs):
        make(self, *args, **kwargs)
        if steps and steps[-1] is not None:
            self.add_callback(_Stop(steps[-1]))

    monkeypatch.setattr(TaskTrainer, "__init__", init)
    return steps.append


def test_a_resumed_run_has_the_weights_of_one_that_was_not_stopped(folder_of, stop_after, tmp_path):
    """To the last bit, with dropout, adversarial noise and accumulated micro-batches."""
    given = dict(max_steps=6, gradient_accumulation_steps=2, per_device_train_batch_size=2, sift_weight=1, **SAVING)
    whole = run(folder_of("ours"), tmp_path / "whole", "--do_train", "--do_eval", **given)
    stop_after(5)
    with pytest.raises(KeyboardInterrupt):
        run(folder_of("ours"), tmp_path / "run", "--do_train", "--do_eval", **given)
    stop_after(None)
    resumed = run(folder_of("ours"), tmp_path / "run", "--do_train", "--do_eval", **given, resume_from_checkpoint="last")
    assert equal(weights(tmp_path / "whole"), weights(tmp_path / "run"))
    for name in ("eval_loss", "eval_accuracy"):
        assert resumed[name] == whole[name]
    histories = [read(tmp_path / name, "trainer_state.json")["log_history"] for name in ("whole", "run")]
    losses = [[entry["loss"] for entry in history if "loss" in entry] for history in histories]
    assert losses[0] == losses[1] and len(losses[0]) == 6


def test_a_folder_that_is_not_empty_is_neither_resumed_nor_wiped(finished, folder_of, tmp_path):
    folder, _ = finished
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    with pytest.raises(ValueError, match=r"is not empty: go on from .*--overwrite_output_dir moves it aside"):
        run(folder_of("ours"), folder, "--do_train")
    for other in ("file.txt", "model.safetensors"):
        (tmp_path / other).mkdir()
        (tmp_path / other / other).write_text("x", encoding="utf-8")
        with pytest.raises(ValueError, match=r"is not empty: .*choose another --output_dir"):
            run(folder_of("ours"), tmp_path / other, "--do_eval")
    assert before == {file: file.stat().st_mtime_ns for file in folder.rglob("*")}


def test_overwriting_moves_the_old_folder_aside(folder_of, tmp_path, capsys):
    folder = tmp_path / "run"
    for number in range(3):
        run(folder_of("bert"), folder, "--do_train", "--overwrite_output_dir", max_steps=1, seed=number)
    assert {file.name for file in tmp_path.iterdir()} == {"run", "run.old-1", "run.old-2"}
    assert "is not empty: it is" in capsys.readouterr().out
    seeds = [read(tmp_path / name, "run_arguments.json")["seed"] for name in ("run.old-1", "run.old-2", "run")]
    assert seeds == [0, 1, 2]
    assert weights(folder) and weights(tmp_path / "run.old-1")


def test_overwriting_spares_what_is_read(finished, tmp_path):
    folder, _ = finished
    with pytest.raises(ValueError, match=r"--overwrite_output_dir would move .*everything aside"):
        run(folder, folder, "--do_train", "--overwrite_output_dir")
    with pytest.raises(ValueError, match=r"would move .*train.csv aside"):
        run("x", tmp_path, "--do_train", "--overwrite_output_dir", train_file=tmp_path / "train.csv")
    with pytest.raises(ValueError, match="both given: which"):
        run("x", tmp_path, "--do_train", "--overwrite_output_dir", resume_from_checkpoint="last")


def test_a_resumed_run_has_the_arguments_that_began_it(folder_of, finished, tmp_path):
    folder, _ = finished
    with pytest.raises(ValueError, match=r"learning_rate = 0.5, begun with 0.01"):
        given = dict(learning_rate=0.5, resume_from_checkpoint="last")
        run(folder_of("ours"), folder, "--do_train", "--second_set", **given, **SAVING)
    with pytest.raises(ValueError, match="there is no checkpoint"):
        run(folder_of("ours"), tmp_path / "run", "--do_train", resume_from_checkpoint="last")
    # From a checkpoint of another run, into a folder of its own.
    checkpoint = folder / "checkpoint-2"
    run(folder_of("ours"), tmp_path / "run", "--do_train", "--second_set", resume_from_checkpoint=checkpoint, seed=7)
    assert read(tmp_path / "run", "trainer_state.json")["global_step"] == 4
    with pytest.raises(ValueError, match="is not empty"):
        run(folder_of("ours"), tmp_path / "run", "--do_train", resume_from_checkpoint=checkpoint)


def test_a_finished_run_that_is_resumed_keeps_its_results(folder_of, tmp_path):
    run(folder_of("bert"), tmp_path / "run", "--do_train", "--do_eval", **SAVING)
    before = read(tmp_path / "run", "all_results.json"), weights(tmp_path / "run")
    run(folder_of("bert"), tmp_path / "run", "--do_train", "--do_eval", resume_from_checkpoint="last")
    assert equal(weights(tmp_path / "run"), before[1])
    assert read(tmp_path / "run", "all_results.json")["eval_loss"] == before[0]["eval_loss"]


# ------- seeds


def test_seeds_are_runs_of_their_own_and_a_summary(folder_of, tmp_path):
    summary = run(folder_of("bert"), tmp_path / "run", "--do_train", "--do_eval", "--seeds", 3, 5)
    runs = [read(tmp_path / "run" / f"seed-{seed}", "all_results.json") for seed in (3, 5)]
    losses = [results["eval_loss"] for results in runs]
    assert summary == read(tmp_path / "run", "all_results.json") and summary["seeds"] == [3, 5]
    assert summary["eval_loss"]["values"] == losses and losses[0] != losses[1]
    assert summary["eval_loss"]["mean"] == pytest.approx(np.mean(losses))
    assert summary["eval_loss"]["standard_deviation"] == pytest.approx(np.std(losses, ddof=1))
    assert (tmp_path / "run" / "seeds.png").is_file() and (tmp_path / "run" / "README.md").is_file()
    # Each as it would have been alone.
    alone = run(folder_of("bert"), tmp_path / "alone", "--do_train", "--do_eval", seed=5)
    assert alone["eval_loss"] == losses[1]
    assert equal(weights(tmp_path / "alone"), weights(tmp_path / "run" / "seed-5"))


def test_resumed_seeds_skip_those_that_are_finished(folder_of, stop_after, tmp_path, capsys):
    argv = (folder_of("bert"), tmp_path / "run", "--do_train", "--do_eval", "--seeds", 1, 2)
    whole = run(folder_of("bert"), tmp_path / "whole", *argv[2:])
    run(folder_of("bert"), tmp_path / "run", *argv[2:-1])
    finished_at = (tmp_path / "run" / "seed-1" / "model.safetensors").stat().st_mtime_ns
    with pytest.raises(ValueError, match=r"is not empty: .*go on with --resume_from_checkpoint last"):
        run(*argv)
    stop_after(3)
    with pytest.raises(KeyboardInterrupt):
        run(*argv, resume_from_checkpoint="last", **SAVING)
    stop_after(None)
    summary = run(*argv, resume_from_checkpoint="last")
    assert summary["eval_loss"] == whole["eval_loss"]
    assert (tmp_path / "run" / "seed-1" / "model.safetensors").stat().st_mtime_ns == finished_at
    for seed in (1, 2):
        same = [weights(tmp_path / name / f"seed-{seed}") for name in ("whole", "run")]
        assert equal(*same)
    assert "seed-1 is finished" in capsys.readouterr().out


def test_seeds_without_a_checkpoint_begin_anew_beside_what_is_left(folder_of, stop_after, tmp_path):
    argv = (folder_of("bert"), tmp_path / "run", "--do_train", "--do_eval", "--seeds", 1)
    stop_after(1)
    with pytest.raises(KeyboardInterrupt):
        run(*argv)
    stop_after(None)
    (tmp_path / "run" / "seed-1" / "checkpoint-2").mkdir()
    run(*argv, resume_from_checkpoint="last")
    assert (tmp_path / "run" / "seed-1.old-1" / "checkpoint-2").is_dir()
    assert (tmp_path / "run" / "seed-1" / "README.md").is_file()


def test_seeds_are_resumed_by_the_folder_of_all(folder_of, tmp_path):
    with pytest.raises(ValueError, match="--resume_from_checkpoint must be 'last' with --seeds, got somewhere"):
        run(folder_of("bert"), tmp_path / "run", "--do_train", "--seeds", 1, resume_from_checkpoint="somewhere")
    with pytest.raises(ValueError, match=r"there is no run in .* to resume"):
        run(folder_of("bert"), tmp_path / "run", "--do_train", "--seeds", 1, resume_from_checkpoint="last")


# ------- the Hub


def test_the_folder_is_pushed_once_with_its_card(folder_of, tmp_path, monkeypatch):
    pushed = []

    def push(self, *args, **kwargs):
        pushed.append((Path(self.args.output_dir) / "README.md").read_text(encoding="utf-8"))

    monkeypatch.setattr(TaskTrainer, "push_to_hub", push)
    monkeypatch.setattr(TaskTrainer, "init_hf_repo", lambda self, *args, **kwargs: None)
    run(folder_of("bert"), tmp_path / "run", "--do_train", "--do_eval", "--push_to_hub", hub_strategy="end")
    assert len(pushed) == 1 and "| accuracy |" in pushed[0]
