# SPDX-License-Identifier: Apache-2.0
"""Tiny models with random weights of every head, by Auto class; inputs for them; and whole-word tokenizers."""

from pathlib import Path

import torch
import transformers
from every_head import AUTO_CLASSES
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import hf_deberta_ext
from hf_deberta_ext import DebertaExtConfig
from hf_deberta_ext.tokenization import wrap_tokenizer

HEADS = AUTO_CLASSES
CODE = Path(hf_deberta_ext.__file__).parent / "model"
FILES = {file.name: file.read_bytes() for file in CODE.glob("*.py") if file.name != "__init__.py"}
TINY = dict(
    vocab_size=61, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48,
    max_position_embeddings=64, position_buckets=16, num_labels=3,
)  # fmt: skip


def tiny_model(model_class, seed=0, **fields):
    """Return a small model in eval mode; no parameter keeps its initial value."""
    model = model_class(DebertaExtConfig(**(TINY | fields)))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            parameter.copy_(torch.empty(parameter.shape).normal_(0.3, 0.2, generator=generator))
    return model.to(model.config.dtype or torch.float32).eval()


def tiny_inputs(auto: str) -> dict[str, list]:
    generator = torch.Generator().manual_seed(1)
    shape = (2, 3, 7) if auto == "AutoModelForMultipleChoice" else (2, 11)
    ids = torch.randint(5, TINY["vocab_size"], shape, generator=generator)
    mask = torch.ones(shape, dtype=torch.long)
    mask[1, ..., -3:] = 0
    return {"input_ids": (ids * mask).tolist(), "attention_mask": mask.tolist()}


def word_tokenizer(**options) -> transformers.PreTrainedTokenizerFast:
    """Return a tokenizer with the words w5, w6, ...; pairs are [CLS] A [SEP] B [SEP] with token types 0 and 1."""
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "cls", "sep", "unk", "mask")}
    words = [*special.values(), *(f"w{i}" for i in range(len(special), TINY["vocab_size"]))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special, **options)


def save_tokenizer(folder: Path):
    word_tokenizer().save_pretrained(folder)


def save_adapter(model, folder: Path, **options):
    """Save `model` with a random LoRA adapter as a run with --lora does; return the adapted model in eval mode."""
    import peft

    config = model.config
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query_proj"], **options))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_()
    adapted.save_pretrained(folder)
    config.save_pretrained(folder)
    save_tokenizer(folder)
    return adapted.eval()


def tiny_tokenizer(words=("hello", "world"), split=None):
    """Return a whole-word tokenizer; the pad token has id 0, as in the configurations."""
    vocab = {token: i for i, token in enumerate(("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", *words))}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = split or pre_tokenizers.Whitespace()
    return wrap_tokenizer(tokenizer, model_max_length=64)
