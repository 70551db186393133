# SPDX-License-Identifier: Apache-2.0
"""Pre-trains a masked language model, from scratch or from a checkpoint, with any sum of the BERT family's objectives.

From text to a model with its own tokenizer (a folder of .txt, .jsonl, .csv or .parquet files, each also .gz, or a data set
of the Hub):

    python examples/run_mlm.py --train_data corpus/ --train_tokenizer unigram --vocab_size 32000 --preset v3-small \\
        --packing full_sentences --max_length 512 --masking ngram --max_steps 100000 --warmup_steps 0.06 \\
        --learning_rate 5e-4 --per_device_train_batch_size 32 --bf16 --output_dir mine

Further from an official checkpoint, its head and its Enhanced Mask Decoder kept:

    python examples/run_mlm.py --train_data notes.jsonl --model microsoft/deberta-base --num_train_epochs 3 \\
        --learning_rate 2e-5 --output_dir adapted

A tiny run on CPU, under a minute, with SpanBERT's and ALBERT's objectives beside masked-language modelling:

    python -c "import this" > zen.txt
    python examples/run_mlm.py --train_data zen.txt --documents line --validation_documents 5 --max_steps 20 \\
        --train_tokenizer byte-level-bpe --vocab_size 300 --packing segment_pair --masking span --sop_weight 1 \\
        --sbo_weight 1 --preset electra-small --config_overrides num_hidden_layers=2 --max_length 64 --output_dir tiny

A run that was stopped goes on with the same command and `--resume_from_checkpoint last`; on CPU its weights are those of
a run that was not stopped, to the last bit. `torchrun --nproc_per_node 2 examples/run_mlm.py ...` trains on two processes.
The output folder holds model, tokenizer, README.md (the model card), curves.png, all_results.json, run_arguments.json (what
a resumed run must repeat), run_report.json (tokenizer, packing, duration) and checkpoints.
"""

import dataclasses
import json
import os
import platform
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from safetensors import SafetensorError
from transformers import HfArgumentParser, set_seed

from hf_deberta_ext import DebertaExtConfig
from hf_deberta_ext.pretraining import (
    MaskingCollator,
    MaskingOptions,
    MaskingVocabulary,
    MultiObjectiveMaskedLM,
    NumberedExamples,
    NumberedStream,
    PretrainingArguments,
    PretrainingTrainer,
    begin_run,
    evaluation_table,
    load_corpus,
    pack,
    plot_objectives,
    resume_checkpoint,
    texts,
    tokenizer_report,
    train_tokenizer,
    write_model_card,
)
from hf_deberta_ext.pretraining.corpus import DOCUMENTS
from hf_deberta_ext.pretraining.masking import POLICIES, UNITS
from hf_deberta_ext.pretraining.packing import MODES, PAIR_MODES
from hf_deberta_ext.pretraining.report import CURVES_FILE
from hf_deberta_ext.pretraining.run_folder import TOKENIZER_FOLDER
from hf_deberta_ext.tokenization import check_tokenizer, load_tokenizer


def option(default, text: str, **more):
    return field(default=default, metadata={"help": text, **more})


@dataclass
class ModelArguments:
    model: str | None = option(None, "checkpoint to train further (folder or Hub id); without it, --preset from scratch")
    preset: str = option("v3-base", "size of a new model, a name of DebertaExtConfig.from_preset: base, v3-small, ...")
    config_overrides: str | None = option(None, "fields to replace: num_hidden_layers=4,pos_att_type=c2p|p2c,emd_layers=1")
    tokenizer: str | None = option(None, "folder or Hub id; default: that of --model")
    train_tokenizer: str | None = option(None, "train one on --train_data", choices=["byte-level-bpe", "unigram"])
    vocab_size: int = option(32000, "of --train_tokenizer")
    byte_fallback: bool = option(False, "nothing is unknown to a unigram tokenizer")
    attn_implementation: str | None = option(None, "eager, sdpa, blocked, flex, triton; default: the best for each call")
    revision: str | None = option(None, "of --model on the Hub")
    token: str | None = option(None, "for the Hub; default: that of `hf auth login`")
    cache_dir: str | None = option(None, "for downloads and packed data")


@dataclass
class DataArguments:
    train_data: list[str] = field(default_factory=list, metadata={"help": "files, folders or one Hub data set"})
    validation_data: list[str] = field(default_factory=list, metadata={"help": "the same; default: split off"})
    validation_documents: int | None = option(
        None, "documents to hold out, without --validation_data; default: a tenth, at most 100 (--streaming: the first 100)"
    )
    documents: str = option("blank_line", "what ends a document of a text file", choices=[*DOCUMENTS])
    text_column: str = option("text", "of jsonl, csv, parquet and Hub data")
    data_config: str | None = option(None, "configuration of a Hub data set")
    train_split: str = option("train", "of Hub data")
    validation_split: str = option("validation", "of Hub data")
    streaming: bool = option(False, "read, tokenise and pack while training, in each worker; needs --max_steps")
    shuffle_buffer: int = option(10_000, "examples that --streaming shuffles among each other")
    packing: str = option(
        "full_sentences",
        "how documents become examples",
        choices=[*MODES],
    )
    max_length: int = option(512, "tokens of an example, [CLS] and [SEP] included")
    min_tokens: int = option(1, "shorter documents are left out, and counted")
    language: str = option("en", "ISO code, for the ends of sentences and the model card")
    num_proc: int | None = option(None, "processes that tokenise and pack")
    max_train_samples: int | None = option(None, "examples to train on, for a trial")
    max_eval_samples: int | None = option(None, "examples to evaluate on")


@dataclass
class MaskingArguments:
    masking: str = option("word", "what is masked together", choices=[*UNITS])
    masking_rate: float = option(0.15, "share of the tokens to mask")
    max_ngram: int = option(3, "longest n-gram, in words; P(n) is proportional to 1/n")
    span_p: float = option(0.2, "of the geometric distribution of span lengths")
    max_span: int = option(10, "longest span, in words")
    mask_share: float = option(0.8, "of the masked tokens, how many become [MASK]")
    random_share: float = option(0.1, "and how many a random token; the rest stays as it is")
    masking_policy: str = option("uniform", "official: as released, blind at a row's end", choices=[*POLICIES])
    masking_duplicates: int | None = option(None, "static masking with so many copies (10 in RoBERTa); default: dynamic")


def main(argv: list[str] | None = None):
    parser = HfArgumentParser(
        (ModelArguments, DataArguments, MaskingArguments, PretrainingArguments), description=__doc__.split("\n\n")[0]
    )
    try:
        parsed = parser.parse_args_into_dataclasses(argv)
        return run(*parsed)
    except (ValueError, OSError) as error:
        # What a user can mend; anything else deserves its traceback.
        sys.exit(f"run_mlm: {error}")


def run(model_args, data_args, masking_args, args):
    began = time.perf_counter()

    # 1. What is wrong shows here, before anything long begins.
    checkpoint = resume_checkpoint(args.output_dir, args.resume_from_checkpoint)
    check_arguments(data_args, model_args, args)
    options = masking_options(masking_args, data_args.max_length)
    config = model_config(model_args)
    check_length(config, data_args.max_length, model_args)
    check_model(config, model_args, args)
    if model_args.train_tokenizer is None:
        tokenizer, tokenizer_facts = get_tokenizer(model_args, data_args)
        check_tokenizer(tokenizer, None if model_args.model is None else config, needs_mask=True)
    if args.should_save:
        begin_run(args.output_dir, fixed_arguments(model_args, data_args, masking_args, args), checkpoint is not None)
    corpus, held_out = corpora(data_args, model_args)

    # 2. Tokenizer and model
    if model_args.train_tokenizer is not None:
        with args.main_process_first(desc="training the tokenizer"):
            tokenizer, tokenizer_facts = trained_tokenizer(model_args, data_args, args, corpus, checkpoint is not None)
    set_seed(args.seed)
    model = get_model(model_args, args, config, tokenizer)

    # 3. Documents -> examples -> masked batches
    with args.main_process_first(desc="packing"):
        train_set, packing_report = pack_corpus(corpus, tokenizer, data_args, args)
        eval_set, eval_report = pack_corpus(held_out, tokenizer, data_args, args)
    collator = MaskingCollator(
        MaskingVocabulary.from_tokenizer(tokenizer), options, seed=args.seed,
        duplicates=masking_args.masking_duplicates, sentence_order=args.sop_weight > 0,
    )  # fmt: skip
    if data_args.streaming:
        # Each process reads the stream and takes its share: rows of unequal length cannot be sent around.
        args.accelerator_config.dispatch_batches = False
        # Numbered before they are shuffled anew in each epoch, so that static masks recur.
        train_set = train_set.map(lambda row, number: {"example": number}, with_indices=True)
        if data_args.max_train_samples is not None:
            train_set = train_set.take(data_args.max_train_samples)
        train_set = train_set.shuffle(seed=args.seed, buffer_size=data_args.shuffle_buffer)
        train_set = NumberedStream(train_set, endless=True, block=args.train_batch_size * args.world_size)
    else:
        print(f"train: {packing_report.summary()}\nheld out: {eval_report.summary()}", flush=True)
        if args.nsp_weight and not packing_report.negative_pairs:
            raise ValueError(
                f"no pair of the training data has a B of another document ({packing_report.documents} documents): there is "
                "nothing to learn for next sentence prediction; give more documents (--documents says what one is)"
            )
        train_set = NumberedExamples(first(train_set, data_args.max_train_samples))

    # 4. Train
    trainer = PretrainingTrainer(
        model,
        args,
        data_collator=collator,
        train_dataset=train_set,
        eval_dataset=NumberedExamples(first(eval_set, data_args.max_eval_samples), fixed=True),
        processing_class=tokenizer,
    )
    result = trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()
    # None if the run had finished before: what it wrote then stays.
    if result.metrics:
        trainer.log_metrics("train", result.metrics)
        trainer.save_metrics("train", result.metrics)

    # 5. Evaluate and report
    metrics = trainer.evaluate()
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)
    trainer.save_state()
    if args.should_save:
        reports = {"train": packing_report, "held_out": eval_report}
        facts = dict(
            seconds=round(time.perf_counter() - began, 1),
            tokenizer=tokenizer_facts,
            packing={name: report.as_dict() for name, report in reports.items() if report is not None},
            versions=dict(
                python=platform.python_version(), torch=torch.__version__, transformers=transformers.__version__
            ),
        )  # fmt: skip
        Path(args.output_dir, "run_report.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        write_report(model_args, data_args, options, masking_args, args, trainer, metrics, facts, reports)
        print(f"\n{evaluation_table(metrics, [*args.objectives])}\n\n{args.output_dir} holds the model and its card.")
    return metrics


def check_arguments(data_args: DataArguments, model_args: ModelArguments, args: PretrainingArguments):
    """Flags that are wrong by themselves, or together.

    Raises:
        ValueError: says which, and what to give.
    """
    if not data_args.train_data:
        raise ValueError("there is nothing to train on: give --train_data files, folders or a Hub data set")
    if data_args.streaming and args.max_steps < 1:
        raise ValueError("--streaming needs --max_steps: the number of examples in a stream is not known")
    if data_args.streaming and data_args.num_proc is not None:
        raise ValueError("--num_proc is for data that is packed before the training: leave it out with --streaming")
    smallest = dict(max_length=8, min_tokens=1, validation_documents=1, shuffle_buffer=1)
    smallest |= dict(num_proc=1, max_train_samples=1, max_eval_samples=1)
    for name, least in smallest.items():
        value = getattr(data_args, name)
        if value is not None and value < least:
            raise ValueError(f"--{name} must be at least {least}, got {value}")
    pairs = data_args.packing in PAIR_MODES
    if pairs and not (args.nsp_weight or args.sop_weight):
        raise ValueError(
            f"--packing {data_args.packing} makes pairs: give --nsp_weight or --sop_weight, or choose full_sentences"
        )
    if not pairs and (args.nsp_weight or args.sop_weight):
        raise ValueError(f"--packing {data_args.packing} makes no pairs to judge: choose segment_pair or sentence_pair")
    nodes = args.world_size // int(os.environ.get("LOCAL_WORLD_SIZE", args.world_size))
    if nodes > 1 and model_args.train_tokenizer is not None:
        raise ValueError(f"{nodes} machines would train {nodes} tokenizers: train one on one machine, and give --tokenizer")


def masking_options(arguments: MaskingArguments, max_length: int) -> MaskingOptions:
    duplicates = arguments.masking_duplicates
    if duplicates is not None and duplicates < 1:
        raise ValueError(f"--masking_duplicates must be at least 1 (static masks), got {duplicates}")
    return MaskingOptions(
        unit=arguments.masking, rate=arguments.masking_rate, max_ngram=arguments.max_ngram, span_p=arguments.span_p,
        max_span=arguments.max_span, mask_share=arguments.mask_share, random_share=arguments.random_share,
        policy=arguments.masking_policy, max_length=max_length,
    )  # fmt: skip


def overrides(text: str | None) -> dict:
    """ "a=1,b=x" as a dictionary; numbers, true, false and null as in JSON, anything else is text.

    Raises:
        ValueError: a part without "=".
    """
    values = {}
    for part in filter(None, (text or "").split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"--config_overrides takes name=value,name=value, got {part!r} in {text!r}")
        try:
            values[name.strip()] = json.loads(value)
        except ValueError:
            values[name.strip()] = value.strip()
    return values


def model_config(model_args: ModelArguments) -> DebertaExtConfig:
    """The configuration without regard to the vocabulary of a tokenizer that does not exist yet."""
    changes = overrides(model_args.config_overrides)
    fields = {field.name for field in dataclasses.fields(DebertaExtConfig)}
    if unknown := {name: value for name, value in changes.items() if name not in fields}:
        # Says what is meant; loading a checkpoint would leave them out.
        DebertaExtConfig(**unknown)
    if model_args.model is None:
        if model_args.tokenizer is None and model_args.train_tokenizer is None:
            raise ValueError("a new model needs a tokenizer: --train_tokenizer unigram (or byte-level-bpe), or --tokenizer")
        return DebertaExtConfig.from_preset(model_args.preset, **changes)
    if model_args.train_tokenizer is not None:
        raise ValueError(f"{model_args.model} knows only the ids of its own tokenizer: leave --train_tokenizer out")
    return DebertaExtConfig.from_pretrained(model_args.model, **changes, **download(model_args))


def download(model_args: ModelArguments) -> dict:
    names = ("revision", "token", "cache_dir")
    return {name: getattr(model_args, name) for name in names if getattr(model_args, name) is not None}


def check_length(config: DebertaExtConfig, max_length: int, model_args: ModelArguments):
    rows = config.max_position_embeddings
    if config.has_absolute_positions and max_length > rows:
        cure = (
            f"give --config_overrides max_position_embeddings={max_length}"
            if model_args.model is None
            else f"load it, call model.extend_position_embeddings({max_length}), save it, and train that"
        )
        raise ValueError(
            f"--max_length {max_length} is longer than the model's absolute position table of {rows} rows: shorten it, or "
            + cure
        )


def check_model(config: DebertaExtConfig, model_args: ModelArguments, args: PretrainingArguments):
    """Builds the model without its weights: heads and `--attn_implementation` fit it, or it says why not."""
    with torch.device("meta"):
        model = MultiObjectiveMaskedLM(config, args.objectives)
    if model_args.attn_implementation is not None:
        model.set_attn_implementation(model_args.attn_implementation)


def corpora(data_args: DataArguments, model_args: ModelArguments):
    """Documents to train on and held-out documents."""
    common = dict(
        documents=data_args.documents, text_column=data_args.text_column, name=data_args.data_config,
        cache_dir=model_args.cache_dir, token=model_args.token,
    )  # fmt: skip
    if data_args.validation_data:
        held_out = load_corpus(data_args.validation_data, split=data_args.validation_split, **common)
    corpus = load_corpus(data_args.train_data, split=data_args.train_split, streaming=data_args.streaming, **common)
    count = data_args.validation_documents
    if data_args.streaming:
        from datasets import Dataset

        count = count or 100
        if not data_args.validation_data:
            held_out = Dataset.from_list(list(corpus.take(count)))
            if next(iter(corpus.skip(count)), None) is None:
                raise ValueError(f"--validation_documents {count} leaves no document to train on: give --validation_data")
        # Skipping, even nothing, keeps the files in their order when the stream is shuffled.
        return corpus.skip(0 if data_args.validation_data else count), held_out
    if data_args.validation_data:
        return corpus, held_out
    count = count or min(100, max(1, len(corpus) // 10))
    if count >= len(corpus):
        raise ValueError(
            f"--validation_documents {count} leaves nothing of {len(corpus)} documents: give fewer, or --validation_data "
            "(--documents line makes each line a document)"
        )
    split = corpus.train_test_split(test_size=count, seed=0)
    return split["train"], split["test"]


def get_tokenizer(model_args: ModelArguments, data_args: DataArguments):
    """The tokenizer that --tokenizer or --model names, and where it is from."""
    where = download(model_args)
    if model_args.tokenizer is not None:
        where.pop("revision", None)
    source = model_args.tokenizer or model_args.model
    return load_tokenizer(source, model_max_length=data_args.max_length, **where), {"source": source}


def trained_tokenizer(model_args, data_args, args, corpus, resuming: bool):
    """The tokenizer trained on the corpus, and what is known about it."""
    folder = Path(args.output_dir, TOKENIZER_FOLDER)
    facts = folder / "training.json"
    # The main process comes first; the others, and a resumed run, find what it made.
    if facts.is_file() and (resuming or not args.should_save):
        return load_tokenizer(folder), json.loads(facts.read_text(encoding="utf-8"))
    more = {"byte_fallback": True} if model_args.byte_fallback else {}
    tokenizer = train_tokenizer(
        model_args.train_tokenizer, texts(corpus), model_args.vocab_size, model_max_length=data_args.max_length, **more
    )
    sample = corpus.take(1000) if data_args.streaming else first(corpus, 1000)
    made = {"kind": model_args.train_tokenizer, "vocabulary": len(tokenizer)} | tokenizer_report(tokenizer, texts(sample))
    few = f" of {model_args.vocab_size} asked for: the text has no more" if len(tokenizer) < model_args.vocab_size else ""
    print(f"tokenizer: {len(tokenizer)} tokens{few}", flush=True)
    tokenizer.save_pretrained(folder)
    facts.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    return tokenizer, made


def get_model(model_args, args, config: DebertaExtConfig, tokenizer) -> MultiObjectiveMaskedLM:
    config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    if model_args.model is None:
        config.vocab_size = max(tokenizer.get_vocab().values()) + 1
        config.pad_token_id = tokenizer.pad_token_id
        check_tokenizer(tokenizer, config, needs_mask=True)
        model = MultiObjectiveMaskedLM(config, args.objectives)
    else:
        # Half-precision checkpoints too: the parameters of a training are float32.
        options = dict(config=config, objectives=args.objectives, dtype=torch.float32)
        try:
            model = MultiObjectiveMaskedLM.from_pretrained(model_args.model, **options, **download(model_args))
        except (RuntimeError, SafetensorError) as error:
            raise ValueError(
                f"the weights of {model_args.model} cannot be read, or do not fit its configuration with --config_overrides "
                f"{model_args.config_overrides}: {str(error).splitlines()[0]}"
            ) from error
    if model_args.attn_implementation is not None:
        model.set_attn_implementation(model_args.attn_implementation)
    return model


def pack_corpus(corpus, tokenizer, data_args: DataArguments, args: PretrainingArguments):
    return pack(
        corpus, tokenizer, mode=data_args.packing, max_length=data_args.max_length, min_tokens=data_args.min_tokens,
        sentence_pairs="nsp" if args.nsp_weight else "consecutive", language=data_args.language,
        seed=args.data_seed if args.data_seed is not None else args.seed, num_proc=data_args.num_proc,
    )  # fmt: skip


def first(dataset, count: int | None):
    return dataset if count is None else dataset.select(range(min(count, len(dataset))))


def fixed_arguments(model_args, data_args, masking_args, args) -> dict:
    """What a resumed run must not change, or it would not be the same run."""
    free = {"num_proc", "cache_dir", "token", "attn_implementation"}
    ours = {}
    for group in (model_args, data_args, masking_args):
        ours |= {name: value for name, value in dataclasses.asdict(group).items() if name not in free}
    names = (
        "seed", "data_seed", "max_steps", "num_train_epochs", "learning_rate", "lr_scheduler_type", "warmup_steps",
        "weight_decay", "optim", "mlm_weight", "nsp_weight", "sop_weight", "sbo_weight",
    )  # fmt: skip
    return ours | {name: getattr(args, name) for name in names}


def shown(source: str) -> str:
    """A Hub id, or the name of a file or folder without its place on this machine."""
    return Path(source).resolve().name if Path(source).exists() else source


def write_report(model_args, data_args, options, masking_args, args, trainer, metrics, facts, reports):
    history = trainer.state.log_history
    copies = masking_args.masking_duplicates
    plot_objectives(history, Path(args.output_dir, CURVES_FILE), [*args.objectives])
    masking = {name: value for name, value in dataclasses.asdict(options).items() if name != "max_length"}
    tokenizer = {name: shown(value) if name == "source" else value for name, value in facts["tokenizer"].items()}
    card_facts = {
        "data": [shown(source) for source in data_args.train_data],
        "packing": f"{data_args.packing}, {data_args.max_length} tokens",
        **{f"packed, {name}": report.summary() for name, report in reports.items() if report is not None},
        "masking": masking | {"copies": "dynamic" if copies is None else f"{copies}, static"},
        "tokenizer": tokenizer,
        "steps": trainer.state.global_step,
        "batch": f"{args.train_batch_size} x {args.gradient_accumulation_steps} x {args.world_size} processes",
        "learning rate": f"{args.learning_rate}, {args.lr_scheduler_type.value}, warm-up {args.warmup_steps:g}",
        "seed": args.seed,
        "versions": facts["versions"],
    }
    write_model_card(
        args.output_dir,
        metrics=metrics,
        objectives=args.objectives,
        facts=card_facts,
        parameters=trainer.model.num_parameters(),
        base_model=model_args.model,
        language=data_args.language,
    )


if __name__ == "__main__":
    main()
