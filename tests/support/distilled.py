# SPDX-License-Identifier: Apache-2.0
"""Tokenizers that split the same words differently, and tiny teachers and students with them."""

import random

import torch
import transformers
from task_files import write_lines
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from hf_deberta_ext import DebertaExtConfig
from hf_deberta_ext.tokenization import wrap_tokenizer

WORDS = "unbelievable good great bad poor film play book the was here today".split()
GOOD = {"unbelievable", "good", "great"}
SIZES = dict(
    hidden_size=32, num_hidden_layers=4, num_attention_heads=2, intermediate_size=48, max_position_embeddings=64,
    hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1,
)  # fmt: skip


def tokenizer_of(*words, byte_level=False, pair="[CLS] $A [SEP] $B [SEP]"):
    """Return a WordPiece tokenizer with these pieces and all letters, or a byte-level one that only knows single bytes."""
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    if byte_level:
        tokens = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
        backend = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    else:
        letters = [mark + letter for letter in "abcdefghijklmnopqrstuvwxyz" for mark in ("", "##")]
        tokens = [*dict.fromkeys([*special, *words, *letters])]
        backend = Tokenizer(models.WordPiece({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]"))
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=pair, special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "cls", "sep", "unk", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=64, **names)


FIRST = ("un", "##believ", "##able", *WORDS[1:])
SECOND = ("unbeliev", "##able", "go", "##od", *WORDS[2:])


def save_model(folder, auto_class, pieces=FIRST, family="ours", seed=0, **fields):
    """Save a tiny model with random weights and the tokenizer of these pieces; return the folder as a text."""
    tokenizer = tokenizer_of(*pieces)
    sizes = SIZES | dict(vocab_size=len(tokenizer), pad_token_id=0) | fields
    config = DebertaExtConfig(**sizes, position_buckets=16) if family == "ours" else transformers.BertConfig(**sizes)
    torch.manual_seed(seed)
    model = getattr(transformers, auto_class).from_config(config)
    for weight in model.parameters():
        # Larger than initial weights, so that outputs depend on the input.
        weight.data.add_(torch.randn_like(weight), alpha=0.1)
    model.save_pretrained(folder)
    if family == "ours":
        tokenizer = wrap_tokenizer(tokenizer.backend_tokenizer, model_max_length=64)
    tokenizer.save_pretrained(folder)
    return str(folder)


def sentences(count, seed=0):
    rng, rows = random.Random(seed), []
    for _ in range(count):
        words = [*rng.sample(WORDS[5:], rng.randint(2, 5)), rng.choice(WORDS[:5])]
        rng.shuffle(words)
        rows.append({"text": " ".join(words), "label": ["bad", "good"][bool(GOOD & {*words})]})
    return rows


def write_data(folder):
    """Write the training and evaluation files of each task; return their flags."""
    rows, held_out = sentences(40), sentences(10, seed=1)
    (folder / "text.txt").write_text("".join(row["text"] + "\n" for row in rows), encoding="utf-8")
    pairs = []
    for number, (first, second) in enumerate(zip(rows[:10], held_out, strict=True)):
        pairs.append({"sentence1": first["text"], "sentence2": second["text"], "label": number})
    texts = [row["text"].split() for row in rows]
    words = [{"tokens": text, "ner_tags": ["B-X" if word in GOOD else "O" for word in text]} for text in texts]
    questions = []
    for number, row in enumerate(rows):
        answer = row["text"].split()[1]
        answers = {"text": [answer], "answer_start": [row["text"].index(f" {answer}") + 1]}
        questions.append({"id": str(number), "question": "good film", "context": row["text"], "answers": answers})
    files = {}
    for task, train, validation in (
        ("text", None, pairs),
        ("classification", rows, held_out),
        ("ner", words, words[:8]),
        ("qa", questions, questions[:8]),
    ):
        files[task] = dict(train_file=str(folder / "text.txt"))
        if train is not None:
            files[task]["train_file"] = write_lines(folder / f"{task}.jsonl", *train)
        files[task]["validation_file"] = write_lines(folder / f"{task}_dev.jsonl", *validation)
    return files
