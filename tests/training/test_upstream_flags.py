# SPDX-License-Identifier: Apache-2.0
"""Flags of transformers' own example scripts, accepted or explained by ours; and `--help` of every script."""

import re
import sys

import pytest
from scripts import EXAMPLES, command_line, flags_of, module_of

from hf_deberta_ext.files import as_list
from hf_deberta_ext.pretraining.run_arguments import ELSEWHERE

# Their flags that have no meaning here.
GONE = {"use_fast_tokenizer", "overwrite_cache"}
PRETRAINING = ["run_mlm", "run_rtd"]

# Flags and values of transformers' run_glue.py, run_qa.py, run_swag.py, run_ner.py and run_mlm.py in 5.23.
MODEL = dict(
    model_name_or_path="some-model", config_name="a", tokenizer_name="b", cache_dir="c", use_fast_tokenizer="true",
    model_revision="main", token="d", trust_remote_code="true",
)  # fmt: skip
DATA = dict(
    dataset_name="e", dataset_config_name="f", train_file="a.json", validation_file="b.json", test_file="c.json",
    overwrite_cache="true", preprocessing_num_workers="2", max_seq_length="128", pad_to_max_length="true",
    max_train_samples="9", max_eval_samples="8", max_predict_samples="7",
)  # fmt: skip
CORE = {
    "run_glue": MODEL | DATA | dict(task_name="sst2", ignore_mismatched_sizes="true"),
    "run_squad": MODEL | DATA | dict(
        version_2_with_negative="true", null_score_diff_threshold="0.5", doc_stride="32", n_best_size="5",
        max_answer_length="20",
    ),
    "run_race": MODEL | DATA,
    "run_ner": MODEL | DATA | dict(
        text_column_name="words", label_column_name="tags", label_all_tokens="true", return_entity_level_metrics="true",
    ),
    # Either files or a data set; here both are the same flag.
    "run_mlm": {name: value for name, value in (MODEL | DATA).items() if not re.search("predict|test|dataset_name", name)}
    | dict(
        model_type="deberta-v2", config_overrides="hidden_size=32", dtype="float32", validation_split_percentage="5",
        mlm_probability="0.2", line_by_line="true", streaming="true",
    ),
}  # fmt: skip
# Flags of Trainer in the commands of the official model cards.
TRAINER = dict(
    do_train="true", do_eval="true", output_dir="out", per_device_train_batch_size="8", learning_rate="1e-5",
    num_train_epochs="3", logging_steps="10", weight_decay="0.01", warmup_steps="50", seed="3", data_seed="4",
    eval_strategy="steps", gradient_accumulation_steps="2", max_grad_norm="1.0", gradient_checkpointing="true",
    torch_compile="false", push_to_hub="false", resume_from_checkpoint="last",
)  # fmt: skip


@pytest.mark.parametrize("script", CORE)
def test_core_flags_of_transformers_scripts_are_taken_or_answered(script, monkeypatch):
    """Flags with a meaning here are accepted with their values; each of the others is named in the error."""
    flags = CORE[script] | TRAINER
    with pytest.raises(SystemExit) as ended:
        flags_of(script, command_line(flags), monkeypatch)
    answered = {*re.findall(r"(?:unknown flag |; |error: )--(\w+)", str(ended.value))}
    assert answered <= {*GONE, *ELSEWHERE}
    taken = {name: value for name, value in flags.items() if name not in answered}
    assert len(taken) > 30
    values = flags_of(script, command_line(taken), monkeypatch)
    found = {str(getattr(part, "value", part)).lower() for value in values.values() for part in as_list(value)}
    # Numbers may be displayed in another format.
    assert [value for value in taken.values() if value not in found and not re.fullmatch(r"[\d.]+(e-\d+)?", value)] == []


@pytest.mark.parametrize("script", PRETRAINING)
def test_texts_of_pretraining_are_files_or_a_data_set_and_slips_get_the_nearest_flag(script, monkeypatch):
    for flag in ("train_data", "train_file", "dataset_name"):
        assert flags_of(script, [f"--{flag}", "texts", "--output_dir", "out"], monkeypatch)["train_data"] == ["texts"]
    with pytest.raises(SystemExit, match=rf"{script}: error: unknown flag --masking_rat3; did you mean --masking_rate\?"):
        flags_of(script, ["--train_data", "a.txt", "--output_dir", "out", "--masking_rat3", "0.1"], monkeypatch)
    with pytest.raises(SystemExit, match=rf"{script}: error: --line_by_line is not a flag of this script: "):
        flags_of(script, ["--train_data", "a.txt", "--output_dir", "out", "--line_by_line", "1"], monkeypatch)


@pytest.mark.parametrize("script", EXAMPLES)
def test_every_script_prints_its_help(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [f"{script}.py", "--help"])
    with pytest.raises(SystemExit) as end:
        module_of(script).main()
    printed = capsys.readouterr().out
    assert end.value.code == 0 and printed.startswith(f"usage: {script}.py") and "--help" in printed
