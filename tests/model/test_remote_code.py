# SPDX-License-Identifier: Apache-2.0
"""Files of save_pretrained, which load to an equal model with the package, and without it in a new process."""

import importlib.util
import json
import shutil
import sys
import types
from pathlib import Path

import pytest
import torch
import transformers
from rounding import assert_equal_outputs
from safetensors.torch import load_file
from tiny_models import FILES, HEADS, TINY, tiny_inputs, tiny_model
from transformers import AutoConfig
from without_package import answers, run_without_package, state

from hf_deberta_ext import DebertaExtConfig, DebertaExtForReplacedTokenDetection
from hf_deberta_ext.model import configuration_deberta_ext

V1 = dict(position_buckets=-1, norm_rel_ebd="none", share_att_key=False)
# name of the folder: Auto class, fields of the configuration, arguments of save_pretrained.
KINDS = {auto: (auto, {}, {}) for auto in HEADS} | {
    "v1_separate_projections": ("AutoModelForMaskedLM", V1, {}),
    "v1_positions_and_types": ("AutoModel", V1 | dict(position_biased_input=True, type_vocab_size=2), {}),
    "v2_convolution": ("AutoModelForMaskedLM", dict(conv_kernel_size=3), {}),
    "p2p": ("AutoModel", dict(pos_att_type="c2p|p2c|p2p"), {}),
    "shared_ffn": ("AutoModelForMaskedLM", dict(share_layers="ffn"), {}),
    "shared_attention": ("AutoModel", dict(share_layers="attention"), {}),
    "shared_all_and_factorised": ("AutoModelForMaskedLM", dict(share_layers="all", embedding_size=16), {}),
    "plain_decoder": ("AutoModelForMaskedLM", dict(emd_layers=1, emd_input="hidden"), {}),
    "shards": ("AutoModelForMaskedLM", {}, dict(max_shard_size="20KB")),
    "one_table": ("AutoModelForPreTraining", dict(embedding_sharing="es"), {}),
    "two_tables": ("AutoModelForPreTraining", dict(embedding_sharing="nes", generator={"hidden_size": 16}), {}),
    "one_encoder": ("AutoModelForPreTraining", dict(embedding_sharing="all", position_biased_input=True), {}),
    "bfloat16": ("AutoModelForMaskedLM", dict(dtype="bfloat16"), {}),
}


# Only the package joins an encoder with a new generator.
SINGLE = [auto for auto in HEADS if auto != "AutoModelForPreTraining"]
# Saved without the package and loaded again in another process; of the others the saved files are compared.
AGAIN = ("AutoModelForMaskedLM", "AutoModelForPreTraining", "shards", "hub", "rtd")


def assert_equal(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]):
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert got[name].dtype == value.dtype, name
        assert torch.equal(got[name], value), name


def backbone(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    own = {name.removeprefix("deberta."): value for name, value in tensors.items() if name.startswith("deberta.")}
    return own or tensors


def code_in(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in Path(folder).glob("*.py")}


@pytest.mark.parametrize("auto", HEADS)
def test_save_pretrained_writes_the_code_byte_for_byte_and_a_complete_auto_map(auto, tmp_path):
    """Check that a configuration writes the code too, and that older code is replaced."""
    model = tiny_model(HEADS[auto])
    model.config.save_pretrained(tmp_path)
    assert code_in(tmp_path) == FILES
    assert json.loads((tmp_path / "config.json").read_text())["auto_map"].keys() == {"AutoConfig", *HEADS}
    (tmp_path / "attention_deberta_ext.py").write_text("raise RuntimeError\n")
    model.save_pretrained(tmp_path)
    assert code_in(tmp_path) == FILES
    written = json.loads((tmp_path / "config.json").read_text())["auto_map"]
    assert written.keys() == {"AutoConfig", *HEADS}
    for name, reference in written.items():
        module, class_name = reference.split(".")
        model_class = HEADS.get(name, DebertaExtConfig)
        assert f"{module}.py" in FILES and model_class.__name__ == class_name
        assert getattr(importlib.import_module(f"hf_deberta_ext.model.{module}"), class_name) is model_class


@pytest.mark.parametrize("trust", [{}, {"trust_remote_code": False}])
@pytest.mark.parametrize("auto", HEADS)
def test_auto_classes_give_the_installed_classes(auto, trust, tmp_path):
    model = tiny_model(HEADS[auto])
    model.save_pretrained(tmp_path)
    assert type(AutoConfig.from_pretrained(tmp_path, **trust)) is DebertaExtConfig
    loaded = getattr(transformers, auto).from_pretrained(tmp_path, **trust)
    assert type(loaded) is HEADS[auto]
    assert_equal(state(loaded), state(model))
    assert type(getattr(transformers, auto).from_config(DebertaExtConfig(**TINY))) is HEADS[auto]


def model_job(name: str, auto: str, source: Path | str, **more) -> dict:
    job = {"kind": "model", "name": name, "auto": auto, "source": str(source), "inputs": tiny_inputs(auto)}
    return job | more


def put_into_hub_cache(folder: Path, repo_id: str, source: Path):
    """Copy a saved folder to the place of a downloaded repository in the cache of huggingface_hub."""
    commit = "0123456789" * 4
    repo = folder / "hf" / "hub" / ("models--" + repo_id.replace("/", "--"))
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    shutil.copytree(source, repo / "snapshots" / commit)


@pytest.fixture(scope="module")
def remote(tmp_path_factory):
    """Return the originals, and results of processes that load their folders ("first") and their copies ("second")."""
    folder = tmp_path_factory.mktemp("remote")
    originals, first = {}, []
    for kind, (auto, fields, save) in KINDS.items():
        originals[kind] = tiny_model(HEADS[auto], **fields)
        originals[kind].save_pretrained(folder / kind, **save)
        first.append(model_job(kind, auto, folder / kind, again=str(folder / f"{kind}_2"), save=save))
    originals["rtd"] = tiny_model(DebertaExtForReplacedTokenDetection)
    originals["rtd"].save_pretrained(folder / "rtd")
    originals["hub"] = originals["AutoModelForMaskedLM"]
    put_into_hub_cache(folder, "someone/tiny", folder / "AutoModelForMaskedLM")
    first.append(model_job("hub", "AutoModelForMaskedLM", "someone/tiny", again=str(folder / "hub_2")))
    first.append(model_job("rtd", "AutoModel", folder / "rtd", again=str(folder / "rtd_2")))

    # Only loaded, and not saved again.
    loads = []
    classifier = str(folder / "AutoModelForSequenceClassification")
    for auto in SINGLE:
        # The head has 3 classes, so that other heads are refused, as for every model of transformers.
        loads.append(model_job(f"other_{auto}", auto, classifier, kwargs={"ignore_mismatched_sizes": True}))

    originals["config"] = originals["AutoModelForMaskedLM"]
    originals["config"].config.save_pretrained(folder / "config")
    put_into_hub_cache(folder, "someone/config", folder / "config")
    configs = [
        {"kind": "config", "name": name, "source": source, "again": str(folder / f"{name}_2")}
        for name, source in (("config", str(folder / "config")), ("hub_config", "someone/config"))
    ]

    # First, when the process does not know the model type yet.
    refused = [
        {"kind": "refused", "name": f"refused {auto} {kwargs}", "auto": auto, "source": classifier, "kwargs": kwargs}
        for auto in ("AutoConfig", "AutoModel", "AutoModelForSequenceClassification")
        for kwargs in ({}, {"trust_remote_code": False})
    ]

    second = [job | {"source": job["again"]} for job in [*configs, *(job for job in first if job["name"] in AGAIN)]]
    for job in second:
        del job["again"]
    return {
        "folder": folder,
        "models": originals,
        "first": run_without_package([*refused, *configs, *first, *loads], folder),
        "second": run_without_package(second, folder),
    }


@pytest.mark.parametrize(
    "generation, kind", [*(("first", kind) for kind in [*KINDS, "hub", "rtd"]), *(("second", kind) for kind in AGAIN)]
)
def test_a_fresh_process_without_the_package_loads_an_equal_model(generation, kind, remote):
    """For a discriminator, only compare the encoder, since no Auto class has its head."""
    result, model = remote[generation][kind], remote["models"][kind]
    assert "error" not in result, result["traceback"]
    auto = KINDS[kind][0] if kind in KINDS else dict(hub="AutoModelForMaskedLM", rtd="AutoModel")[kind]
    model = model.deberta if kind == "rtd" else model
    assert result["class"] == HEADS[auto].__name__ and result["module"].startswith("transformers_modules.")
    assert result["missing"] == []
    assert_equal(result["state"], state(model))
    inputs = {name: torch.tensor(value) for name, value in tiny_inputs(auto).items()}
    assert_equal_outputs(result["answers"], answers(model, inputs))


@pytest.mark.parametrize("kind", [*KINDS, "rtd", "hub"])
def test_a_model_saved_without_the_package_brings_the_same_files(kind, remote):
    saved, again = remote["folder"] / ("AutoModelForMaskedLM" if kind == "hub" else kind), remote["folder"] / f"{kind}_2"
    assert code_in(again) == FILES
    if kind != "rtd":
        # Of a discriminator it is the encoder.
        assert_equal(*(
            {name: x for file in folder.glob("*.safetensors") for name, x in load_file(file).items()}
            for folder in (again, saved)
        ))  # fmt: skip
    assert json.loads((again / "config.json").read_text())["auto_map"].keys() == {"AutoConfig", *HEADS}


@pytest.mark.parametrize("auto", SINGLE)
def test_a_classifier_loads_as_every_other_head_with_its_encoder(auto, remote):
    result, model = remote["first"][f"other_{auto}"], remote["models"]["AutoModelForSequenceClassification"]
    assert "error" not in result, result["traceback"]
    assert result["class"] == HEADS[auto].__name__
    got, expected = result["state"], state(model)
    encoder = backbone(expected)
    table = encoder["embeddings.word_embeddings.weight"]
    if auto == "AutoModelForMaskedLM":
        # Absolute positions are drawn for the decoder where the file has none; this file has them.
        assert torch.equal(got["lm_predictions.lm_head.decoder.weight"], table)
    assert_equal(backbone(got), encoder)
    new = {name: value for name, value in got.items() if name in result["missing"]}
    # Token classification names its classifier alike, as in transformers, and so takes this one.
    assert bool(new) == any(name not in expected and name.removeprefix("deberta.") not in encoder for name in got)
    for name, value in new.items():
        assert torch.isfinite(value).all(), name
        assert value.std() < 0.03 if value.dim() > 1 else value.unique().tolist() in ([0.0], [1.0]), name
    for name in {*got} & {*expected} - {*new}:
        if got[name].shape == expected[name].shape:
            assert torch.equal(got[name], expected[name]), name


@pytest.mark.parametrize("name", ["config", "hub_config"])
def test_a_configuration_loads_and_builds_a_model_without_the_package(name, remote):
    """Regression test: loaded without the model, the module of a configuration lacked files that its auto_map listed."""
    for generation in ("first", "second"):
        result, model = remote[generation][name], remote["models"]["config"]
        assert "error" not in result, result["traceback"]
        assert result["module"].startswith("transformers_modules.")
        # From the Hub, transformers prefixes each entry of auto_map with the name of the repository.
        own = {name: result["config"][name] for name in ("_name_or_path", "dtype", "auto_map")}
        assert result["config"] == model.config.to_dict() | own
    assert result["class"] == "DebertaExtForMaskedLM"
    assert {k: v.shape for k, v in result["state"].items()} == {k: v.shape for k, v in state(model).items()}


def test_an_old_transformers_is_told_in_the_first_line_which_one_is_needed(monkeypatch):
    """Test 4.57, which optimum-onnx pins and which has no PreTrainedConfig."""
    old = types.ModuleType("transformers")
    old.__version__, old.__path__ = "4.57.6", transformers.__path__
    monkeypatch.setitem(sys.modules, "transformers", old)
    file = Path(configuration_deberta_ext.__file__)
    spec = importlib.util.spec_from_file_location(f"{configuration_deberta_ext.__package__}.again", file)
    with pytest.raises(ImportError, match=r"^this model's code requires transformers 5\.4 .* got 4\.57\.6\."):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_without_trust_and_without_the_package_loading_is_refused(remote):
    results = {name: result for name, result in remote["first"].items() if name.startswith("refused")}
    assert len(results) == 6
    for name, result in results.items():
        assert result.get("raised") == "ValueError" and "trust_remote_code" in result["message"], name
