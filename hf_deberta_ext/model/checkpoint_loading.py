# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""`from_pretrained` of every model, which takes official checkpoints as they are."""

import copy
from pathlib import Path

import torch
from transformers import PreTrainedConfig
from transformers.utils import logging

from .checkpoint_files import (
    ADAPTER_CONFIG_FILE,
    damage_named,
    optional_file,
    read_json,
    read_tensors,
    refuse_integers,
    weight_files,
)
from .checkpoint_layouts import LoadingReport, convert_official, read_state_dict, set_fields_of_head
from .configuration_deberta_ext import is_joint
from .official_configurations import MICROSOFT, OFFICIAL_TYPES, absent_fields, stored_configuration

logger = logging.get_logger(__name__)

__all__ = ["DOWNLOAD_ARGUMENTS", "LoadingMixin"]

DOWNLOAD_ARGUMENTS = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder", "proxies")


class LoadingMixin:
    """`from_pretrained`; inherited before `PreTrainedModel`."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *model_args, config=None, delta_bases=None, **kwargs):
        """Load a model as in transformers; official `deberta` and `deberta-v2` checkpoints too, as they are.

        `model.loading_report` says what was loaded, converted, newly initialised and unused. `delta_bases`, tables of a
        generator by name ("word_embeddings"), is for an official discriminator that was saved with only its deltas.

        Raises:
            ValueError: a checkpoint whose embeddings are only the `_weight` deltas of RTD pre-training, whose
                configuration has no counterpart, or of which nothing fits; a joint checkpoint of generator and
                discriminator for another class; an adapter of an official checkpoint; or a damaged file.
        """
        source = pretrained_model_name_or_path
        download = {name: kwargs[name] for name in DOWNLOAD_ARGUMENTS if name in kwargs}
        reads_source = source is not None and "state_dict" not in kwargs
        stored_config = {}
        if reads_source:
            stored_config = stored_configuration(source, **download)
            refuse_official_adapter(source, stored_config, download)
        if is_joint(stored_config) and cls.base_model_prefix:
            raise ValueError(
                f"{source} holds a generator and a discriminator; for {cls.__name__}, take one of them out: "
                f"DebertaExtForPreTraining.from_pretrained({str(source)!r}).export_discriminator().save_pretrained(folder), "
                "or export_generator(); run_rtd writes both into subfolders, discriminator and generator"
            )
        if stored_config.get("model_type") in OFFICIAL_TYPES:
            kwargs |= dict(config=config, delta_bases=delta_bases, stored_config=stored_config)
            return cls._from_official_checkpoint(source, *model_args, **kwargs)
        return_info = kwargs.pop("output_loading_info", False)
        if reads_source and "quantization_config" not in stored_config:
            # [] for a repository of the Hub.
            for file in weight_files(Path(source, kwargs.get("subfolder") or "")):
                refuse_integers(read_tensors(file), str(file))
        with damage_named(f"a file of {source}"):
            model, info = super().from_pretrained(source, *model_args, config=config, output_loading_info=True, **kwargs)
        report = LoadingReport(str(source))
        report.complete(set(model.state_dict()), info)
        if reads_source and not report.loaded:
            raise ValueError(f"no tensor of {source} belongs in {cls.__name__}; are these the weights of another model?")
        model._finish_loading(report, kwargs)
        return (model, info) if return_info else model

    @classmethod
    def _from_official_checkpoint(cls, source, *model_args, config, delta_bases, stored_config, **kwargs):
        # What transformers reads files by, and must not see again with a state_dict.
        reading = {}
        for name in (*DOWNLOAD_ARGUMENTS, "use_safetensors", "variant"):
            if name in kwargs:
                reading[name] = kwargs.pop(name)
        # Not for the configuration, where "auto" is not a dtype.
        dtypes = {name: kwargs.pop(name) for name in ("dtype", "torch_dtype") if name in kwargs}
        return_info = kwargs.pop("output_loading_info", False)
        for name in ("code_revision", "trust_remote_code"):
            kwargs.pop(name, None)
        state_dict = read_state_dict(str(source), **reading)
        decoder_chosen = "emd_layers" in kwargs or "emd_input" in kwargs
        labels_given = "num_labels" in kwargs or "id2label" in kwargs
        if isinstance(config, PreTrainedConfig):
            labels_given = True
            config = copy.deepcopy(config)
        else:
            download = {name: value for name, value in reading.items() if name in DOWNLOAD_ARGUMENTS}
            config, kwargs = cls.config_class.from_pretrained(
                config or source, return_unused_kwargs=True, **download, **kwargs
            )
        refuse_integers(state_dict, str(source))
        try:
            state_dict, report = convert_official(state_dict, config, delta_bases)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from error
        set_fields_of_head(config, state_dict, {} if labels_given else stored_config)
        has_positions = any(key.endswith("embeddings.position_embeddings.weight") for key in state_dict)
        decoder_chosen = decoder_chosen or (config.emd_layers, config.emd_input) != (2, "position+hidden")
        without_decoder = not (has_positions or decoder_chosen or config.position_biased_input)
        if without_decoder:
            config.emd_layers = 1
            config.emd_input = "hidden"
        model, info = super().from_pretrained(
            None, *model_args, config=config, state_dict=state_dict, output_loading_info=True, **dtypes, **kwargs
        )
        model.name_or_path = model.config.name_or_path = report.source = str(source)
        report.complete(set(model.state_dict()), info)
        if not report.loaded:
            keys = ", ".join(sorted(state_dict)[:3])
            raise ValueError(f"no tensor of {source} belongs in {cls.__name__}; its keys are like {keys}")
        if "proj.weight" in report.unused and "classifier.weight" in report.loaded:
            raise ValueError(
                f"{source} has a head of Microsoft's with a dense layer (proj) before the classifier: load an NER model as "
                "DebertaExtForTokenClassification, a ReCoRD model, with one output, as DebertaExtForEntityScoring"
            )
        if stored_config["model_type"] == MICROSOFT:
            absent = [f"{name} = {value!r}" for name, value in absent_fields(stored_config).items()]
            report.notes.append(
                f"read as Microsoft's code reads it, with its values of absent fields: {', '.join(absent) or 'none'}"
            )
        if hasattr(model, "lm_predictions"):
            if without_decoder:
                report.notes.append(
                    "the checkpoint has no absolute position table (transformers' own classes drop it): masked words are "
                    "predicted without the Enhanced Mask Decoder"
                )
            if any(key.startswith("mask_predictions.") for key in state_dict):
                report.notes.append(
                    "the checkpoint is a discriminator (v3, mDeBERTa), which was not trained to fill in masks; its "
                    "generator was: DebertaExtForPreTraining.from_checkpoints(...).generator, where the generator's file "
                    "is beside it"
                )
        for note in report.notes:
            logger.warning(note)
        model._finish_loading(report, dtypes)
        return (model, info) if return_info else model

    def _finish_loading(self, report: LoadingReport, given: dict):
        self.loading_report = report
        # Loading has replaced the parameters.
        self._freeze_unread_positions()
        dtype = given.get("dtype", given.get("torch_dtype"))
        if self.dtype == torch.float16 and dtype in (None, "auto") and not torch.accelerator.is_available():
            logger.warning(
                f'{report.source} is float16, which a CPU computes many times slower than float32: give dtype="float32", or '
                'dtype="float16" to keep it'
            )


def refuse_official_adapter(source, stored_config: dict, download: dict):
    """Refuse an adapter for an official v1 checkpoint, whose base transformers would load without splitting its fused
    weights, and an official checkpoint with an adapter in its folder, which it would leave out.

    Raises:
        ValueError: it is one of these.
    """
    path = optional_file(source, ADAPTER_CONFIG_FILE, **download)
    if path is None:
        return
    base = read_json(path).get("base_model_name_or_path")
    if stored_config.get("model_type") in OFFICIAL_TYPES or stored_configuration(base).get("model_type") == "deberta":
        raise ValueError(
            f"{source} holds an adapter for {base}, which is not a model of this package: load that first, from a "
            f"folder without {ADAPTER_CONFIG_FILE}, then the adapter, peft.PeftModel.from_pretrained(model, adapter)"
        )
