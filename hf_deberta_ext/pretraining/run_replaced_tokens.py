# SPDX-License-Identifier: Apache-2.0
"""Pre-train generator and discriminator by replaced token detection, from scratch or from checkpoints."""

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import set_seed

from ..analysis.results import learned_nothing
from ..files import shown_source
from ..model.configuration_deberta_ext import DebertaExtConfig
from ..model.modeling_deberta_ext import DebertaExtForPreTraining
from ..training.checkpoints import readable_weights, replaced_model
from ..training.distributed import leave_together
from ..training.flags import option
from ..training.run_folder import contents_line, find_checkpoint, repeated_arguments, weights_digest
from . import (
    DataArguments,
    MaskingArguments,
    MaskingCollator,
    MaskingVocabulary,
    ModelArguments,
    ReplacedTokenArguments,
    ReplacedTokenTrainer,
    check_stepping,
    plot_replaced_tokens,
    replaced_token_table,
)
from . import run_arguments as flags
from . import run_stages as stages
from .packing import PAIR_MODES
from .report import CURVES_FILE
from .run_masked_lm import parse_and_run

__all__ = ["GROUPS", "main"]


@dataclass
class JointModelArguments:
    embedding_sharing: str | None = option(
        None, "default: as in a joint --model, or gdes", choices=["gdes", "es", "nes", "all"]
    )
    rtd_lambda: float | None = option(None, "weight of the discriminator's loss; default: as in a joint --model, or 50")
    temperature: float | None = option(None, "of the samples; default: as in a joint --model, or 1")
    generator_layers: int | None = option(None, "default: half of the discriminator's")
    generator_overrides: str | None = option(None, "fields in which the generator differs: hidden_size=256,emd_layers=1")
    generator_model: str | None = option(
        None, "checkpoint of the generator; default: pytorch_model.generator.bin of --model, or its first layers"
    )
    loss_without_special_tokens: bool = option(False, "the discriminator's loss leaves [CLS] and [SEP] out")


GROUPS = (ModelArguments, JointModelArguments, DataArguments, MaskingArguments, ReplacedTokenArguments)


def main(argv: list[str] | None = None, *, description: str = __doc__, program: str = "%(prog)s"):
    """Parse the flags of a command line and run all stages; arguments as of `run_masked_lm.main`."""
    masking = dict(masking="token", mask_share=1.0, random_share=0.0)
    return parse_and_run(run, GROUPS, argv, description, program, rtd=True, defaults=masking)


def run(model_args, joint_args, data_args, masking_args, args):
    began = time.perf_counter()

    # 1. Errors of the user end the run here, before anything long begins
    checkpoint = find_checkpoint(args)
    flags.check_arguments(data_args, model_args, args)
    if data_args.packing in PAIR_MODES:
        raise ValueError(f"--packing {data_args.packing} makes pairs, which nothing reads here: choose full_sentences")
    options = flags.masking_options(masking_args, data_args.max_length)
    config = joint_config(model_args, joint_args)
    check_stepping(args.stepping, config.embedding_sharing)
    for part in (config, config.generator_config()):
        flags.check_length(part, data_args.max_length, model_args)
    with torch.device("meta"):
        stages.set_attention(DebertaExtForPreTraining(config), model_args)

    # 2. Documents, tokenizer and model
    arguments = repeated_arguments((model_args, joint_args, data_args, masking_args), args)
    arguments["generator_digest"] = weights_digest(joint_args.generator_model)
    corpus, held_out, tokenizer, tokenizer_facts = stages.begin(model_args, data_args, args, config, arguments, checkpoint)
    vocabulary = MaskingVocabulary.from_tokenizer(tokenizer)
    set_seed(args.seed)
    model = get_model(model_args, joint_args, config, tokenizer, vocabulary)
    if args.should_save:
        print(f"{shape(model)}, embeddings {model.config.embedding_sharing}, steps {args.stepping}", flush=True)

    # 3. Documents -> examples -> masked batches
    train_set, eval_set, reports = stages.numbered_examples(corpus, held_out, tokenizer, data_args, args)
    collator = MaskingCollator(vocabulary, options, seed=args.seed, duplicates=masking_args.masking_duplicates)

    # 4. Train, evaluate, report
    trainer = ReplacedTokenTrainer(
        model, args, data_collator=collator, train_dataset=train_set, eval_dataset=eval_set, processing_class=tokenizer
    )
    metrics = stages.train_and_evaluate(trainer, checkpoint, arguments)
    if args.should_save:
        export(args.output_dir, tokenizer)
        plot_replaced_tokens(trainer.state.log_history, Path(args.output_dir, CURVES_FILE))
        seconds, given = time.perf_counter() - began, (data_args, model_args, masking_args)
        rows = joint_facts(model.config, joint_args, args)
        stages.report_run(trainer, given, tokenizer_facts, reports, seconds=seconds, rows=rows)
        print(f"\n{replaced_token_table(metrics)}\n\n{contents_line(args.output_dir)}")
        if learned_nothing(metrics):
            loss, guess = metrics["eval_discriminator_loss"], metrics["eval_discriminator_guess_loss"]
            print(
                f"The discriminator's loss of {loss:.4f} is no better than a constant guess's ({guess:.4f}): it has "
                "learned nothing that helps fine-tuning. Train longer, or lower --discriminator_learning_rate: too high a "
                "one lets all its states become equal."
            )
    if args.push_to_hub:
        trainer.push_to_hub()
    trainer.print_divergence()
    leave_together()
    return metrics


def joint_config(model_args: ModelArguments, joint_args: JointModelArguments) -> DebertaExtConfig:
    """Return the configuration of the joint model; a flag that is not given leaves the value of --model."""
    generator = flags.config_overrides(joint_args.generator_overrides, "--generator_overrides")
    if joint_args.generator_layers is not None:
        generator["num_hidden_layers"] = joint_args.generator_layers
    fields = dict(
        embedding_sharing=joint_args.embedding_sharing,
        rtd_lambda=joint_args.rtd_lambda,
        rtd_temperature=joint_args.temperature,
        generator=generator or None,
    )
    fields = {name: value for name, value in fields.items() if value is not None}
    if joint_args.loss_without_special_tokens:
        fields["rtd_special_tokens"] = False
    source = joint_args.generator_model
    if source is not None and model_args.model is None:
        raise ValueError("--generator_model needs --model, a discriminator or masked language model")
    if source is not None and generator:
        raise ValueError(f"{source} says what the generator is: leave --generator_layers and --generator_overrides out")
    if model_args.model is not None:
        saved = flags.model_config(model_args)
        other_sharing = fields.get("embedding_sharing", saved.embedding_sharing) != saved.embedding_sharing
        if saved.is_joint and (other_sharing or generator or source):
            raise ValueError(
                f"{model_args.model} is a joint model, whose generator and embedding_sharing are settled: begin from its "
                f"parts, with --model {model_args.model}/discriminator --generator_model {model_args.model}/generator"
            )
    return flags.model_config(model_args, **fields)


def get_model(model_args, joint_args, config, tokenizer, vocabulary: MaskingVocabulary) -> DebertaExtForPreTraining:
    stages.fit_to_tokenizer(config, tokenizer, model_args)
    # The model may have more rows than the tokenizer has tokens.
    config.special_token_ids = sorted({*range(config.vocab_size)} - {*vocabulary.ordinary.tolist()})
    if model_args.model is None:
        model = DebertaExtForPreTraining(config)
    else:
        # Half-precision checkpoints too: the parameters of a training are float32.
        options = dict(config=config, dtype=torch.float32, **model_args.model_download())
        with readable_weights(model_args.model, model_args.config_overrides):
            if joint_args.generator_model is None:
                model = DebertaExtForPreTraining.from_pretrained(model_args.model, **options)
            else:
                model = DebertaExtForPreTraining.from_checkpoints(model_args.model, joint_args.generator_model, **options)
    return stages.set_attention(model, model_args)


def shape(model: DebertaExtForPreTraining) -> str:
    """Return layers, width, heads and parameters of both halves, in a line."""
    text = ""
    for name, half in {"discriminator": model.discriminator.config, "generator": model.generator.config}.items():
        text += f"{name} {half.num_hidden_layers} layers x {half.hidden_size} ({half.num_attention_heads} heads), "
    return f"{text}{model.num_parameters() / 1e6:.1f} million parameters"


def export(folder: str, tokenizer):
    """Write discriminator/ and generator/ from the joint model that was saved."""
    model = DebertaExtForPreTraining.from_pretrained(folder, dtype=torch.float32)
    parts = dict(discriminator=model.export_discriminator(), generator=model.export_generator())
    for name, part in parts.items():
        with replaced_model(Path(folder, name)) as whole:
            part.save_pretrained(whole)
            tokenizer.save_pretrained(whole)


def joint_facts(config: DebertaExtConfig, joint_args: JointModelArguments, args: ReplacedTokenArguments) -> dict:
    """Return the rows of the cards' tables that only this pre-training has."""
    facts = {"objective": f"masked-language modelling + {config.rtd_lambda:g} x replaced token detection"}
    for name, part in {"discriminator": config, "generator": config.generator_config()}.items():
        facts[name] = {"layers": part.num_hidden_layers, "width": part.hidden_size}
    if joint_args.generator_model is not None:
        facts["generator's start"] = shown_source(joint_args.generator_model)
    facts["embedding sharing"] = config.embedding_sharing
    facts["steps of the two"] = args.stepping
    facts["temperature"] = config.rtd_temperature
    facts["discriminator's loss"] = "over all tokens" if config.rtd_special_tokens else "over all but special tokens"
    for name, value in vars(args).items():
        if name.startswith("discriminator_") and value is not None:
            facts[name.replace("_", " ")] = value
    return facts
