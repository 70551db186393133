# SPDX-License-Identifier: Apache-2.0
"""Methods that models have in this package, but not in remote code (`trust_remote_code`).

Examples are loading of official checkpoints and `push_to_hub`."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.utils import logging

from ..model.attention_deberta_ext import DisentangledSelfAttention, is_traced
from .adapters import AdapterMixin
from .files import (
    ADAPTER_CONFIG_FILE,
    check_source,
    damage_named,
    optional_file,
    read_json,
    read_tensors,
    refuse_integers,
    weight_files,
)
from .layouts import LoadingReport, convert_official, read_state_dict, set_fields_of_head
from .official_configurations import MICROSOFT, OFFICIAL_TYPES, absent_fields, stored_configuration

logger = logging.get_logger(__name__)

__all__ = ["DOWNLOAD_ARGUMENTS", "LoadingMixin", "in_eval_mode"]

PUSH_ARGUMENTS = "repo_id tokenizer commit_message commit_description private token revision create_pr tags".split()
# Arguments of packed batches in other packages, such as transformers' DataCollatorWithFlattening.
OF_PACKED_BATCHES = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")
DOWNLOAD_ARGUMENTS = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder", "proxies")


class LoadingMixin(AdapterMixin):
    """Mixin of `DebertaExtPreTrainedModel` with methods that remote code lacks: loading official checkpoints, publishing."""

    loading_report: LoadingReport | None = None

    def __init__(self, config, *args, **kwargs):
        # Compares names, because remote code has its own copy of the class.
        if config.model_type != self.config_class.model_type:
            raise TypeError(
                f"{type(self).__name__} expects a DebertaExtConfig, got {type(config).__name__}; convert it with "
                "DebertaExtConfig.from_dict(config.to_dict())"
            )
        super().__init__(config, *args, **kwargs)

    def prepare_call(self, parameters: Mapping[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
        """Check adapters, and return the `inputs` for a forward method with these `parameters`. If `document_ids` is one of
        them, the arguments of other packages for packed batches (`cu_seq_lens_q`, ...) are converted to `document_ids`."""
        self.check_adapters()
        if "document_ids" not in parameters or inputs.get("document_ids") is not None:
            return inputs
        packing = {name: inputs.pop(name, None) for name in OF_PACKED_BATCHES}
        documents = packed_document_ids(packing["cu_seq_lens_q"], packing["cu_seq_lens_k"], **inputs)
        return inputs | {"document_ids": documents}

    def resize_token_embeddings(self, *args, **kwargs):
        if getattr(self, "is_quantized", False):
            raise ValueError("the vocabulary of an int8 model cannot be resized: resize the float32 model, and convert it")
        return super().resize_token_embeddings(*args, **kwargs)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *model_args, config=None, delta_bases=None, **kwargs):
        """Load a model as in transformers, including official `deberta` and `deberta-v2` checkpoints.

        `model.loading_report` lists the loaded, converted, newly initialised and unused tensors. `delta_bases`
        contains the generator's embedding tables by name ("word_embeddings"). This argument is only for an official
        discriminator that was saved with E_delta, the difference from these tables, instead of its own tables.

        Raises:
            ValueError: the checkpoint has E_delta (`_weight`) instead of embedding tables and `delta_bases` is None; its
                configuration is not supported; no tensor fits the model; a joint checkpoint is loaded into a single
                model; the folder has an adapter for an official checkpoint; or a file is corrupt.
        """
        source = pretrained_model_name_or_path
        download = pick(kwargs, DOWNLOAD_ARGUMENTS)
        reads_source = source is not None and "state_dict" not in kwargs
        stored_config = {}
        if reads_source:
            check_source(source)
            stored_config = stored_configuration(source, **download)
            refuse_official_adapter(source, stored_config, download)
        if stored_config.get("model_type") in OFFICIAL_TYPES:
            kwargs |= dict(config=config, delta_bases=delta_bases, stored_config=stored_config)
            return cls._from_official_checkpoint(source, *model_args, **kwargs)
        return_info = kwargs.pop("output_loading_info", False)
        if reads_source and "quantization_config" not in stored_config:
            folder = Path(source, kwargs.get("subfolder") or "")
            # Only folders are checked: the files of a repository are not downloaded yet.
            for file in weight_files(folder) if folder.is_dir() else ():
                refuse_integers(read_tensors(file), str(file))
        with damage_named(f"a file of {source}"):
            model, info = super().from_pretrained(source, *model_args, config=config, output_loading_info=True, **kwargs)
        report = LoadingReport(str(source))
        report.complete(set(model.state_dict()), info)
        if reads_source and not report.loaded:
            raise ValueError(f"no tensor of {source} fits {cls.__name__}; are these the weights of another model?")
        set_report(model, report, kwargs)
        return (model, info) if return_info else model

    @classmethod
    def _from_official_checkpoint(cls, source, *model_args, config, delta_bases, stored_config, **kwargs):
        # transformers does not accept these arguments for reading files together with a state_dict.
        reading = pop(kwargs, (*DOWNLOAD_ARGUMENTS, "use_safetensors", "variant"))
        # The configuration gets no dtype, because it does not accept "auto".
        dtypes = pop(kwargs, ("dtype", "torch_dtype"))
        return_info = kwargs.pop("output_loading_info", False)
        pop(kwargs, ("code_revision", "trust_remote_code"))
        state_dict = read_state_dict(str(source), **reading)
        decoder_chosen = "emd_layers" in kwargs or "emd_input" in kwargs
        labels_given = "num_labels" in kwargs or "id2label" in kwargs
        if isinstance(config, PreTrainedConfig):
            labels_given = True
            config = copy.deepcopy(config)
        else:
            download = pick(reading, DOWNLOAD_ARGUMENTS)
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
            raise ValueError(f"no tensor of {source} fits {cls.__name__}; its first keys are {keys}")
        if "proj.weight" in report.unused and "classifier.weight" in report.loaded:
            raise ValueError(
                f"{source} has a head of Microsoft's code with a dense layer (proj) before the classifier: load an NER "
                "model as DebertaExtForTokenClassification, and a ReCoRD model (one output) as DebertaExtForEntityScoring"
            )
        if stored_config["model_type"] == MICROSOFT:
            absent = [f"{name} = {value!r}" for name, value in absent_fields(stored_config).items()]
            report.notes.append(
                f"fields missing in the configuration have the defaults of Microsoft's code: {', '.join(absent) or 'none'}"
            )
        if hasattr(model, "lm_predictions"):
            if without_decoder:
                report.notes.append(
                    "the checkpoint has no absolute position table (transformers' classes drop it), so masked words are "
                    "predicted without the Enhanced Mask Decoder"
                )
            if any(key.startswith("mask_predictions.") for key in state_dict):
                report.notes.append(
                    "the checkpoint is a discriminator (v3, mDeBERTa), which was not trained to fill masks. If its folder "
                    "includes the generator's file, use DebertaExtForPreTraining.from_checkpoints(...).generator"
                )
        for note in report.notes:
            logger.warning(note)
        set_report(model, report, dtypes)
        return (model, info) if return_info else model

    def attention_backends(self) -> dict[str, tuple[str, str]]:
        """Return {module name: (backend of the last call, reason for the choice)} for every attention module that ran."""
        backends = {}
        for name, module in self.named_modules():
            if isinstance(module, DisentangledSelfAttention) and module.last_backend is not None:
                backends[name] = module.last_backend
        return backends

    def extend_position_embeddings(self, length: int):
        """Extend the absolute position table to `length` rows. New rows are randomly initialised and need training.

        The relative table does not change.

        Raises:
            ValueError: the model has no absolute position table, or `length` is not greater than its number of rows.
        """
        embeddings = self.base_model.embeddings
        old = getattr(embeddings, "position_embeddings", None)
        if old is None:
            raise ValueError("this model has no absolute position table, so it already takes inputs of any length")
        if length <= old.num_embeddings:
            raise ValueError(f"length must be greater than {old.num_embeddings}, the length of the table, got {length}")
        weight = old.weight
        new = nn.Embedding(length, old.embedding_dim, device=weight.device, dtype=weight.dtype)
        with torch.no_grad():
            new.weight.normal_(std=self.config.initializer_range)
            new.weight[: old.num_embeddings] = weight
        new.weight.requires_grad_(weight.requires_grad)
        embeddings.position_embeddings = new
        embeddings.max_positions = length
        self.config.max_relative_positions = self.config.relative_distance
        self.config.max_position_embeddings = length

    def save_pretrained(self, save_directory, *args, push_to_hub: bool = False, **kwargs):
        """Save the model as in transformers. If `push_to_hub` is True, also call the method `push_to_hub`; its arguments
        (`repo_id`, `tokenizer`, `private`, ...) are taken from `kwargs`. `repo_id` defaults to the name of the folder."""
        pushed = pop(kwargs, PUSH_ARGUMENTS if push_to_hub else ())
        super().save_pretrained(save_directory, *args, **kwargs)
        if push_to_hub and kwargs.get("is_main_process", True):
            self.push_to_hub(pushed.pop("repo_id", Path(save_directory).name), **pushed)

    def push_to_hub(self, repo_id: str, **options):
        """Push weights, configuration, code and model card in one commit; return the `huggingface_hub.CommitInfo`.

        Args:
            repo_id (`str`): "user/name" or "organisation/name"; created if it does not exist.
            options: options of `hf_deberta_ext.publishing.push`, for example `tokenizer`, `private`, `revision`.
        """
        from ..publishing import push

        return push(self, repo_id, **options).commit


def pick(arguments: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return {name: value} for the arguments whose names are in `names`."""
    return {name: arguments[name] for name in names if name in arguments}


def pop(arguments: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Remove the arguments whose names are in `names` from `arguments`; return them as a dict."""
    return {name: arguments.pop(name) for name in names if name in arguments}


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Context manager that puts a model in eval mode, and restores the mode of each module at the end."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def set_report(model: nn.Module, report: LoadingReport, given: Mapping[str, Any]):
    """Set the report of a loaded model; warn about float16 on a CPU, unless the user's arguments `given` set the dtype."""
    model.loading_report = report
    dtype = given.get("dtype", given.get("torch_dtype"))
    if model.dtype == torch.float16 and dtype in (None, "auto") and not torch.accelerator.is_available():
        logger.warning(
            f'{report.source} is float16, which is many times slower than float32 on a CPU: pass dtype="float32", or '
            'dtype="float16" to keep float16 without this warning'
        )


def packed_document_ids(
    cu_seq_lens_q: torch.Tensor | None,
    cu_seq_lens_k: torch.Tensor | None,
    position_ids: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
    **inputs,
) -> torch.Tensor | None:
    """Return document_ids [1, T] if a batch is one row of several documents without padding; otherwise None.

    Args:
        cu_seq_lens_q, cu_seq_lens_k (`torch.Tensor`, *optional*): [D + 1] cumulative document lengths, from 0 to T. Both
            must be equal.
        position_ids (`torch.Tensor`, *optional*): [1, T]; only read if cu_seq_lens_q and attention_mask are None. As in
            transformers, a document starts at each position 0. If all positions are 0, the result is None.
    """
    if cu_seq_lens_q is not None:
        lengths = cu_seq_lens_q.diff()
        fits = cu_seq_lens_q[0] == 0 and bool((lengths >= 0).all())
        for batch in (inputs.get("input_ids"), inputs.get("inputs_embeds"), position_ids):
            if batch is not None:
                fits = fits and tuple(batch.shape[:2]) == (1, int(cu_seq_lens_q[-1]))
        if not fits or not (cu_seq_lens_k is None or torch.equal(cu_seq_lens_q, cu_seq_lens_k)):
            raise ValueError(
                "cu_seq_lens_q must increase from 0 to T for inputs of shape [1, T], and be equal to cu_seq_lens_k; got "
                f"{cu_seq_lens_q.tolist()}"
            )
        documents = torch.arange(1, len(cu_seq_lens_q), device=cu_seq_lens_q.device)
        return documents.repeat_interleave(lengths)[None]
    if position_ids is None or attention_mask is not None or is_traced() or len(position_ids) != 1:
        return None
    begins = position_ids == 0
    restarts = bool(begins[0, :1].all()) and bool((begins[:, 1:] | (position_ids.diff() == 1)).all())
    if restarts and 1 < int(begins.sum()) < begins.numel():
        return begins.cumsum(1)
    # If all positions are 0, it is one document without positions, not documents of one token each.
    return None


def refuse_official_adapter(source, stored_config: dict, download: dict):
    """Raise a ValueError if `source` has an adapter of an official checkpoint, which transformers would load wrongly."""
    path = optional_file(source, ADAPTER_CONFIG_FILE, **download)
    if path is None:
        return
    base = read_json(path).get("base_model_name_or_path")
    if stored_config.get("model_type") in OFFICIAL_TYPES or stored_configuration(base).get("model_type") == "deberta":
        raise ValueError(
            f"the adapter in {source} cannot be loaded together with its base model {base}, which was not saved by this "
            f"package. First load {base} from a folder that does not contain {ADAPTER_CONFIG_FILE}, then load the adapter "
            f"with peft.PeftModel.from_pretrained(model, {source!r})"
        )
