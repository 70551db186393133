# SPDX-License-Identifier: Apache-2.0
"""Model sources that are no folder: with and without a Hub that answers."""

import json
import time

import glue_script
import huggingface_hub
import mlm_script
import pytest
from scripts import command_line, module_of

from hf_deberta_ext.commands import main
from hf_deberta_ext.training.model_sources import announce_official, check_reachable, check_source


def use_hub(monkeypatch, address):
    path = huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE.removeprefix(huggingface_hub.constants.ENDPOINT)
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + path)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)


@pytest.mark.parametrize("offline", [False, True])
def test_a_mistyped_name_without_a_network_is_one_line_without_retries(offline, monkeypatch, tmp_path):
    """Each file was tried six times, in half a minute."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
    # Nobody listens there.
    use_hub(monkeypatch, "http://127.0.0.1:9")
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("a retry"))
    with pytest.raises(OSError, match=r"no folder debeta-v3-base, and the Hub cannot be reached \(.+\): give") as raised:
        check_source("debeta-v3-base", "--model", cache_dir=str(tmp_path))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("offline", [False, True])
@pytest.mark.parametrize(
    "line", ["info %s", "convert %s out", "explain --model %s", "eval --pairs a.tsv --model %s", "demo %s"]
)
def test_commands_say_it_at_once_too(line, offline, monkeypatch, tmp_path, capsys):
    argv = (line % "debeta").split()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
    use_hub(monkeypatch, "http://127.0.0.1:9")
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("a retry"))
    assert main(argv) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith(f"deberta-ext {argv[0]}: error: there is no folder debeta, and the Hub") and "\n" not in said


def test_a_hub_that_answers_is_asked_once_and_a_cached_model_or_a_folder_needs_none(hub, tmp_path):
    """`deberta-ext demo models/of/mine` was refused as a repository of a wrong name, unless HF_HUB_OFFLINE was set."""
    hub.fail("HEAD /someone/model", status=500)
    check_reachable(str(tmp_path))
    check_source("someone/model", "--model", revision="v2", cache_dir=str(tmp_path))
    assert [request.path for request in hub.requests] == ["/someone/model/resolve/v2/config.json"]
    cached = tmp_path / "models--someone--model" / "snapshots" / "v2"
    cached.mkdir(parents=True)
    (cached / "config.json").write_text("{}", encoding="utf-8")
    check_source("someone/model", "--model", revision="v2", cache_dir=str(tmp_path))
    assert len(hub.requests) == 1


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    glue_script.write_material(folder)
    mlm_script.write_text(folder / "text.txt")
    return folder


TOKENIZERS = dict(run_glue="tokenizer_name", run_mlm="tokenizer", run_rtd="tokenizer", prepare_corpus="tokenizer")


@pytest.mark.parametrize("answers", [False, True])
@pytest.mark.parametrize("source", ["typo_tok", "here/no/typo_tok"])
@pytest.mark.parametrize("script", TOKENIZERS)
def test_a_mistyped_tokenizer_is_named_with_its_flag(script, source, answers, files, hub, monkeypatch, tmp_path):
    """It gave the Hub's own lines, which name neither."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    if not answers:
        use_hub(monkeypatch, "http://127.0.0.1:9")
    given = {TOKENIZERS[script]: source}
    argv = {
        "run_glue": lambda: glue_script.arguments(files, tmp_path / "run", "--do_train", **given),
        "prepare_corpus": lambda: command_line(dict(train_data=files / "text.txt", output_dir=tmp_path / "run") | given),
    }.get(script, lambda: mlm_script.arguments(files / "text.txt", tmp_path / "run", **given))()
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
