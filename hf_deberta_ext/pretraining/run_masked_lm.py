# SPDX-License-Identifier: Apache-2.0
"""Pre-train a masked language model, from scratch or from a checkpoint, with any sum of the BERT family's objectives."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import set_seed

from ..model.configuration_deberta_ext import DebertaExtConfig
from ..training.checkpoints import readable_weights
from ..training.distributed import leave_together
from ..training.flags import parse_flags
from ..training.run_folder import contents_line, find_checkpoint, repeated_arguments
from ..training.user_errors import ExitOnUserError
from . import (
    OBJECTIVES,
    DataArguments,
    MaskingArguments,
    MaskingCollator,
    MaskingVocabulary,
    ModelArguments,
    MultiObjectiveMaskedLM,
    PretrainingArguments,
    PretrainingTrainer,
    chosen_settings,
    evaluation_table,
    plot_objectives,
)
from . import run_arguments as flags
from . import run_stages as stages
from .objectives import pair_objectives
from .packing import PAIR_MODES
from .report import CURVES_FILE

__all__ = ["GROUPS", "main", "parse_and_run", "train"]

GROUPS = (ModelArguments, DataArguments, MaskingArguments, PretrainingArguments)


def main(argv: list[str] | None = None, *, description: str = __doc__, program: str = "%(prog)s"):
    """Parse the flags of a command line and run all stages.

    Args:
        argv (`list[str]`, *optional*): flags; None = those of the command line.
        description (`str`): of which `--help` shows the first paragraph.
        program (`str`): its name in `--help`.
    """
    return parse_and_run(run, GROUPS, argv, description, program)


def parse_and_run(
    run: Callable,
    groups: tuple[type, ...],
    argv: list[str] | None,
    description: str,
    program: str = "%(prog)s",
    *,
    rtd: bool = False,
    defaults: Mapping[str, Any] | None = None,
):
    """Parse the flags of `groups`, and call `run` with the dataclasses that they become.

    Args:
        rtd (`bool`): recipes are those of replaced token detection.
        defaults (`dict`, *optional*): of this script, by name.
    """
    with ExitOnUserError():
        parsed, _ = parse_flags(
            groups,
            argv,
            description=description,
            usage=f"{program} --train_data FILES --train_tokenizer unigram --preset v3-small --output_dir FOLDER ...",
            defaults=defaults,
            elsewhere=flags.ELSEWHERE,
            recipe=partial(chosen_settings, rtd=rtd),
        )
        return run(*parsed)


def run(model_args: ModelArguments, data_args: DataArguments, masking_args: MaskingArguments, args: PretrainingArguments):
    began = time.perf_counter()
    trainer, metrics, tokenizer_facts, reports = train(model_args, data_args, masking_args, args, get_model)
    if args.should_save:
        plot_objectives(trainer.state.log_history, Path(args.output_dir, CURVES_FILE), [*args.objectives])
        titles = {name: OBJECTIVES[name].title for name in args.objectives}
        weights = ", ".join(f"{titles[name]} (weight {weight:g})" for name, weight in args.objectives.items())
        seconds, given = time.perf_counter() - began, (data_args, model_args, masking_args)
        rows = {"objectives": weights}
        stages.report_run(trainer, given, tokenizer_facts, reports, seconds=seconds, rows=rows, objectives=titles)
        print(f"\n{evaluation_table(metrics, [*args.objectives])}\n\n{contents_line(args.output_dir)}")
    if args.push_to_hub:
        trainer.push_to_hub()
    trainer.print_divergence()
    leave_together()
    return metrics


def train(
    model_args, data_args, masking_args, args, build: Callable, *others
) -> tuple[PretrainingTrainer, dict, dict, dict]:
    """Check, read, train and evaluate.

    Args:
        build (`Callable`): (model_args, args, config, tokenizer) -> the model.
        others: groups of flags that a resumed run must repeat, too.
    Returns:
        the trainer, metrics, facts about the tokenizer and reports of the packing.
    """
    # 1. Errors of the user end the run here, before anything long begins
    checkpoint = find_checkpoint(args)
    flags.check_arguments(data_args, model_args, args)
    check_pairs(data_args, args)
    options = flags.masking_options(masking_args, data_args.max_length)
    config = flags.model_config(model_args)
    flags.check_length(config, data_args.max_length, model_args)
    check_model(config, model_args, args)

    # 2. Documents, tokenizer and model
    arguments = repeated_arguments((*others, model_args, data_args, masking_args), args)
    corpus, held_out, tokenizer, tokenizer_facts = stages.begin(model_args, data_args, args, config, arguments, checkpoint)
    set_seed(args.seed)
    model = build(model_args, args, config, tokenizer)

    # 3. Documents -> examples -> masked batches
    train_set, eval_set, reports = stages.numbered_examples(
        corpus, held_out, tokenizer, data_args, args, nsp=args.nsp_weight > 0
    )
    collator = MaskingCollator(
        MaskingVocabulary.from_tokenizer(tokenizer),
        options,
        seed=args.seed,
        duplicates=masking_args.masking_duplicates,
        sentence_order=args.sop_weight > 0,
    )

    # 4. Train, evaluate
    trainer = PretrainingTrainer(
        model, args, data_collator=collator, train_dataset=train_set, eval_dataset=eval_set, processing_class=tokenizer
    )
    metrics = stages.train_and_evaluate(trainer, checkpoint, arguments)
    return trainer, metrics, tokenizer_facts, reports


def check_pairs(data_args: DataArguments, args: PretrainingArguments):
    """Check that pairs have an objective that reads them, and objectives their pairs."""
    readers = pair_objectives([*args.objectives])
    if data_args.packing in PAIR_MODES and not readers:
        raise ValueError(
            f"--packing {data_args.packing} makes pairs: give --nsp_weight or --sop_weight, or choose full_sentences"
        )
    if readers and data_args.packing not in PAIR_MODES:
        raise ValueError(
            f"--{readers[0]}_weight needs pairs, and --packing {data_args.packing} makes none: choose segment_pair or "
            "sentence_pair"
        )


def check_model(config: DebertaExtConfig, model_args: ModelArguments, args: PretrainingArguments):
    """Build the model without its weights, which raises an error if heads or `--attn_implementation` do not fit it."""
    with torch.device("meta"):
        stages.set_attention(MultiObjectiveMaskedLM(config, args.objectives), model_args)


def get_model(model_args, args, config: DebertaExtConfig, tokenizer) -> MultiObjectiveMaskedLM:
    stages.fit_to_tokenizer(config, tokenizer, model_args)
    if model_args.model is None:
        model = MultiObjectiveMaskedLM(config, args.objectives)
    else:
        # Half-precision checkpoints too: the parameters of a training are float32.
        options = dict(config=config, objectives=args.objectives, dtype=torch.float32) | model_args.model_download()
        with readable_weights(model_args.model, model_args.config_overrides):
            model = MultiObjectiveMaskedLM.from_pretrained(model_args.model, **options)
    return stages.set_attention(model, model_args)
