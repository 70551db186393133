# SPDX-License-Identifier: Apache-2.0
"""Pre-train a generator and a discriminator with replaced token detection, from scratch or from checkpoints."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ..analysis.results import learned_nothing, replaced_token_table
from ..files import drop_none, shown_source
from ..heads import PARTS
from ..model.configuration_deberta_ext import DebertaExtConfig
from ..model.replaced_tokens_deberta_ext import DebertaExtForPreTraining
from ..training.checkpoints import replaced_model
from ..training.flags import option
from ..training.run_folder import weights_digest
from .masking import MaskingVocabulary
from .packing import PAIR_MODES
from .replaced_token_trainer import ReplacedTokenArguments, ReplacedTokenTrainer, check_stepping
from .report import CURVES_FILE, plot_replaced_tokens
from .run_arguments import (
    DataArguments,
    MaskingArguments,
    ModelArguments,
    check_length,
    config_overrides,
    model_config,
)
from .run_stages import PretrainingRun, parse_and_run

__all__ = ["GROUPS", "ReplacedTokenRun", "main"]


@dataclass
class JointModelArguments(ModelArguments):
    """Flags for the joint model, in addition to the flags of a masked language model."""

    embedding_sharing: str | None = option(
        None,
        "how generator and discriminator share embeddings; default: the value of a joint --model (with both), else gdes",
        choices=["gdes", "es", "nes", "all"],
    )
    rtd_lambda: float | None = option(
        None,
        "weight of the discriminator's loss; default: the value of a joint --model (generator and discriminator), else 50",
    )
    temperature: float | None = option(
        None, "generator's sampling temperature; default: the value of a joint --model, else 1"
    )
    generator_layers: int | None = option(None, "number of generator layers; default: half as many as in the discriminator")
    generator_overrides: str | None = option(
        None, "configuration fields to replace in the generator, such as hidden_size=256,emd_layers=1"
    )
    generator_model: str | None = option(
        None, "generator checkpoint; default: pytorch_model.generator.bin in --model, else the first layers of --model"
    )
    loss_without_special_tokens: bool = option(False, "exclude [CLS] and [SEP] from the discriminator's loss")
    # Digest of the generator's weight files, which must not change when a run is resumed.
    generator_digest: str | None = field(default=None, init=False)


GROUPS = (JointModelArguments, DataArguments, MaskingArguments, ReplacedTokenArguments)


def main(argv: list[str] | None = None, *, description: str = __doc__, program: str = "%(prog)s") -> dict[str, float]:
    """Parse a command line, train the joint model, and return its metrics; see `run_masked_lm.main` for the arguments."""
    return parse_and_run(ReplacedTokenRun, GROUPS, argv, description, program)


class ReplacedTokenRun(PretrainingRun):
    """Pre-training run of `DebertaExtForPreTraining`."""

    trainer_class, rtd = ReplacedTokenTrainer, True
    defaults: ClassVar = dict(masking="token", mask_share=1.0, random_share=0.0)

    def configuration(self) -> DebertaExtConfig:
        """Return the configuration of the joint model. Fields that no flag sets have the values of --model."""
        args = self.model_args
        source, start = args.generator_model, args.model
        generator = config_overrides(args.generator_overrides, "--generator_overrides")
        if args.generator_layers is not None:
            generator["num_hidden_layers"] = args.generator_layers
        fields = dict(
            embedding_sharing=args.embedding_sharing,
            rtd_lambda=args.rtd_lambda,
            rtd_temperature=args.temperature,
            generator=generator or None,
        )
        fields = drop_none(fields)
        if args.loss_without_special_tokens:
            fields["rtd_special_tokens"] = False
        if source is not None and start is None:
            raise ValueError("--generator_model needs --model: pass a discriminator or a masked language model as --model")
        if source is not None and generator:
            raise ValueError(f"{source} sets the generator's layers; remove --generator_layers and --generator_overrides")
        if start is not None:
            saved = model_config(args)
            other_sharing = fields.get("embedding_sharing", saved.embedding_sharing) != saved.embedding_sharing
            if saved.is_joint and (other_sharing or generator or source):
                raise ValueError(
                    f"--model {start} is a joint model, whose generator and embedding_sharing cannot be changed; start from "
                    f"its two parts: --model {start}/discriminator --generator_model {start}/generator"
                )
        args.generator_digest = weights_digest(source)
        return model_config(args, **fields)

    def check(self):
        """Check --packing, --stepping and the generator's input length."""
        packing = self.data_args.packing
        if packing in PAIR_MODES:
            raise ValueError(f"--packing {packing} makes pairs, which this model does not use; use --packing full_sentences")
        check_stepping(self.args.stepping, self.config.embedding_sharing)
        check_length(self.config.generator_config(), self.data_args.max_length, self.model_args)

    def new_model(self) -> DebertaExtForPreTraining:
        """Return the joint model with random weights."""
        return DebertaExtForPreTraining(self.config)

    def load_model(self, **options: Any) -> DebertaExtForPreTraining:
        """Load the joint model from --model, or from --model and --generator_model."""
        discriminator, generator = self.model_args.model, self.model_args.generator_model
        if generator is None:
            return DebertaExtForPreTraining.from_pretrained(discriminator, **options)
        return DebertaExtForPreTraining.from_checkpoints(discriminator, generator, **options)

    def build(self, tokenizer: Any, vocabulary: MaskingVocabulary) -> DebertaExtForPreTraining:
        """Return the joint model to train, whose generator never samples special or unused ids."""
        model = super().build(tokenizer, vocabulary)
        # The embeddings may have more rows than the tokenizer has tokens.
        model.config.special_token_ids = sorted({*range(model.config.vocab_size)} - {*vocabulary.ordinary.tolist()})
        if self.args.should_save:
            sharing = model.config.embedding_sharing
            print(f"{shape(model)}, embeddings {sharing}, steps {self.args.stepping}", flush=True)
        return model

    def report(self, trainer, metrics, seconds):
        """Write generator, discriminator, curves and cards, print results, and warn if the discriminator learned nothing."""
        folder, tokenizer = Path(self.args.output_dir), trainer.processing_class
        joint = DebertaExtForPreTraining.from_pretrained(folder, dtype="float32")
        for part, model in zip(PARTS, (joint.export_generator(), joint.export_discriminator()), strict=True):
            with replaced_model(folder / part) as whole:
                model.save_pretrained(whole)
                tokenizer.save_pretrained(whole)
        plot_replaced_tokens(trainer.state.log_history, folder / CURVES_FILE)
        self.write_report(trainer, seconds, replaced_token_table(metrics), self.rows(joint.config))
        if learned_nothing(metrics):
            loss, guess = metrics["eval_discriminator_loss"], metrics["eval_discriminator_guess_loss"]
            recall = metrics["eval_discriminator_recall"]
            print(
                f"The discriminator's loss of {loss:.4f} is hardly better than a constant guess ({guess:.4f}), and its "
                f"recall of replaced tokens is {recall:.1%}: it has learned nothing that helps fine-tuning. "
                "Train longer, or lower --discriminator_learning_rate: too high a rate makes all hidden states equal."
            )

    def rows(self, config: DebertaExtConfig) -> dict[str, Any]:
        """Return the rows of the model cards' tables that only apply to replaced token detection."""
        rows = {"objective": f"masked-language modelling + {config.rtd_lambda:g} x replaced token detection"}
        for name, half in {"discriminator": config, "generator": config.generator_config()}.items():
            rows[name] = {"layers": half.num_hidden_layers, "width": half.hidden_size}
        if self.model_args.generator_model is not None:
            rows["generator initialised from"] = shown_source(self.model_args.generator_model)
        rows["embedding sharing"] = config.embedding_sharing
        rows["optimizer steps of generator and discriminator"] = self.args.stepping
        rows["temperature"] = config.rtd_temperature
        rows["discriminator's loss"] = "over all tokens" if config.rtd_special_tokens else "without special tokens"
        for name, value in vars(self.args).items():
            if name.startswith("discriminator_") and value is not None:
                rows[name.replace("_", " ")] = value
        return rows


def shape(model: DebertaExtForPreTraining) -> str:
    """Return the layers, width and heads of discriminator and generator and the number of parameters, in one line."""
    text = ""
    for name, half in {"discriminator": model.discriminator.config, "generator": model.generator.config}.items():
        text += f"{name} {half.num_hidden_layers} layers x {half.hidden_size} ({half.num_attention_heads} heads), "
    return f"{text}{model.num_parameters() / 1e6:.1f} million parameters"
