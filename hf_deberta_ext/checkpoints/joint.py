# SPDX-License-Identifier: Apache-2.0
"""Load joint models (`DebertaExtForPreTraining`), create them from two checkpoints, and export their two models."""

import copy

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.utils import logging

from ..model.configuration_deberta_ext import DebertaExtConfig
from ..model.modeling_deberta_ext import DebertaExtForMaskedLM

# A circular import: replaced_tokens_deberta_ext.py imports this file after it has defined these names.
from ..model.replaced_tokens_deberta_ext import TABLES, DebertaExtForReplacedTokenDetection, GradientDisentangledEmbedding
from .configuration import is_joint
from .files import GENERATOR_FILE
from .layouts import LoadingReport, convert_official, read_generator
from .loading import DOWNLOAD_ARGUMENTS, pick, pop
from .official_configurations import OFFICIAL_TYPES, stored_configuration

logger = logging.get_logger(__name__)

__all__ = ["JointCheckpointsMixin"]

# Fields of the generator whose default values are computed from the discriminator's fields.
DERIVED = ("num_hidden_layers", "num_attention_heads", "intermediate_size", "embedding_size")
# Fields that must be equal for a generator to copy layers of the discriminator.
SHAPES = (
    "embedding_size hidden_size num_attention_heads intermediate_size type_vocab_size position_biased_input "
    "relative_attention pos_att_type max_relative_positions position_buckets norm_rel_ebd share_att_key "
    "conv_kernel_size conv_groups share_layers"
).split()


class JointCheckpointsMixin:
    """Mixin of `DebertaExtForPreTraining` with `from_pretrained`, `from_checkpoints` and the exports."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *model_args, config=None, **kwargs):
        """Load a joint checkpoint. A checkpoint of a single model is passed to `from_checkpoints`.
        Raises:
            ValueError: `generator` or `embedding_sharing` differs from the value in the joint checkpoint; or as in
                `from_checkpoints`.
        """
        source = pretrained_model_name_or_path
        stored_config = {}
        if "state_dict" not in kwargs:
            stored_config = stored_configuration(source, **pick(kwargs, DOWNLOAD_ARGUMENTS))
        if stored_config and not is_joint(stored_config):
            return cls.from_checkpoints(source, config=config, **kwargs)
        for name in ("generator", "embedding_sharing"):
            stored = stored_config.get(name)
            value = kwargs.get(name, stored)
            if isinstance(config, PreTrainedConfig):
                value = getattr(config, name)
            if stored is not None and value != stored:
                raise ValueError(
                    f"{name} must be {stored!r} as in the joint model {source}, got {value!r}. To change {name}, export "
                    "discriminator and generator, and join them with from_checkpoints(discriminator, generator, "
                    f"{name}={value!r})"
                )
        return super().from_pretrained(source, *model_args, config=config, **kwargs)

    @classmethod
    def from_checkpoints(
        cls,
        discriminator,
        generator_checkpoint=None,
        *,
        config=None,
        dtype: torch.dtype | str | None = None,
        attn_implementation: str | None = None,
        output_loading_info: bool = False,
        **kwargs,
    ):
        """Create a joint model from two checkpoints: folders or repository ids, official or saved by this package.

        Args:
            discriminator (`str`): a discriminator with its head, or a masked language model, to which a new head is added.
            generator_checkpoint (`str`, *optional*): a masked language model. If embedding sharing is "gdes", E_delta is the
                discriminator's table minus the generator's table. Default: the file `pytorch_model.generator.bin` of an
                official discriminator. If there is no such file, the first layers, the embedding tables and the
                masked-language-model head (if present) of `discriminator` are copied; if the generator's layers have other
                sizes, only the tables are copied, and the rest is newly initialised.
            config (`DebertaExtConfig`, *optional*): configuration of the joint model; default: as in `discriminator`.
            dtype (`torch.dtype` or `str`, *optional*): dtype of the joint model; None and "auto" = float32.
            attn_implementation (`str`, *optional*): attention backend, as in transformers.
            output_loading_info (`bool`): also return the loading info of transformers.
            kwargs: fields of the configuration to replace (including `generator={...}`), and download arguments
                (`revision`, `token`, ...).

        Raises:
            ValueError: an argument is unknown; a checkpoint is a joint model; the two models have different vocabularies or
                table sizes; or embedding sharing is "es" or "all", and the weights to share have different values.
        """
        pop(kwargs, ("code_revision", "trust_remote_code", "adapter_kwargs"))
        download = pop(kwargs, DOWNLOAD_ARGUMENTS)
        options = dict(download, dtype=torch.float32, output_loading_info=True)
        options |= pop(kwargs, ("ignore_mismatched_sizes", "use_safetensors", "variant"))
        stored_config = stored_configuration(discriminator, **download)
        if is_joint(stored_config):
            raise ValueError(
                f"from_checkpoints expects a single model, got the joint model {discriminator}: load this model with "
                f"{cls.__name__}.from_pretrained, or export its two models first"
            )
        if isinstance(config, PreTrainedConfig):
            config = copy.deepcopy(config)
            for name in [name for name in kwargs if hasattr(type(config), name)]:
                setattr(config, name, kwargs.pop(name))
            config.validate()
        else:
            config, kwargs = cls.config_class.from_pretrained(
                config or discriminator, return_unused_kwargs=True, **download, **kwargs
            )
        if kwargs:
            raise ValueError(f"from_checkpoints got unexpected arguments: {', '.join(map(repr, kwargs))}")

        overrides = dict(config.generator or {})
        generator = bases = None
        if generator_checkpoint is not None:
            generator, generator_info = DebertaExtForMaskedLM.from_pretrained(generator_checkpoint, **options, **overrides)
        elif stored_config.get("model_type") in OFFICIAL_TYPES:
            files = read_generator(str(discriminator), **download)
            if files is not None:
                generator, generator_info = load_official_generator(config, *files)
        if generator is not None:
            bases = embedding_tables(generator.deberta)
        trained, discriminator_info = DebertaExtForReplacedTokenDetection.from_pretrained(
            discriminator, config=config.discriminator_config(), delta_bases=bases, **options
        )
        if generator is None:
            generator, generator_info = derive_generator(discriminator, config, trained, options)
        else:
            config.generator = {}
            for name, value in generator.config.difference(config).items():
                # Dropout is taken from the joint model's configuration and not from the files.
                if "dropout" not in name or name in overrides:
                    config.generator[name] = value
            for name in DERIVED:
                # Always set, because missing fields would be derived from the discriminator.
                config.generator[name] = getattr(generator.config, name)
        for name in ("emd_layers", "emd_input"):
            # from_pretrained disables EMD if the checkpoint has no absolute positions.
            setattr(config, name, getattr(generator.config, name))
            (config.generator or {}).pop(name, None)
        config.check_generator()
        model = cls(config)
        copy_weights(model, generator, trained)
        model.name_or_path = model.config.name_or_path = str(discriminator)
        if isinstance(dtype, str) and dtype != "auto":
            dtype = getattr(torch, dtype)
        if isinstance(dtype, torch.dtype):
            model = model.to(dtype)
        if attn_implementation is not None:
            model.set_attn_implementation(attn_implementation)
        info = joint_info(generator=generator_info, discriminator=discriminator_info)
        model.loading_report = LoadingReport(str(discriminator))
        model.loading_report.complete(set(model.state_dict()), info)
        model.eval()
        return (model, info) if output_loading_info else model

    def resize_token_embeddings(self, *args, **kwargs):
        raise ValueError(
            "a joint model cannot be resized: export generator and discriminator, resize both, and join them again with "
            "DebertaExtForPreTraining.from_checkpoints(discriminator, generator)"
        )

    def extend_position_embeddings(self, length: int):
        raise ValueError(
            f"a joint model cannot be extended to {length} positions: export generator and discriminator, extend both, and "
            "join them again with DebertaExtForPreTraining.from_checkpoints(discriminator, generator)"
        )

    def export_discriminator(self) -> DebertaExtForReplacedTokenDetection:
        """Return the discriminator as a separate model with its head, from which all task models can be fine-tuned.

        If embeddings are shared by GDES, the embedding table of the returned model is E_G + E_delta, the generator's table
        plus the trained difference. If `position_biased_input` is False, the discriminator has no absolute position table in
        the joint model. The returned model has one unless `emd_input` is "hidden": a copy of the generator's table if this
        has the same size, else a newly initialised table. The encoder is the attribute `deberta`.
        """
        embeddings = self.discriminator.deberta.embeddings
        state_dict = dict(self.discriminator.state_dict())
        for name in TABLES:
            table = getattr(embeddings, name, None)
            if isinstance(table, GradientDisentangledEmbedding):
                del state_dict[f"deberta.embeddings.{name}.delta.weight"]
                state_dict[f"deberta.embeddings.{name}.weight"] = table.table()
        model = DebertaExtForReplacedTokenDetection(copy.deepcopy(self.discriminator.config))
        name = "deberta.embeddings.position_embeddings.weight"
        new_table = model.state_dict().get(name)
        if new_table is not None and name not in state_dict:
            trained = embedding_tables(self.generator.deberta).get("position_embeddings")
            state_dict[name] = new_table
            if trained is not None and trained.shape == new_table.shape:
                state_dict[name] = trained
        model.load_state_dict(state_dict)
        return model.to(self.device, self.dtype).eval()

    def export_generator(self) -> DebertaExtForMaskedLM:
        """Return the generator as a separate masked language model."""
        model = DebertaExtForMaskedLM(copy.deepcopy(self.generator.config))
        model.load_state_dict(self.generator.state_dict())
        return model.to(self.device, self.dtype).eval()


@torch.no_grad()
def copy_weights(joint: nn.Module, generator: DebertaExtForMaskedLM, discriminator: DebertaExtForReplacedTokenDetection):
    """Copy the weights of both models to `joint`. Each model must have the same configuration as in `joint`."""
    joint.generator.load_state_dict(generator.state_dict())
    joint.generator.loading_report = generator.loading_report
    joint.discriminator.loading_report = discriminator.loading_report
    sharing = joint.config.embedding_sharing
    bases = {f"deberta.embeddings.{name}.weight": x for name, x in embedding_tables(generator.deberta).items()}
    state_dict, generator_weights = joint.discriminator.state_dict(), generator.state_dict()
    for name, weight in discriminator.state_dict().items():
        delta = name.replace(".weight", ".delta.weight")
        if name in bases and delta in state_dict:
            state_dict[delta] = weight - bases[name]
        elif name in state_dict:
            state_dict[name] = weight
            is_shared = name in bases if sharing == "es" else sharing == "all" and name.startswith("deberta.")
            if is_shared and not torch.equal(weight, generator_weights[name]):
                raise ValueError(
                    f"embedding_sharing = {sharing!r} requires equal {name} in generator and discriminator, got "
                    "different values; use embedding_sharing = 'gdes' or 'nes'"
                )
    joint.discriminator.load_state_dict(state_dict)


def embedding_tables(encoder: nn.Module) -> dict[str, torch.Tensor]:
    """Return {name: weight} for the embedding tables of an encoder that does not use GDES."""
    return {name: getattr(encoder.embeddings, name).weight for name in TABLES if hasattr(encoder.embeddings, name)}


def joint_info(**halves: dict) -> dict[str, set]:
    """Merge the loading info of the two models, and prefix their parameter names by "generator." or "discriminator."."""
    joined: dict[str, set] = {"missing_keys": set(), "unexpected_keys": set(), "mismatched_keys": set(), "error_msgs": set()}
    for half, info in halves.items():
        for kind, entries in joined.items():
            for entry in info.get(kind, ()):
                entries.add(f"{half}.{entry}" if isinstance(entry, str) else (f"{half}.{entry[0]}", *entry[1:]))
    return joined


def load_official_generator(config: DebertaExtConfig, state_dict: dict, stock_config: dict | None):
    """Create the generator from the results of `read_generator` (tensors, configuration); return model and loading info."""
    generator_config = config.generator_config()
    if stock_config is not None:
        generator_config = DebertaExtConfig.from_dict(stock_config, **(config.generator or {}))
    tensors, report = convert_official(state_dict, generator_config)
    model, info = DebertaExtForMaskedLM.from_pretrained(
        None, config=generator_config, state_dict=tensors, dtype=torch.float32, output_loading_info=True
    )
    report.source = GENERATOR_FILE
    report.complete(set(model.state_dict()), info)
    model.loading_report = report
    return model, info


def derive_generator(source, config: DebertaExtConfig, discriminator: DebertaExtForReplacedTokenDetection, options: dict):
    """Create a generator: load the first layers of `source`, the checkpoint of `discriminator`. If a field in `SHAPES`
    differs, only copy the embedding tables of `discriminator`. Return the generator and its loading info."""
    generator_config = config.generator_config()
    different = [name for name in SHAPES if getattr(generator_config, name) != getattr(config, name)]
    if not different:
        return DebertaExtForMaskedLM.from_pretrained(source, config=generator_config, **options)
    logger.warning(
        f"the generator cannot copy the layers of {source}, because these fields differ: {', '.join(different)}. Only the "
        "embedding tables are copied; the other weights of the generator are newly initialised"
    )
    model = DebertaExtForMaskedLM(generator_config)
    tables = embedding_tables(discriminator.deberta)
    new = {name for name, _ in model.named_parameters()}
    with torch.no_grad():
        for name, weight in embedding_tables(model.deberta).items():
            if name in tables and tables[name].shape == weight.shape:
                weight.copy_(tables[name])
                new.remove(f"deberta.embeddings.{name}.weight")
    return model, {"missing_keys": new}
