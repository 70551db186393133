# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""`from_pretrained` of every model: official checkpoints as they are; damaged and non-finite weights are named."""

import copy
import os

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.utils import cached_file, logging

from .checkpoint_files import ADAPTER_CONFIG_FILE, read_json
from .checkpoint_layouts import (
    LoadingReport,
    check_files,
    check_names,
    convert_official,
    read_state_dict,
    set_fields_of_head,
)
from .configuration_deberta_ext import is_joint
from .official_configurations import MICROSOFT, OFFICIAL_TYPES, absent_fields, json_object

logger = logging.get_logger(__name__)
transformers_logger = logging.get_logger("transformers.modeling_utils")

__all__ = [
    "DOWNLOAD_ARGUMENTS", "LoadingMixin", "MismatchedSizesError", "config_dict", "nonfinite_parameters",
    "refuse_official_adapter",
]  # fmt: skip

DOWNLOAD_ARGUMENTS = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder", "proxies")


class MismatchedSizesError(ValueError, RuntimeError):
    """Weights of other sizes than the model's. transformers raises a RuntimeError here, which code may wait for."""

    def __init__(self, source: str, mismatched_keys: set[tuple]):
        """`mismatched_keys` as in transformers' loading info: (name, size in the file, size in the model) each."""
        sizes = sorted((name, list(stored), list(built)) for name, stored, built in mismatched_keys)
        shown = "; ".join(f"{name} is {stored} in the file and {built} in the model" for name, stored, built in sizes[:3])
        rest = f" (and {len(sizes) - 3} more)" if len(sizes) > 3 else ""
        super().__init__(
            f"{source}: the weights do not have the sizes that its config.json asks for: {shown}{rest}; correct the "
            "configuration, or pass ignore_mismatched_sizes=True to draw these tensors anew"
        )


class LoadingMixin:
    """`from_pretrained`, before that of `PreTrainedModel` in the order of inheritance."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *model_args, config=None, **kwargs):
        """As in transformers. Takes official `deberta` and `deberta-v2` checkpoints, folder or repo id, as they are.

        `model.loading_report` says what was loaded, converted, newly initialised and unused. `delta_bases`, tables of a
        generator by name ("word_embeddings"), is for an official discriminator that was saved with its deltas alone.

        Raises:
            ValueError: a checkpoint whose embeddings are only the `_weight` deltas of RTD pre-training, whose
                configuration has no counterpart, of which nothing fits or sizes differ, a joint checkpoint of generator
                and discriminator for another class, an adapter of an official checkpoint, or a damaged file.
        """
        download = {name: kwargs[name] for name in DOWNLOAD_ARGUMENTS if name in kwargs}
        source = pretrained_model_name_or_path
        reads_source = source is not None and not {"state_dict", "gguf_file"} & {*kwargs}
        delta_bases = kwargs.pop("delta_bases", None)
        stored_config = (config_dict(source, download) if reads_source else None) or {}
        refuse_official_adapter(source, stored_config, download)
        if is_joint(stored_config) and cls.base_model_prefix:
            halves = [os.path.join(source, name) for name in ("discriminator", "generator")]
            exported = [half for half in halves if os.path.isfile(os.path.join(half, "config.json"))]
            raise ValueError(
                f"{source} holds a generator and a discriminator; for {cls.__name__}, take one of them out: "
                f"DebertaExtForPreTraining.from_pretrained({str(source)!r}).export_discriminator().save_pretrained(folder), "
                f"or export_generator(){'; it was done already: ' + ', '.join(exported) if exported else ''}"
            )
        if stored_config.get("model_type") in OFFICIAL_TYPES:
            kwargs |= dict(config=config, download=download, delta_bases=delta_bases, stored_config=stored_config)
            return cls._from_official_checkpoint(source, *model_args, **kwargs)
        with_info = kwargs.pop("output_loading_info", False)
        if reads_source:
            options = {name: kwargs[name] for name in ("use_safetensors", "variant") if name in kwargs}
            check_files(str(source), quantized="quantization_config" in stored_config, **download, **options)
            # Once is enough.
            kwargs.pop("force_download", None)
        model, info = cls._load(source, source, *model_args, config=config, **kwargs)
        changed = {*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])}
        if reads_source and changed >= {name for name, _ in model.named_parameters()}:
            raise ValueError(f"no tensor of {source} belongs in {cls.__name__}; are these the weights of another model?")
        model.loading_report = LoadingReport(str(source))
        model.loading_report.complete({*model.state_dict()}, info)
        if model.loading_report.initialised or model.loading_report.unused:
            announce(model.loading_report)
        return (model, info) if with_info else model

    @classmethod
    def _load(cls, checkpoint, source, *model_args, **kwargs):
        """The model and transformers' loading info; errors and the warning of non-finite weights name `checkpoint`."""
        load = super().from_pretrained
        # Its table says again, and longer, what the loading report says.
        transformers_logger.addFilter(is_error)
        try:
            model, info = load(source, *model_args, **kwargs, output_loading_info=True)
        except Exception as error:
            if "ignore_mismatched_sizes" in str(error):
                kwargs |= dict(ignore_mismatched_sizes=True, output_loading_info=True)
                sizes = load(source, *model_args, **kwargs)[1]["mismatched_keys"]
                raise MismatchedSizesError(str(checkpoint), sizes) from error
            # Errors that say what is wrong, or name the checkpoint.
            is_clear = isinstance(error, ImportError | NotImplementedError | torch.OutOfMemoryError)
            is_clear = is_clear or "keyword" in str(error)
            is_clear = is_clear or (isinstance(error, OSError | ValueError) and str(source) in str(error))
            if source is not None and not is_clear:
                # Read again: a damaged file raises an error with its name.
                names = (*DOWNLOAD_ARGUMENTS, "use_safetensors", "variant")
                read_state_dict(str(source), **{name: kwargs[name] for name in names if name in kwargs})
                if isinstance(error, LookupError | AttributeError):
                    message = f"{type(error).__name__}: {error}; is one of its files damaged?"
                    raise ValueError(f"{source} could not be loaded: {message}") from error
            raise
        finally:
            transformers_logger.removeFilter(is_error)
        check_names(str(checkpoint), info)
        model._freeze_unread_positions()
        if nonfinite := nonfinite_parameters(model):
            rest = f" and {len(nonfinite) - 5} more" if nonfinite[5:] else ""
            logger.warning(
                f"{checkpoint}: NaN or infinity in {', '.join(nonfinite[:5])}{rest}; such a model computes nothing. Did its "
                "training diverge?"
            )
        dtype_given = kwargs.get("dtype", kwargs.get("torch_dtype")) not in (None, "auto")
        if model.dtype == torch.float16 and not dtype_given and not torch.accelerator.is_available():
            logger.warning(
                f'{checkpoint} is float16, which a CPU computes many times slower than float32: give dtype="float32", or '
                'dtype="float16" to keep it'
            )
        return model, info

    @classmethod
    def _from_official_checkpoint(cls, source, *model_args, config, download, delta_bases, stored_config, **kwargs):
        state_dict = read_state_dict(
            str(source), use_safetensors=kwargs.pop("use_safetensors", None), variant=kwargs.pop("variant", None), **download
        )
        decoder_chosen = bool({"emd_layers", "emd_input"} & kwargs.keys())
        # Not for the configuration, where "auto" is no dtype.
        dtypes = {name: kwargs.pop(name) for name in ("dtype", "torch_dtype") if name in kwargs}
        for name in ("code_revision", "trust_remote_code"):
            kwargs.pop(name, None)
        labels_given = isinstance(config, PreTrainedConfig) or {"num_labels", "id2label"} & {*kwargs}
        if isinstance(config, PreTrainedConfig):
            config = copy.deepcopy(config)
        else:
            config, kwargs = cls.config_class.from_pretrained(config or source, return_unused_kwargs=True, **kwargs)
        try:
            state_dict, report = convert_official(state_dict, config, delta_bases)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from error
        report.source = str(source)
        if stored_config["model_type"] == MICROSOFT:
            absent = ", ".join(f"{name} = {value!r}" for name, value in absent_fields(stored_config).items())
            report.notes.append(f"read as Microsoft's code reads it, with its values of absent fields: {absent or 'none'}")
        set_fields_of_head(config, state_dict, {} if labels_given else stored_config)
        has_positions = any(key.endswith("embeddings.position_embeddings.weight") for key in state_dict)
        decoder_chosen = decoder_chosen or (config.emd_layers, config.emd_input) != (2, "position+hidden")
        without_decoder = not (has_positions or decoder_chosen or config.position_biased_input)
        if without_decoder:
            config.emd_layers, config.emd_input = 1, "hidden"
        for name in (*DOWNLOAD_ARGUMENTS, "use_safetensors"):
            kwargs.pop(name, None)
        with_info = kwargs.pop("output_loading_info", False)
        model, info = cls._load(source, None, *model_args, config=config, state_dict=state_dict, **dtypes, **kwargs)
        model.name_or_path = model.config.name_or_path = str(source)
        report.complete({*model.state_dict()}, info)
        if not report.loaded:
            keys = ", ".join(sorted(state_dict)[:3])
            raise ValueError(f"no tensor of {source} belongs in {cls.__name__}; its keys are like {keys}")
        if "proj.weight" in report.unused and "classifier.weight" in report.loaded:
            raise ValueError(
                f"{source} has a head of Microsoft's with a dense layer (proj) before the classifier: that of its NER "
                "models is DebertaExtForTokenClassification here; that of ReCoRD, with one output, is "
                "DebertaExtForEntityScoring"
            )
        fills_masks = hasattr(model, "lm_predictions")
        if fills_masks and without_decoder:
            report.notes.append(
                "the checkpoint has no absolute position table (transformers' own classes drop it): masked words are "
                "predicted without the Enhanced Mask Decoder"
            )
        if fills_masks and any(key.startswith("mask_predictions.") for key in state_dict):
            report.notes.append(
                "the checkpoint is a discriminator (v3, mDeBERTa), which was not trained to fill in masks; its generator "
                "was: DebertaExtForPreTraining.from_checkpoints(...).generator, where the generator's file is beside it"
            )
        model.loading_report = report
        announce(report)
        for note in report.notes:
            logger.warning(note)
        return (model, info) if with_info else model


def is_error(record) -> bool:
    """A filter of log records."""
    return record.levelno >= logging.ERROR


def announce(report: LoadingReport):
    """Log a loading report in a line, where transformers would log its own."""
    if transformers_logger.isEnabledFor(logging.WARNING):
        logger.warning(f"{report.summary()}; model.loading_report has the list")


def refuse_official_adapter(source, stored_config: dict, download: dict):
    """
    Raises:
        ValueError: `source` is an adapter for an official v1 checkpoint, or holds an official checkpoint with an adapter.
            transformers would load the base by itself, without splitting v1's fused weights, and no adapter with the others.
    """
    path = source and cached_file(
        source,
        ADAPTER_CONFIG_FILE,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        _raise_exceptions_for_gated_repo=False,
        **download,
    )
    if not path:
        return
    base = read_json(path).get("base_model_name_or_path")
    base_type = (config_dict(base, {}) or {}).get("model_type") if base else None
    if base_type == "deberta" or stored_config.get("model_type") in OFFICIAL_TYPES:
        raise ValueError(
            f"{source} holds an adapter for {base}, which is no model of this package: load that first, from a "
            f"folder without {ADAPTER_CONFIG_FILE}, then the adapter, peft.PeftModel.from_pretrained(model, adapter)"
        )


def config_dict(source, download: dict) -> dict | None:
    """The config.json of a folder or repo; None without one.

    Raises:
        ValueError: it holds no JSON object.
    """
    try:
        return json_object(source, PreTrainedConfig.get_config_dict, **download)[0]
    except OSError:
        # transformers loads weights alone where it is given a config, or says what is missing.
        return None


def nonfinite_parameters(model: nn.Module) -> list[str]:
    """Names of the parameters with NaN or infinity among their values; one synchronisation for each device."""
    devices: dict[torch.device, dict[str, torch.Tensor]] = {}
    for name, parameter in model.named_parameters():
        # Not on meta, nor what a quantizer or a shard of several devices has made of it.
        if type(parameter) is nn.Parameter and parameter.is_floating_point() and parameter.device.type != "meta":
            devices.setdefault(parameter.device, {})[name] = parameter.detach()

    def summable(x):
        # torch has no sums of 8-bit floats.
        return x.float() if x.dtype.itemsize == 1 else x

    nonfinite = []
    for parameters in devices.values():
        # NaN and infinity pass into a sum, which takes no memory; a sum may also overflow its dtype.
        dtypes = [torch.float64 if x.dtype == torch.float64 else torch.float32 for x in parameters.values()]
        sums = [summable(x).sum(dtype=dtype) for x, dtype in zip(parameters.values(), dtypes, strict=True)]
        is_finite = torch.stack([x.isfinite() for x in sums]).tolist()
        suspects = [name for name, finite in zip(parameters, is_finite, strict=True) if not finite]
        nonfinite += [name for name in suspects if not bool(summable(parameters[name]).isfinite().all())]
    return nonfinite
