# SPDX-License-Identifier: Apache-2.0
"""Models and tokenizers given by a path or a Hub id."""

import json

import glue_script
import mlm_script
import pytest
from scripts import command_line, module_of

from hf_deberta_ext import DebertaExtConfig, DebertaExtModel
from hf_deberta_ext.conversion.checkpoint_contents import describe
from hf_deberta_ext.tokenization import load_tokenizer

OFFICIAL = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=32)


@pytest.mark.parametrize(
    "load", [DebertaExtModel.from_pretrained, DebertaExtConfig.from_pretrained, load_tokenizer, describe]
)
def test_whatever_loads_says_that_a_folder_is_missing(load):
    """It gave the Hub's rules for the ids of repositories."""
    with pytest.raises(OSError, match=r"^expected a folder or a Hub id, got runs/no/model: there is no such folder$"):
        load("runs/no/model")


@pytest.mark.parametrize("load", [DebertaExtModel.from_pretrained, load_tokenizer])
def test_offline_an_uncached_file_is_reported_as_by_transformers(load, tmp_path):
    """With only the configuration in the cache, the repository was said to have no weights and no tokenizer."""
    cached = tmp_path / "models--some--model"
    for folder in ("refs", "snapshots/0000"):
        (cached / folder).mkdir(parents=True)
    (cached / "refs/main").write_text("0000", encoding="utf-8")
    config = json.dumps({"model_type": "deberta-v2"} | OFFICIAL)
    (cached / "snapshots/0000/config.json").write_text(config, encoding="utf-8")
    with pytest.raises(OSError, match=r"We couldn't connect to .* and couldn't find them in the cached files"):
        load("some/model", cache_dir=tmp_path, local_files_only=True)


@pytest.mark.parametrize("script", ["run_glue", "run_mlm", "run_rtd", "prepare_corpus"])
def test_a_mistyped_tokenizer_is_named_with_its_flag(script, tmp_path):
    """Previously, the Hub's own error named neither the tokenizer nor the flag."""
    flag = {"run_glue": "tokenizer_name"}.get(script, "tokenizer")
    text, given = tmp_path / "text.txt", {flag: "typo_tok"}
    mlm_script.write_text(text)
    if script == "run_glue":
        glue_script.write_material(tmp_path)
        argv = glue_script.arguments(tmp_path, tmp_path / "run", "--do_train", **given)
    elif script == "prepare_corpus":
        argv = command_line(dict(train_data=text, output_dir=tmp_path / "run") | given)
    else:
        argv = mlm_script.arguments(text, tmp_path / "run", **given)
    with pytest.raises(SystemExit) as ended:
        module_of(script).main(argv)
    assert f"error: --{flag} typo_tok: " in str(ended.value) and "\n" not in str(ended.value)
    assert ended.value.code == 2 and not (tmp_path / "run").exists()
