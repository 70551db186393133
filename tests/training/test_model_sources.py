# SPDX-License-Identifier: Apache-2.0
"""Models and tokenizers that are named by a path or as on the Hub."""

import json

import glue_script
import mlm_script
import pytest
from scripts import command_line, module_of

from hf_deberta_ext.training.model_sources import announce_official, check_source


def test_a_path_without_a_folder_is_no_name_on_the_hub(tmp_path):
    (tmp_path / "file").touch()
    for source in ("./none", "here/no/model", str(tmp_path / "none"), str(tmp_path / "file")):
        with pytest.raises(OSError, match=f"--model {source}: there is no such folder"):
            check_source(source, "--model")
    for source in ("someone/model", "model", str(tmp_path)):
        check_source(source, "--model")


TOKENIZERS = dict(run_glue="tokenizer_name", run_mlm="tokenizer", run_rtd="tokenizer", prepare_corpus="tokenizer")


@pytest.mark.parametrize("source", ["typo_tok", "here/no/typo_tok"])
@pytest.mark.parametrize("script", TOKENIZERS)
def test_a_mistyped_tokenizer_is_named_with_its_flag(script, source, tmp_path):
    """It gave the Hub's own lines, which name neither."""
    glue_script.write_material(tmp_path)
    mlm_script.write_text(tmp_path / "text.txt")
    given = {TOKENIZERS[script]: source}
    argv = {
        "run_glue": lambda: glue_script.arguments(tmp_path, tmp_path / "run", "--do_train", **given),
        "prepare_corpus": lambda: command_line(dict(train_data=tmp_path / "text.txt", output_dir=tmp_path / "run") | given),
    }.get(script, lambda: mlm_script.arguments(tmp_path / "text.txt", tmp_path / "run", **given))()
    with pytest.raises(SystemExit) as ended:
        module_of(script).main(argv)
    assert f"error: --{TOKENIZERS[script]} {source}: " in str(ended.value) and "\n" not in str(ended.value)
    assert ended.value.code == 2 and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, "a DeBERTa checkpoint in Microsoft's own files"),
        ({"transformers_version": "5.0.0"}, "a checkpoint of transformers' deberta-v2 classes"),
    ],
    ids=["Microsoft", "transformers"],
)
def test_a_checkpoint_is_named_by_who_saved_it(fields, kind, tmp_path, caplog):
    """Folders of transformers' classes were called official."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deberta-v2"} | fields), encoding="utf-8")
    assert announce_official(str(tmp_path))
    assert f"{tmp_path} is {kind}: it is trained as this package's model, deberta-ext" in caplog.text
