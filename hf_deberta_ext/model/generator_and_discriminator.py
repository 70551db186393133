# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""`DebertaExtForPreTraining`: generator and discriminator of replaced token detection (DeBERTaV3, ELECTRA) in one model."""

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.utils import ModelOutput, can_return_tuple, logging

from .checkpoint_layouts import convert_official, read_generator
from .checkpoint_loading import DOWNLOAD_ARGUMENTS, config_dict
from .configuration_deberta_ext import DebertaExtConfig, is_joint
from .embedding_sharing import GradientDisentangledEmbedding
from .input_validation import check_labels, require_tensor
from .masked_language_model import DebertaExtForMaskedLM
from .official_configurations import OFFICIAL_TYPES
from .pretrained_model import DebertaExtPreTrainedModel, attention_masks
from .replaced_token_detection import DebertaExtForReplacedTokenDetection

logger = logging.get_logger(__name__)

__all__ = ["DebertaExtForPreTraining", "DebertaExtForPreTrainingOutput", "sample_replacements"]

TABLES = ("word_embeddings", "position_embeddings")
PARTS = ("generator", "discriminator")
# What a generator has in proportion to the discriminator, unless it says otherwise.
DERIVED = ("num_hidden_layers", "num_attention_heads", "intermediate_size", "embedding_size")
# Fields in which models differ that cannot exchange the weights of their layers.
SHAPES = (
    "embedding_size", "hidden_size", "num_attention_heads", "intermediate_size", "type_vocab_size", "position_biased_input",
    "relative_attention", "pos_att_type", "max_relative_positions", "position_buckets", "norm_rel_ebd", "share_att_key",
    "conv_kernel_size", "conv_groups", "share_layers",
)  # fmt: skip
SAMPLED_AT_A_TIME = 2**24


@dataclass
class DebertaExtForPreTrainingOutput(ModelOutput):
    """
    Args:
        loss (`torch.Tensor`, *optional*): generator_loss + rtd_lambda * discriminator_loss.
        generator_loss (`torch.Tensor`, *optional*): mean cross-entropy at the selected positions.
        discriminator_loss (`torch.Tensor`, *optional*): mean binary cross-entropy over the tokens that count.
        generator_logits (`torch.Tensor`, *optional*): [n, V] at the selected positions, in the order of
            `labels[labels != -100]`.
        discriminator_logits (`torch.Tensor`, *optional*): [B, N]; positive = this token was replaced.
        corrupted_ids (`torch.LongTensor`, *optional*): [B, N], what the discriminator reads.
        discriminator_labels (`torch.LongTensor`, *optional*): [B, N]; 1 = replaced, 0 = original, -100 = not counted.
        hidden_states, attentions (*optional*): of the discriminator, as in `DebertaExtModel`.
    """

    loss: torch.Tensor | None = None
    generator_loss: torch.Tensor | None = None
    discriminator_loss: torch.Tensor | None = None
    generator_logits: torch.Tensor | None = None
    discriminator_logits: torch.Tensor | None = None
    corrupted_ids: torch.Tensor | None = None
    discriminator_labels: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None


def sample_replacements(
    logits: torch.Tensor,
    excluded: list[int],
    temperature: float = 1.0,
    random_generator: torch.Generator | None = None,
) -> torch.Tensor:
    """[n, V] logits -> [n] ids, drawn from softmax(logits / temperature) in float32, without a gradient.

    On CPU by the inverse of the distribution function, summed in float64: one random number a row, where
    `torch.multinomial` draws one for every token of the vocabulary, which costs a CPU more than the rest.

    Args:
        excluded (`list[int]`): ids that are never drawn; the rest of the distribution keeps its proportions.
        random_generator (`torch.Generator`, *optional*): None = torch's own, which Trainer saves and restores.
    """
    samples = []
    # A part at a time: copies of all logits would take several times their memory.
    for part in logits.detach().split(max(1, SAMPLED_AT_A_TIME // logits.shape[1])):
        scores = part.float() / temperature
        scores[:, excluded] = -torch.inf
        samples.append(_draw(scores.softmax(-1), random_generator))
    return torch.cat(samples)


def _draw(p: torch.Tensor, random_generator: torch.Generator | None) -> torch.Tensor:
    """[n, V] probabilities -> [n] ids."""
    n, V = p.shape
    if p.device.type != "cpu":
        drawn = torch.multinomial(p, 1, generator=random_generator) if n else p.new_zeros(0, 1, dtype=torch.long)
        return drawn.squeeze(1)
    # Less than 1 also after rounding: the end of the table is never passed.
    places = torch.rand(n, 1, dtype=torch.float64, generator=random_generator) * (1 - 2**-52)
    sums = p.cumsum(-1, dtype=torch.float64)
    # Logits that are not numbers would pass the end.
    return torch.searchsorted(sums, places * sums[:, -1:], right=True).squeeze(1).clamp(max=V - 1)


class DebertaExtForPreTraining(DebertaExtPreTrainedModel):
    """A generator fills masked positions with samples, a discriminator tells which tokens were replaced.

    `generator` is a `DebertaExtForMaskedLM`, with the Enhanced Mask Decoder; `discriminator` is a
    `DebertaExtForReplacedTokenDetection`, without it: the decoder fills in masks, of which a discriminator sees none (so
    it is in the released code). `config` describes the discriminator, and says how the generator differs and how the two
    share their embeddings (`embedding_sharing`). The discriminator has no table of absolute positions unless its input
    reads one: an exported one has the generator's.

    The loss is L = L_MLM + rtd_lambda * L_RTD (ELECTRA equation 4, DeBERTaV3 section 3.1).
    """

    base_model_prefix = ""
    # Trainer would count the selected positions alone.
    accepts_loss_kwargs = False

    def __init__(self, config: DebertaExtConfig):
        if config.generator is None:
            # A generator that differs in nothing but its depth: by this a checkpoint is known as a joint one.
            config.generator = {}
        super().__init__(config)
        self.generator = DebertaExtForMaskedLM(config.generator_config())
        self.discriminator = DebertaExtForReplacedTokenDetection(config.discriminator_config())
        self._share_embeddings()
        self.post_init()

    # ------- what the two share

    def _share_embeddings(self):
        ours, theirs = (part.deberta.embeddings for part in (self.discriminator, self.generator))
        if not self.config.position_biased_input and hasattr(ours, "position_embeddings"):
            del ours.position_embeddings
        shared = [name for name in TABLES if hasattr(ours, name)]
        tied: list[str] = []
        if self.config.embedding_sharing == "gdes":
            for name in shared:
                setattr(ours, name, GradientDisentangledEmbedding(getattr(theirs, name)))
        elif self.config.embedding_sharing == "es":
            tied = [f"embeddings.{name}.weight" for name in shared]
        elif self.config.embedding_sharing == "all":
            tied = [name for name, _ in self.discriminator.deberta.named_parameters()]
        self._tied_weights_keys = {f"discriminator.deberta.{name}": f"generator.deberta.{name}" for name in tied}

    def _freeze_unread_positions(self):
        for part in PARTS:
            getattr(self, part)._freeze_unread_positions()

    def get_input_embeddings(self) -> nn.Embedding:
        """The generator's table."""
        return self.generator.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Embedding):
        self.generator.set_input_embeddings(value)
        table = self.discriminator.get_input_embeddings()
        if isinstance(table, GradientDisentangledEmbedding):
            table.borrow(value)
        self.tie_weights()

    def get_output_embeddings(self) -> nn.Linear:
        return self.generator.get_output_embeddings()

    def set_output_embeddings(self, new_embeddings: nn.Linear):
        self.generator.set_output_embeddings(new_embeddings)

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

    def set_unpadding(self, unpadding: bool | None):
        for part in PARTS:
            getattr(self, part).set_unpadding(unpadding)

    def set_attn_implementation(self, attn_implementation, *args, **kwargs):
        super().set_attn_implementation(attn_implementation, *args, **kwargs)
        for part in PARTS:
            getattr(self, part).set_attn_implementation(attn_implementation, *args, **kwargs)

    # ------- a step

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        document_ids: torch.Tensor | None = None,
        part: str | None = None,
        random_generator: torch.Generator | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> DebertaExtForPreTrainingOutput:
        """
        Args:
            input_ids (`torch.LongTensor`): [B, N], masked at the selected positions. Other inputs as in `DebertaExtModel`.
            labels (`torch.LongTensor`, *optional*): [B, N], the original token at selected positions, -100 elsewhere. Only
                these positions change. None: nothing is masked or replaced, the discriminator judges `input_ids` as is.
            part (`str`, *optional*): None = both in one step. "generator": it alone, and what it makes of the batch,
                `corrupted_ids` and `discriminator_labels`. "discriminator": it alone, on these two as `input_ids` and
                `labels`. For steps in turn, where the generator's weights change between the two.
            random_generator (`torch.Generator`, *optional*): draws the replacements; None = torch's own generator.
            output_attentions, output_hidden_states (`bool`, *optional*): of the discriminator.

        Raises:
            ValueError: labels, but no `config.special_token_ids`; an unknown `part`, or "generator" without labels.
        """
        inputs = dict(
            attention_mask=attention_mask, token_type_ids=token_type_ids, position_ids=position_ids,
            document_ids=document_ids, return_dict=True,
        )  # fmt: skip
        wanted = dict(output_attentions=output_attentions, output_hidden_states=output_hidden_states)
        if part not in (None, *PARTS):
            raise ValueError(f"part = {part!r} must be None, 'generator' or 'discriminator'")
        if part == "discriminator" or labels is None:
            if part == "generator":
                raise ValueError("part = 'generator' needs labels: the tokens at the selected positions")
            return self._judge(input_ids, labels, inputs | wanted)
        require_tensor("input_ids", input_ids)
        check_labels("labels", labels, "class", list(input_ids.shape), classes=self.config.vocab_size)
        filled = self.generator(input_ids, labels=labels, masked_only=True, **inputs)
        corrupted, replaced = self.corrupt(
            input_ids, labels, filled.logits, attention_mask, document_ids, random_generator=random_generator
        )
        generated = dict(generator_loss=filled.loss, generator_logits=filled.logits)
        if part == "generator":
            made = dict(loss=filled.loss, corrupted_ids=corrupted, discriminator_labels=replaced)
            return DebertaExtForPreTrainingOutput(**made, **generated)
        return self._judge(corrupted, replaced, inputs | wanted, **generated)

    def _judge(self, corrupted_ids, discriminator_labels, inputs: dict, **generated) -> DebertaExtForPreTrainingOutput:
        """The discriminator's part beside the generator's, `generated`, if there is one."""
        judged = self.discriminator(corrupted_ids, labels=discriminator_labels, **inputs)
        loss = generated.get("generator_loss")
        if judged.loss is not None:
            weighted = self.config.rtd_lambda * judged.loss
            loss = weighted if loss is None else loss + weighted
        # In one go: torch.compile of 2.6 loses what is assigned to the fields of an output that is there already.
        return DebertaExtForPreTrainingOutput(
            loss=loss,
            discriminator_loss=judged.loss,
            discriminator_logits=judged.logits,
            corrupted_ids=corrupted_ids,
            discriminator_labels=discriminator_labels,
            hidden_states=judged.hidden_states,
            attentions=judged.attentions,
            **generated,
        )

    @torch.no_grad()
    def corrupt(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        logits: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        document_ids: torch.Tensor | None = None,
        random_generator: torch.Generator | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Puts samples of the generator in the selected positions.

        Args:
            logits (`torch.Tensor`): [n, V] at the positions where `labels` [B, N] are not -100.

        Returns:
            corrupted ids [B, N], and the discriminator's labels [B, N]: 1 where the sample is not the original, 0 elsewhere,
            -100 at padding and, without `config.rtd_special_tokens`, at special tokens.
        """
        special = self.config.special_token_ids
        if special is None:
            raise ValueError(
                "special_token_ids is None, but special tokens must never be drawn as replacements: set "
                "config.special_token_ids = tokenizer.all_special_ids (and the ids that the tokenizer has no token for)"
            )
        selected = labels != -100
        samples = sample_replacements(logits, special, self.config.rtd_temperature, random_generator)
        corrupted = input_ids.masked_scatter(selected, samples.to(input_ids.dtype))
        replaced = (selected & (corrupted != labels)).long()
        counted = self.counted_tokens(input_ids, labels, attention_mask, document_ids)
        return corrupted, replaced.masked_fill(~counted, -100)

    def counted_tokens(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        document_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[B, N] bool: the tokens in the discriminator's loss, which do not depend on what is drawn; arguments as in
        `forward`."""
        selected = labels != -100
        _, counted = attention_masks(attention_mask, input_ids.shape)
        if counted is None:
            counted = torch.ones_like(selected)
        if document_ids is not None:
            counted = counted & (document_ids != 0)
        if not self.config.rtd_special_tokens:
            original = torch.where(selected, labels, input_ids)
            special = torch.tensor(self.config.special_token_ids, device=original.device)
            counted = counted & ~torch.isin(original, special)
        return counted

    # ------- where it starts

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *model_args, config=None, **kwargs):
        """A joint checkpoint as it is; any other as `from_checkpoints` reads it.

        Raises:
            ValueError: another `generator` or `embedding_sharing` than the joint checkpoint has, and as `from_checkpoints`.
        """
        source = pretrained_model_name_or_path
        download = {name: kwargs[name] for name in DOWNLOAD_ARGUMENTS if name in kwargs}
        there = None if source is None or "state_dict" in kwargs else config_dict(source, download)
        if there is not None and not is_joint(there):
            return cls.from_checkpoints(source, config=config, **kwargs)
        for name in ("generator", "embedding_sharing") if there is not None else ():
            has = there.get(name, getattr(cls.config_class, name))
            wanted = getattr(config, name) if isinstance(config, PreTrainedConfig) else kwargs.get(name, has)
            if wanted != has:
                raise ValueError(
                    f"{source} is a joint model with {name} = {has!r}, which cannot become {wanted!r}: export its "
                    "discriminator and generator, and join them with from_checkpoints(discriminator, generator, "
                    f"{name}={wanted!r})"
                )
        return super().from_pretrained(source, *model_args, config=config, **kwargs)

    @classmethod
    def from_checkpoints(
        cls, discriminator, generator_checkpoint=None, *, config=None, **kwargs
    ) -> "DebertaExtForPreTraining":
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
        files = {
            name: kwargs.pop(name) for name in ("ignore_mismatched_sizes", "use_safetensors", "variant") if name in kwargs
        }
        dtype = floating_type(kwargs.pop("dtype", kwargs.pop("torch_dtype", None)))
        attention = kwargs.pop("attn_implementation", None)
        with_info = kwargs.pop("output_loading_info", False)
        for name in ("code_revision", "trust_remote_code", "adapter_kwargs"):
            kwargs.pop(name, None)
        if not (Path(discriminator) / "config.json").exists() and (Path(discriminator) / "model_config.json").exists():
            raise ValueError(
                f"{discriminator} is as Microsoft's training code leaves it: rename model_config.json to config.json, with "
                '"model_type": "deberta-v2" in it, and pytorch.model-NNNNNN.bin to pytorch_model.bin; so for the generator'
            )
        there = config_dict(discriminator, download) or {}
        if is_joint(there):
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
        options = dict(dtype=torch.float32, output_loading_info=True, **download, **files)
        config.validate()
        asked = dict(config.generator or {})
        theirs = missing = None
        if generator_checkpoint is not None:
            theirs, missing = DebertaExtForMaskedLM.from_pretrained(generator_checkpoint, **options, **asked)
        elif there.get("model_type") in OFFICIAL_TYPES:
            beside = read_generator(str(discriminator), **download)
            if beside is not None:
                theirs, missing = cls._official_generator(config, *beside)
        bases = None if theirs is None else _tables(theirs)
        ours, info = DebertaExtForReplacedTokenDetection.from_pretrained(
            discriminator, config=config.discriminator_config(), delta_bases=bases, **options
        )
        if theirs is None:
            theirs, missing = cls._generator_from(discriminator, config, ours, options)
        else:
            # Dropout is that of the joint model, whatever the files say.
            differences = theirs.config.difference(config)
            own = {name: value for name, value in differences.items() if "dropout" not in name or name in asked}
            # By name also where they are the discriminator's: left out, they would be half of it, or in proportion.
            config.generator = own | {name: getattr(theirs.config, name) for name in DERIVED}
        for name in ("emd_layers", "emd_input"):
            # Switched off where the checkpoint has no absolute positions.
            setattr(config, name, getattr(theirs.config, name))
            (config.generator or {}).pop(name, None)
        model = cls(config)
        model._take(theirs, ours)
        model.name_or_path = model.config.name_or_path = str(discriminator)
        model = model.to(dtype).eval()
        if attention is not None:
            model.set_attn_implementation(attention)
        if not with_info:
            return model
        parts = {"generator": missing, "discriminator": info}
        kinds = ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")
        return model, {kind: _under_prefixes({name: part.get(kind, ()) for name, part in parts.items()}) for kind in kinds}

    @staticmethod
    def _official_generator(config, state_dict, stock):
        """The generator that lies beside an official discriminator."""
        own = config.generator_config()
        if stock is not None:
            own = DebertaExtConfig.from_dict(stock, **(config.generator or {}))
        tensors, report = convert_official(state_dict, own)
        options = dict(config=own, state_dict=tensors, dtype=torch.float32, output_loading_info=True)
        model, info = DebertaExtForMaskedLM.from_pretrained(None, **options)
        report.source = "pytorch_model.generator.bin"
        report.complete({*model.state_dict()}, info)
        model.loading_report = report
        logger.warning(f"{report.summary()}; model.generator.loading_report has the list")
        return model, info

    @staticmethod
    def _generator_from(source, config, ours, options):
        """A generator for a discriminator or a masked language model that has none."""
        own = config.generator_config()
        different = [name for name in SHAPES if getattr(own, name) != getattr(config, name)]
        if not different:
            return DebertaExtForMaskedLM.from_pretrained(source, config=own, **options)
        logger.warning(
            f"the generator cannot take the layers of {source}, from which it differs in {', '.join(different)}: all of it "
            "is new but for the tables"
        )
        model = DebertaExtForMaskedLM(own)
        tables, copied = _tables(ours), set()
        with torch.no_grad():
            for name, weight in _tables(model).items():
                if name in tables and tables[name].shape == weight.shape:
                    weight.copy_(tables[name])
                    copied.add(f"deberta.embeddings.{name}.weight")
        return model, {"missing_keys": {name for name, _ in model.named_parameters()} - copied}

    @torch.no_grad()
    def _take(self, generator: DebertaExtForMaskedLM, discriminator: DebertaExtForReplacedTokenDetection):
        """The weights of both, which have the configurations of our parts."""
        self.generator.load_state_dict(generator.state_dict())
        self.generator.loading_report = generator.loading_report
        self.discriminator.loading_report = discriminator.loading_report
        sharing = self.config.embedding_sharing
        theirs = {f"deberta.embeddings.{name}.weight": weight for name, weight in _tables(generator).items()}
        state_dict, shared_with = self.discriminator.state_dict(), generator.state_dict()
        for name, weight in discriminator.state_dict().items():
            delta = name.replace(".weight", ".delta.weight")
            if name in theirs and delta in state_dict:
                state_dict[delta] = weight - theirs[name]
            elif name in state_dict:
                state_dict[name] = weight
                shared = name in theirs if sharing == "es" else sharing == "all" and name.startswith("deberta.")
                if shared and not torch.equal(weight, shared_with[name]):
                    raise ValueError(
                        f"embedding_sharing = {sharing!r} has one {name}, but generator and discriminator come with "
                        "different ones: choose 'gdes' or 'nes'"
                    )
        self.discriminator.load_state_dict(state_dict)

    # ------- what comes out

    def export_discriminator(self) -> DebertaExtForReplacedTokenDetection:
        """The discriminator as a model of its own, with its head and one table, E_G + E_delta under GDES.

        Its table of absolute positions, which nothing trained where the input does not read it, is the generator's.
        `save_pretrained` of it is a checkpoint that every task head starts from; `.deberta` is the bare encoder.
        """
        embeddings = self.discriminator.deberta.embeddings
        own = {**self.discriminator.state_dict()}
        for name in TABLES:
            table = getattr(embeddings, name, None)
            if isinstance(table, GradientDisentangledEmbedding):
                del own[f"deberta.embeddings.{name}.delta.weight"]
                own[f"deberta.embeddings.{name}.weight"] = table.table()
        positions = _tables(self.generator).get("position_embeddings")
        return self._exported(DebertaExtForReplacedTokenDetection, self.discriminator.config, own, positions)

    def export_generator(self) -> DebertaExtForMaskedLM:
        """The generator as a masked language model of its own."""
        return self._exported(DebertaExtForMaskedLM, self.generator.config, self.generator.state_dict(), None)

    def _exported(self, model_class, config, state_dict, positions: torch.Tensor | None):
        model = model_class(copy.deepcopy(config))
        name = "deberta.embeddings.position_embeddings.weight"
        wanted = model.state_dict().get(name)
        if wanted is not None and name not in state_dict:
            fits = positions is not None and positions.shape == wanted.shape
            state_dict[name] = positions if fits else wanted
        model.load_state_dict(state_dict)
        return model.to(self.device, self.dtype).eval()


def floating_type(dtype) -> torch.dtype:
    """A dtype by itself or by name; float32 for None and "auto"."""
    if dtype in (None, "auto"):
        return torch.float32
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype):
        raise ValueError(f"dtype = {dtype!r} is no dtype of torch; give torch.bfloat16 or 'bfloat16'")
    return found


def _tables(model: DebertaExtPreTrainedModel) -> dict[str, torch.Tensor]:
    """The word and position tables of a plain model, by name."""
    embeddings = model.deberta.embeddings
    return {name: getattr(embeddings, name).weight for name in TABLES if hasattr(embeddings, name)}


def _under_prefixes(parts: dict) -> set:
    """Loading info of the parts, as it is of the whole: names, or tuples that begin with one, or messages."""
    return {
        f"{part}.{entry}" if isinstance(entry, str) else (f"{part}.{entry[0]}", *entry[1:])
        for part, entries in parts.items()
        for entry in entries
    }
