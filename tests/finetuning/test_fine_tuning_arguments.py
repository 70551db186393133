# SPDX-License-Identifier: Apache-2.0
"""Flags of the fine-tuning scripts: groups, files of flags, recipes, and messages for removed flags."""

import json
import re
from dataclasses import dataclass

import pytest

from hf_deberta_ext.finetuning.arguments import DataArguments, parse
from hf_deberta_ext.training.flags import option


@dataclass
class ToyArguments(DataArguments):
    toy_column: str = option("toy", "of the test")
    label_names: list[str] = option(list, "of the test")


def flags(tmp_path, *more):
    return ["--model", "some-model", "--output_dir", str(tmp_path / "run"), "--do_train", *map(str, more)]


def parsed(argv):
    return parse(argv, ToyArguments, description="A test.\n\nNot shown.")


def test_flags_of_all_groups_are_parsed_and_those_given_are_named(tmp_path):
    argv = flags(
        tmp_path, "--train_file", "a.csv", "b.csv", "--toy_column", "x", "--seeds", 1, 2, "--lora", "--task_name", "MNLI"
    )
    data_args, model_args, args, given = parsed(argv)
    assert data_args.train_file == ["a.csv", "b.csv"] and data_args.toy_column == "x"
    assert data_args.task_name == "mnli" and ToyArguments().task_name is None
    assert model_args.model_name_or_path == "some-model" and model_args.lora and model_args.dtype == "float32"
    assert args.seeds == [1, 2] and args.do_train and not args.do_eval
    assert {*given} == {*"model_name_or_path output_dir do_train train_file toy_column seeds lora task_name".split()}
    assert not args.logging_nan_inf_filter


@pytest.mark.parametrize("kind", ["json", "yaml"])
def test_a_file_of_flags_says_the_same_as_a_command_line_whose_flags_win(kind, tmp_path):
    """YAML reads 1e-5 as text; transformers' reader would not convert it."""
    values = dict(
        model_name_or_path="some-model", output_dir=str(tmp_path / "run"), do_train=True, do_eval=False, seeds=[1, 2],
        learning_rate="1e-5", train_file=["a.csv"], max_seq_length=None,
        lr_scheduler_type="cosine_with_restarts", lr_scheduler_kwargs={"num_cycles": 2},
    )  # fmt: skip
    file = tmp_path / f"flags.{kind}"
    lines = [f"{name}: {'1e-5' if name == 'learning_rate' else json.dumps(value)}" for name, value in values.items()]
    file.write_text(json.dumps(values) if kind == "json" else "\n".join(lines), encoding="utf-8")
    data_args, _, args, given = parsed([str(file), "--seeds", "3", "4"])
    assert args.learning_rate == 1e-5 and args.seeds == [3, 4] and args.do_train and not args.do_eval
    assert args.lr_scheduler_kwargs == {"num_cycles": 2} and data_args.train_file == ["a.csv"]
    assert "learning_rate" in given and "max_seq_length" not in given


def test_a_recipe_fills_in_what_is_not_given(tmp_path, capsys):
    argv = flags(
        tmp_path, "--task_name", "sst2", "--recipe", "v3-large", "--learning_rate", "1e-6", "--use_cpu",
        "--per_device_train_batch_size", 4,
    )  # fmt: skip
    data_args, _, args, given = parsed(argv)
    assert (args.learning_rate, args.num_train_epochs, args.warmup_steps) == (1e-6, 8, 500)
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (4, 8)
    assert (args.adam_epsilon, args.weight_decay, data_args.max_seq_length) == (1e-6, 0.01, 128)
    assert "num_train_epochs" not in given
    shown = capsys.readouterr().out
    assert "your flag, recipe: 6e-06" in shown and "dropout before the classifier" in shown
    # Adversarial recipes bring the published form of the loss.
    _, _, args, _ = parsed(flags(tmp_path, "--task_name", "mnli", "--recipe", "v3-base-sift", "--use_cpu"))
    assert (args.sift_weight, args.sift_preset) == (5.0, "official")


@pytest.mark.parametrize("flag", ["--help", "--help_all"])
def test_help_shows_the_first_paragraph_and_trainers_flags_only_on_request(flag, capsys):
    with pytest.raises(SystemExit) as ended:
        parsed([flag])
    shown = capsys.readouterr().out
    assert ended.value.code == 0 and "A test." in shown and "Not shown" not in shown
    names = {*re.findall(r"--\w+", shown)}
    assert {"--recipe", "--model_name_or_path", "--train_file", "--toy_column", "--output_dir", "--lora_r"} <= names
    assert ("--weight_decay" in names) == (flag == "--help_all")
    # Spellings with hyphens are accepted but not shown.
    assert not re.search(r"--\w+-", shown)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--max_seq_length", 0], "--max_seq_length must be at least 1, got 0"),
        (["--seeds", 1, 1], "--seeds must be distinct, got 1 1"),
        (["--seeds", 1, 2, "--seed", 3], "--seed 3 has no effect with --seeds"),
        (["--seeds", 1, "--push_to_hub"], "--push_to_hub pushes one model"),
        (["--lora", "--from_scratch"], "random weights of --from_scratch would be lost"),
        (["--recipe", "base"], "--recipe needs --task_name, one of mnli"),
        (["--card_language", "en", "english"], "--card_language expects language codes .*, got 'english'"),
        (["--learning_rat3", "1"], r"unknown flag --learning_rat3; did you mean --learning_rate\?"),
        (["--max_steps", 0], "--max_steps must be at least 1, or -1 for --num_train_epochs, got 0"),
        (["--do_train", "false"], "give --do_train, --do_eval or --do_predict"),
        (["--do_train", "false", "--do_eval", "--seeds", 1], "--seeds needs --do_train"),
        (["--label_smoothing_factor", 3], r"--label_smoothing_factor must be in \[0, 1\), got 3"),
    ],
)
def test_wrong_values_and_flags_are_refused_by_name(more, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        parsed(flags(tmp_path, *more))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not valid json"),
        ("[1]", "must contain an object with flags as keys"),
        ('{"no_cuda": true}', "unknown flag"),
        ('{"max_st": 1}', r"unknown flag --max_st; did you mean --max_steps\?"),
    ],
)
def test_damaged_files_of_flags_are_refused(text, message, tmp_path):
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        parsed([str(tmp_path / "a.json")])
