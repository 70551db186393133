# SPDX-License-Identifier: Apache-2.0
"""A resumed run is the same run or is rejected: everything that shapes the weights, in users' own code and in scripts."""

import functools
import json
import operator
import shutil

import datasets
import glue_script
import mlm_script
import pytest
import torch
from safetensors.torch import load_file, save_file
from scripts import module_of
from small_pretraining import SIZES, build, train
from torch.utils.data import Dataset
from transformers import DataCollatorWithPadding, TrainingArguments, default_data_collator

from hf_deberta_ext import DebertaExtConfig, DebertaExtForSequenceClassification
from hf_deberta_ext.pretraining import MaskingOptions
from hf_deberta_ext.training.checkpoints import MANIFEST_FILE, write_manifest
from hf_deberta_ext.training.digests import tokenizer_digest
from hf_deberta_ext.training.folder_lock import unlock_folders
from hf_deberta_ext.training.run_folder import ARGUMENTS_FILE, accepted_changes, begin_run, examples_digest
from hf_deberta_ext.training.trainer import RunTrainer

CHECKPOINT, LAST = "checkpoint-4", "checkpoint-8"


class Collator:
    """Collator with options, like `MaskingCollator`."""

    def __init__(self):
        self.options = MaskingOptions()

    def __call__(self, rows):
        return default_data_collator(rows)


def make(folder, **arguments):
    trainer = build(folder, **arguments)
    trainer.data_collator = Collator()
    return trainer


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    make(folder).train()
    return folder


@pytest.fixture
def stopped(whole, tmp_path):
    """Return the run as of step 4 of 8."""
    shutil.copytree(whole / CHECKPOINT, tmp_path / "run" / CHECKPOINT)
    shutil.copy(whole / ARGUMENTS_FILE, tmp_path / "run")
    return tmp_path / "run"


def resume(folder, change=None, anyway=None, **arguments):
    trainer = make(folder, **arguments)
    if change is not None:
        change(trainer)
    trainer.train(str(folder / CHECKPOINT), allow_changed_args=anyway)
    return trainer


def change(path, value):
    """Return a function that sets an attribute of a trainer, such as "model.config.hidden_dropout_prob"."""
    place, _, name = path.rpartition(".")
    return lambda trainer: setattr(operator.attrgetter(place)(trainer) if place else trainer, name, value)


DATA_CHANGED = "data_digest = '12 rows, .*', initially '12 rows, "
# Changes on resume and the error line: field, new value, old value.
CHANGES = [
    (dict(learning_rate=1e-4), "learning_rate = 0.0001, initially 0.001"),
    (dict(adam_beta2=0.9), "adam_beta2 = 0.9, initially 0.999"),
    (dict(bf16=True), "bf16 = True, initially False"),
    (dict(max_steps=9), "max_steps = 9, initially 8"),
    (dict(per_device_train_batch_size=4), "batch_size = 4, initially 2; per_device_train_batch_size = 4, initially"),
    (dict(gradient_accumulation_steps=2), "batch_size = 4, initially 2"),
    (dict(lr_scheduler_kwargs={}), "lr_scheduler_kwargs = {}, initially None"),
    (dict(mlm_weight=0.5), "mlm_weight = 0.5, initially 1.0"),
    (dict(change=lambda run: run.train_dataset.pop()), "data_digest = '11 rows, .*', initially '12 rows, "),
    (dict(change=lambda run: run.train_dataset[7]["labels"].add_(1)), DATA_CHANGED),
    (dict(change=change("model.config.hidden_dropout_prob", 0.0)), r"config.hidden_dropout_prob = 0.0, initially 0.2"),
    (dict(change=lambda run: run.model.set_attn_implementation("eager")), "config.attn_implementation = 'eager', "),
    (dict(change=lambda run: run.model.deberta.embeddings.requires_grad_(False)), "trained_parameters = .*, initially "),
    (dict(change=change("data_collator", DataCollatorWithPadding(None))), "data_collator = 'DataCollatorWithPadding', "),
    (dict(change=change("data_collator.options", MaskingOptions(rate=0.3))), "data_collator_options = .*rate=0.3,.*"),
]


@pytest.mark.parametrize(("given", "message"), CHANGES, ids=[message.partition(",")[0] for _, message in CHANGES])
def test_a_trainer_refuses_to_go_on_with_anything_else_that_shapes_the_weights(given, message, stopped):
    """Previously, run_mlm.py accepted other batches, precision, clipping, data and attention."""
    with pytest.raises(ValueError, match=f"a resumed run must have its initial arguments, but got {message}"):
        resume(stopped, **given)


def test_what_is_printed_saved_and_measured_may_differ(stopped, whole):
    given = dict(logging_steps=3, save_steps=4, save_total_limit=3, run_name="again", eval_strategy="no")
    resume(stopped, dataloader_num_workers=1, report_to="none", per_device_eval_batch_size=3, **given)
    mlm_script.assert_same_weights(stopped / LAST, whole / LAST)


def begun_by(processes, folder):
    """Change the record of the run to this number of processes, with the same number of examples per step."""
    for file in folder.rglob(ARGUMENTS_FILE):
        record = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps(record | dict(world_size=processes)), encoding="utf-8")
    for manifest in folder.rglob(MANIFEST_FILE):
        write_manifest(manifest.parent)
    return folder


def test_the_accumulation_follows_the_number_of_processes(tmp_path, caplog):
    """With the flags of two processes, one process resumes with twice the accumulation steps."""
    four_rows = dict(gradient_accumulation_steps=2)
    make(tmp_path / "whole", **four_rows).train()
    shutil.copytree(tmp_path / "whole" / CHECKPOINT, tmp_path / "run" / CHECKPOINT)
    trainer = resume(begun_by(2, tmp_path / "run"))
    assert trainer.args.gradient_accumulation_steps == 2
    assert "gradient_accumulation_steps is set to 2, to keep the 4 examples per step of this run" in caplog.text
    mlm_script.assert_same_weights(tmp_path / "run" / LAST, tmp_path / "whole" / LAST)
    # The same number of processes, or a number that cannot divide the step.
    for processes, size in ((1, 2), (3, 3)):
        begun_by(processes, tmp_path / "run")
        with pytest.raises(ValueError, match=f"batch_size = {size}, initially 4"):
            resume(tmp_path / "run", per_device_train_batch_size=size)


def test_a_chosen_difference_is_recorded_and_is_the_run_from_then_on(stopped):
    with pytest.raises(ValueError, match=r"= 0.5, initially 1.0.* pass --allow_changed_args bf16 max_grad_norm$"):
        resume(stopped, anyway=["bf16"], bf16=True, max_grad_norm=0.5)
    # A known field with the same value.
    resume(stopped, anyway=["bf16", "max_grad_norm", "seed"], max_grad_norm=0.5)
    record = json.loads((stopped / ARGUMENTS_FILE).read_text(encoding="utf-8"))
    assert record["max_grad_norm"] == 0.5 and record["changed_args"] == [dict(step=4, max_grad_norm=[1.0, 0.5])]
    assert accepted_changes(stopped) == "max_grad_norm from step 4 on"
    make(stopped, max_grad_norm=0.5).train(str(stopped / "checkpoint-6"))
    with pytest.raises(ValueError, match=r"max_grad_norm = 1.0, initially 0.5"):
        make(stopped).train(True)


def rates(history):
    return [entry["learning_rate"] for entry in history if "learning_rate" in entry]


@pytest.mark.parametrize("length", [dict(max_steps=8), dict(max_steps=-1, num_train_epochs=2)], ids=["steps", "epochs"])
def test_a_finished_run_is_trained_longer_by_the_same_schedule(length, tmp_path):
    half = {name: value // 2 for name, value in length.items()}
    constant = dict(lr_scheduler_type="constant_with_warmup", warmup_steps=2, save_steps=2)
    train(tmp_path / "whole", **constant, **length)
    train(tmp_path / "run", **constant, **half)
    longer = constant | length
    with pytest.raises(ValueError, match=r"or, to train longer, --train_longer same_schedule or new_schedule"):
        train(tmp_path / "run", "last", **longer)
    train(tmp_path / "run", "last", **longer, train_longer="same_schedule")
    mlm_script.assert_same_weights(tmp_path / "whole", tmp_path / "run")
    assert "from step" in accepted_changes(tmp_path / "run")


def test_a_finished_run_is_trained_longer_by_the_schedule_of_the_longer_run(whole, tmp_path):
    train(tmp_path / "run", max_steps=4)
    trainer = train(tmp_path / "run", "last", train_longer="new_schedule")
    history = json.loads((whole / LAST / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    assert rates(trainer.state.log_history)[4:] == rates(history)[4:]


@pytest.mark.parametrize(
    "schedule",
    [dict(), dict(lr_scheduler_type="constant_with_warmup", warmup_steps=0.1), dict(published_optimizer=True)],
    ids=["linear", "share", "published"],
)
def test_a_schedule_that_depends_on_the_number_of_steps_cannot_stay_the_same(schedule, tmp_path):
    with pytest.raises(ValueError, match="--train_longer same_schedule needs a schedule that does not depend on the number"):
        make(tmp_path, train_longer="same_schedule", **schedule)


@pytest.mark.parametrize("name", ["learning_rate", "adam_beta2", "weight_decay"])
def test_values_that_the_checkpoint_holds_cannot_be_changed(name, stopped):
    """Without an error, Trainer would silently use the checkpoint's values."""
    with pytest.raises(ValueError, match=f"{name} = 0.5, initially .*no flag changes {name}, because the checkpoint"):
        resume(stopped, anyway=[name], **{name: 0.5})


def test_a_checkpoint_carries_the_record_of_its_run(stopped, whole, tmp_path):
    """If the checkpoint is copied into another run's folder, or into none, it is still compared."""
    for place in (tmp_path / "alone", tmp_path / "other"):
        shutil.copytree(stopped / CHECKPOINT, place / CHECKPOINT)
    begin_run(tmp_path / "other", dict(seed=7))
    for place in ("alone", "other"):
        with pytest.raises(ValueError, match="seed = 7, initially 42"):
            resume(tmp_path / place, seed=7)
    resume(tmp_path / "alone")
    mlm_script.assert_same_weights(tmp_path / "alone" / LAST, whole / LAST)


class Drawn(Dataset):
    """Rows that are generated at every read."""

    def __len__(self):
        return 8

    def __getitem__(self, number):
        return dict(input_ids=torch.randint(5, 64, (6,)), labels=torch.tensor(number % 2))


def test_evaluations_and_digests_change_no_random_number(tmp_path):
    """A data loader draws a seed whenever it starts: with dropout on a CPU, --eval_steps used to change the weights."""
    weights = []
    for evaluated in (False, True):
        args = TrainingArguments(
            str(tmp_path / f"run-{evaluated}"), max_steps=4, use_cpu=True, report_to="none", disable_tqdm=True,
            per_device_train_batch_size=2, learning_rate=1e-3, eval_strategy="steps" if evaluated else "no", eval_steps=1,
        )  # fmt: skip
        torch.manual_seed(0)
        model = DebertaExtForSequenceClassification(DebertaExtConfig(**SIZES))
        trainer = RunTrainer(model, args, train_dataset=Drawn(), eval_dataset=Drawn())
        state = torch.get_rng_state()
        assert examples_digest(trainer.train_dataset) == "8 rows, drawn when they are read"
        assert torch.equal(state, torch.get_rng_state())
        trainer.train()
        weights.append(trainer.model.state_dict())
    assert all(torch.equal(weight, weights[1][name]) for name, weight in weights[0].items())


# Column -> values, and the same values with one change.
COLUMNS = dict(
    input_ids=([[1, 2, 3], [4], [], [5, 6]], [[1, 2], [3, 4], [], [5, 6]]),
    labels=([0, 1, None, 1], [0, 1, 0, 1]),
    text=(["a", "b", None, "é"], ["a", "b", "", "é"]),
    choices=([[[1], [2, 3]], [[4], []], [[5]], []], [[[1, 2], [3]], [[4], []], [[5]], []]),
    kept=([True, False, True, True], [True, False, True, False]),
    spans=([{"begin": n} for n in range(4)], [{"begin": 0}, {"begin": 1}, {"begin": 2}, {"begin": None}]),
)


def test_examples_have_one_digest_however_they_are_stored_and_another_with_any_other_value(tmp_path):
    columns = {name: values for name, (values, _) in COLUMNS.items()}
    rows = datasets.Dataset.from_dict(columns)
    digest = examples_digest(rows)
    assert digest.startswith("4 rows, ")
    double = datasets.concatenate_datasets([rows, rows])
    double.save_to_disk(str(tmp_path / "saved"), num_shards=3)
    for same in (
        double.select(range(4, 8)),
        double.select([4, 1, 6, 3]),
        datasets.concatenate_datasets([rows.select([0]), rows.select(range(1, 4))]),
        datasets.load_from_disk(str(tmp_path / "saved")).select(range(4)),
        rows.map(lambda row: row, load_from_cache_file=False),
        rows.with_format("torch", columns=["kept"]),
    ):
        assert examples_digest(same) == digest
    others = [datasets.Dataset.from_dict(columns | {name: other}) for name, (_, other) in COLUMNS.items()]
    for other in (rows.select([1, 0, 2, 3]), double, *others):
        assert examples_digest(other) != digest


def test_calls_do_not_change_the_digest_of_a_tokenizer_and_words_do(folder_of):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder_of("ours"))
    digest = tokenizer_digest(tokenizer)
    tokenizer(["film", "a play"], padding="max_length", truncation=True, max_length=7)
    assert tokenizer_digest(tokenizer) == digest == tokenizer_digest(AutoTokenizer.from_pretrained(folder_of("bert")))
    tokenizer.add_tokens(["neu"])
    assert tokenizer_digest(tokenizer) != digest


def other_text(folder):
    """Change one word of the data; in a table, a label."""
    for file in folder.glob("t*.t*"):
        content = file.read_text(encoding="utf-8")
        file.write_text(content.replace("cat", "elk").replace("poor\t0", "poor\t1"), encoding="utf-8")


def other_weights(folder):
    file = folder / "model" / "model.safetensors"
    weights = {name: weight + 1 for name, weight in load_file(file).items()}
    save_file(weights, file, metadata={"format": "pt"})


def other_words(folder):
    file = folder / "model" / "tokenizer.json"
    file.write_text(file.read_text(encoding="utf-8").replace('"Ġ', '"G'), encoding="utf-8")


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Return begun(name): script, flags and folder of files, with a checkpoint at step 2 of 4 in "run"."""

    @functools.cache
    def begin(name):
        folder = tmp_path_factory.mktemp(name)
        given = dict(save_steps=2, save_strategy="steps")
        if name == "run_glue":
            glue_script.write_material(folder)
            flags = glue_script.arguments(folder, folder / "run", "--do_train", **given)
        else:
            mlm_script.write_text(folder / "text.txt")
            if name == "stream":
                given |= dict(streaming="true", shuffle_buffer=20)
            flags = mlm_script.arguments(folder / "text.txt", folder / "run", **given)
        script = module_of(name.replace("stream", "run_mlm"))
        script.main(flags)
        return script, flags, folder

    return begin


@pytest.mark.parametrize(
    ("name", "change", "digest"),
    [
        ("run_mlm", other_text, "data_digest"),
        ("run_rtd", other_text, "data_digest"),
        ("stream", other_text, "data_digest"),
        ("run_glue", other_text, "data_digest"),
        ("run_glue", other_weights, "weights_digest"),
        ("run_glue", other_words, "tokenizer_digest"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_scripts_notice_that_their_files_have_changed(name, change, digest, begun, tmp_path):
    """Previously, scripts only compared paths, and resumed with other texts and labels."""
    script, flags, folder = begun(name)
    shutil.copytree(folder, tmp_path / "copy")
    change(folder)
    try:
        with pytest.raises(SystemExit, match=rf"{digest} = '.*', initially '.*--allow_changed_args .*{digest}") as ended:
            script.main([*flags, "--resume_from_checkpoint", "last"])
        assert ended.value.code == 2
    finally:
        unlock_folders()
        shutil.rmtree(folder)
        (tmp_path / "copy").rename(folder)
