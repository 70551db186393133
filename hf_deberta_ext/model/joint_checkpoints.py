# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""Checkpoints of `DebertaExtForPreTraining`: joined from two models, loaded, and exported as two models again."""

import copy

import torch
from transformers import PreTrainedConfig
from transformers.utils import logging

from .checkpoint_files import GENERATOR_FILE
from .checkpoint_layouts import LoadingReport, convert_official, read_generator
from .checkpoint_loading import DOWNLOAD_ARGUMENTS, config_dict
from .configuration_deberta_ext import DebertaExtConfig, is_joint
from .embedding_sharing import TABLES, GradientDisentangledEmbedding, embedding_tables
from .masked_language_model import DebertaExtForMaskedLM
from .official_configurations import OFFICIAL_TYPES
from .replaced_token_detection import DebertaExtForReplacedTokenDetection

logger = logging.get_logger(__name__)

__all__ = ["JointCheckpointsMixin"]

# What a generator has in proportion to the discriminator, unless it says otherwise.
DERIVED = ("num_hidden_layers", "num_attention_heads", "intermediate_size", "embedding_size")
# Fields in which models differ that cannot exchange the weights of their layers.
SHAPES = (
    "embedding_size", "hidden_size", "num_attention_heads", "intermediate_size", "type_vocab_size", "position_biased_input",
    "relative_attention", "pos_att_type", "max_relative_positions", "position_buckets", "norm_rel_ebd", "share_att_key",
    "conv_kernel_size", "conv_groups", "share_layers",
)  # fmt: skip


class JointCheckpointsMixin:
    """`from_pretrained`, `from_checkpoints` and the exports of `DebertaExtForPreTraining`."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *model_args, config=None, **kwargs):
        """A joint checkpoint as it is; any other as `from_checkpoints` reads it.

        Raises:
            ValueError: another `generator` or `embedding_sharing` than the joint checkpoint has, and as `from_checkpoints`.
        """
        source = pretrained_model_name_or_path
        download = {name: kwargs[name] for name in DOWNLOAD_ARGUMENTS if name in kwargs}
        stored_config = None if source is None or "state_dict" in kwargs else config_dict(source, download)
        if stored_config is not None and not is_joint(stored_config):
            return cls.from_checkpoints(source, config=config, **kwargs)
        for name in ("generator", "embedding_sharing") if stored_config is not None else ():
            stored = stored_config.get(name, getattr(cls.config_class, name))
            value = getattr(config, name) if isinstance(config, PreTrainedConfig) else kwargs.get(name, stored)
            if value != stored:
                raise ValueError(
                    f"{source} is a joint model with {name} = {stored!r}, which cannot become {value!r}: export its "
                    "discriminator and generator, and join them with from_checkpoints(discriminator, generator, "
                    f"{name}={value!r})"
                )
        return super().from_pretrained(source, *model_args, config=config, **kwargs)

    @classmethod
    def from_checkpoints(cls, discriminator, generator_checkpoint=None, *, config=None, **kwargs):
        """Joins checkpoints, folders or repo ids, official ones or ours.

        Args:
            discriminator: a discriminator with its head; or a masked language model, whose encoder the discriminator takes,
                with a new head.
            generator_checkpoint (*optional*): a masked language model. Under "gdes", E_delta is then the difference of the
                two tables. None: what lies beside an official discriminator (`pytorch_model.generator.bin`); otherwise the
                first layers of `discriminator`, with its tables and, where it has one, its masked-language-model head. A
                generator of another shape is new but for the tables.
            config (`DebertaExtConfig`, *optional*): of the joint model; None = that of `discriminator`.
            kwargs: fields of the configuration to replace (`generator={...}` too), `dtype` (float32 if not given),
                `attn_implementation`, and the arguments of a download (`revision`, `token`, ...).

        Raises:
            ValueError: unknown arguments; vocabularies or tables that cannot be shared; "es" or "all" for different tables.
        """
        download = {name: kwargs.pop(name) for name in DOWNLOAD_ARGUMENTS if name in kwargs}
        loading = ("ignore_mismatched_sizes", "use_safetensors", "variant")
        options = {name: kwargs.pop(name) for name in loading if name in kwargs}
        options |= dict(dtype=torch.float32, output_loading_info=True, **download)
        dtype = floating_type(kwargs.pop("dtype", kwargs.pop("torch_dtype", None)))
        attention = kwargs.pop("attn_implementation", None)
        with_info = kwargs.pop("output_loading_info", False)
        for name in ("code_revision", "trust_remote_code", "adapter_kwargs"):
            kwargs.pop(name, None)
        stored_config = config_dict(discriminator, download) or {}
        if is_joint(stored_config):
            raise ValueError(
                f"{discriminator} is generator and discriminator already: {cls.__name__}.from_pretrained loads it; to join "
                "its parts anew, export them first"
            )
        if isinstance(config, PreTrainedConfig):
            config = copy.deepcopy(config)
            for name in [name for name in kwargs if hasattr(type(config), name)]:
                setattr(config, name, kwargs.pop(name))
        else:
            source = config or discriminator
            config, kwargs = cls.config_class.from_pretrained(source, return_unused_kwargs=True, **download, **kwargs)
        if kwargs:
            raise ValueError(f"from_checkpoints knows no argument {', '.join(map(repr, kwargs))}")
        config.validate()

        overrides = dict(config.generator or {})
        generator = generator_info = None
        if generator_checkpoint is not None:
            generator, generator_info = DebertaExtForMaskedLM.from_pretrained(generator_checkpoint, **options, **overrides)
        elif stored_config.get("model_type") in OFFICIAL_TYPES:
            if (files := read_generator(str(discriminator), **download)) is not None:
                generator, generator_info = load_official_generator(config, *files)
        bases = None if generator is None else embedding_tables(generator.deberta)
        judge, judge_info = DebertaExtForReplacedTokenDetection.from_pretrained(
            discriminator, config=config.discriminator_config(), delta_bases=bases, **options
        )
        if generator is None:
            generator, generator_info = derive_generator(discriminator, config, judge, options)
        else:
            # Dropout is that of the joint model, whatever the files say.
            fields = generator.config.difference(config)
            fields = {name: value for name, value in fields.items() if "dropout" not in name or name in overrides}
            # By name also where they are the discriminator's: left out, they would be half of it, or in proportion.
            config.generator = fields | {name: getattr(generator.config, name) for name in DERIVED}
        for name in ("emd_layers", "emd_input"):
            # Switched off where the checkpoint has no absolute positions.
            setattr(config, name, getattr(generator.config, name))
            (config.generator or {}).pop(name, None)
        model = cls(config)
        model._take(generator, judge)
        model.name_or_path = model.config.name_or_path = str(discriminator)
        model = model.to(dtype).eval()
        if attention is not None:
            model.set_attn_implementation(attention)
        infos = {"generator": generator_info, "discriminator": judge_info}
        kinds = ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")
        # Entries are names, tuples that begin with a name, or messages.
        joint_info = {
            kind: {
                f"{half}.{entry}" if isinstance(entry, str) else (f"{half}.{entry[0]}", *entry[1:])
                for half, info in infos.items()
                for entry in info.get(kind, ())
            }
            for kind in kinds
        }
        model.loading_report = LoadingReport(str(discriminator))
        model.loading_report.complete({*model.state_dict()}, joint_info)
        return (model, joint_info) if with_info else model

    @torch.no_grad()
    def _take(self, generator: DebertaExtForMaskedLM, discriminator: DebertaExtForReplacedTokenDetection):
        """Copies the weights of two models with the configurations of the two halves."""
        self.generator.load_state_dict(generator.state_dict())
        self.generator.loading_report = generator.loading_report
        self.discriminator.loading_report = discriminator.loading_report
        sharing = self.config.embedding_sharing
        bases = {f"deberta.embeddings.{name}.weight": x for name, x in embedding_tables(generator.deberta).items()}
        state_dict, generator_weights = self.discriminator.state_dict(), generator.state_dict()
        for name, weight in discriminator.state_dict().items():
            delta = name.replace(".weight", ".delta.weight")
            if name in bases and delta in state_dict:
                state_dict[delta] = weight - bases[name]
            elif name in state_dict:
                state_dict[name] = weight
                is_shared = name in bases if sharing == "es" else sharing == "all" and name.startswith("deberta.")
                if is_shared and not torch.equal(weight, generator_weights[name]):
                    raise ValueError(
                        f"embedding_sharing = {sharing!r} has one {name}, but generator and discriminator come with "
                        "different ones: choose 'gdes' or 'nes'"
                    )
        self.discriminator.load_state_dict(state_dict)

    def export_discriminator(self) -> DebertaExtForReplacedTokenDetection:
        """The discriminator as a model of its own, with its head and one table, E_G + E_delta under GDES.

        Its table of absolute positions, which nothing trained where the input does not read it, is the generator's.
        `save_pretrained` of it is a checkpoint that every task head starts from; `.deberta` is the bare encoder.
        """
        embeddings = self.discriminator.deberta.embeddings
        state_dict = {**self.discriminator.state_dict()}
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
            fits = trained is not None and trained.shape == new_table.shape
            state_dict[name] = trained if fits else new_table
        model.load_state_dict(state_dict)
        return model.to(self.device, self.dtype).eval()

    def export_generator(self) -> DebertaExtForMaskedLM:
        """The generator as a masked language model of its own."""
        model = DebertaExtForMaskedLM(copy.deepcopy(self.generator.config))
        model.load_state_dict(self.generator.state_dict())
        return model.to(self.device, self.dtype).eval()


def load_official_generator(config: DebertaExtConfig, state_dict: dict, stock_config: dict | None):
    """The generator beside an official discriminator, and its loading info; arguments as `read_generator` returns them."""
    config, overrides = config.generator_config(), config.generator or {}
    if stock_config is not None:
        config = DebertaExtConfig.from_dict(stock_config, **overrides)
    tensors, report = convert_official(state_dict, config)
    options = dict(config=config, state_dict=tensors, dtype=torch.float32, output_loading_info=True)
    model, info = DebertaExtForMaskedLM.from_pretrained(None, **options)
    report.source = GENERATOR_FILE
    report.complete({*model.state_dict()}, info)
    model.loading_report = report
    logger.warning(f"{report.summary()}; model.generator.loading_report has the list")
    return model, info


def derive_generator(source, config: DebertaExtConfig, discriminator: DebertaExtForReplacedTokenDetection, options: dict):
    """A generator for a discriminator or a masked language model that has none, and its loading info."""
    generator_config = config.generator_config()
    different = [name for name in SHAPES if getattr(generator_config, name) != getattr(config, name)]
    if not different:
        return DebertaExtForMaskedLM.from_pretrained(source, config=generator_config, **options)
    logger.warning(
        f"the generator cannot take the layers of {source}, from which it differs in {', '.join(different)}: all of it "
        "is new but for the tables"
    )
    model = DebertaExtForMaskedLM(generator_config)
    tables, copied = embedding_tables(discriminator.deberta), set()
    with torch.no_grad():
        for name, weight in embedding_tables(model.deberta).items():
            if name in tables and tables[name].shape == weight.shape:
                weight.copy_(tables[name])
                copied.add(f"deberta.embeddings.{name}.weight")
    return model, {"missing_keys": {name for name, _ in model.named_parameters()} - copied}


def floating_type(dtype) -> torch.dtype:
    """A dtype by itself or by name; float32 for None and "auto"."""
    if dtype in (None, "auto"):
        return torch.float32
    value = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(value, torch.dtype):
        raise ValueError(f"dtype = {dtype!r} is no dtype of torch; give torch.bfloat16 or 'bfloat16'")
    return value
