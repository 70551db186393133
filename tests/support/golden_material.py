# SPDX-License-Identifier: Apache-2.0
"""Material of golden.py, made by public names of the package only: command lines, small models and data files."""

import itertools
import json
import random
import re
from pathlib import Path

import torch
from transformers import AutoTokenizer, DebertaV2Config, DebertaV2Model

import hf_deberta_ext
from hf_deberta_ext import DebertaExtConfig, replace_attention

SIZES = dict(
    vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20,
    max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
FAMILIES = {
    "v1": dict(position_buckets=-1, norm_rel_ebd="none", share_att_key=False),
    "v2": dict(position_buckets=8, conv_kernel_size=3),
    "v3": dict(position_buckets=8),
}
COMMANDS = Path(__file__).with_name("golden_commands.txt")
BACKENDS = ("eager", "sdpa", "blocked")
# Class and configuration fields.
HEADS = {
    "base": ("Model", {}),
    "masked-lm": ("ForMaskedLM", {}),
    "masked-lm, labelled positions": ("ForMaskedLM", dict(masked_only=True)),
    "masked-lm, one layer on hidden states": ("ForMaskedLM", dict(emd_layers=1, emd_input="hidden")),
    "replaced-token-detection": ("ForReplacedTokenDetection", {}),
    "sequence-classification": ("ForSequenceClassification", {}),
    "token-classification": ("ForTokenClassification", {}),
    "question-answering": ("ForQuestionAnswering", {}),
    "multiple-choice": ("ForMultipleChoice", {}),
    "pretraining": ("ForPreTraining", dict(generator={}, special_token_ids=[0])),
    "pretraining, nes": ("ForPreTraining", dict(generator={}, special_token_ids=[0], embedding_sharing="nes")),
    "pretraining, es": ("ForPreTraining", dict(generator={}, special_token_ids=[0], embedding_sharing="es")),
}
# Fields that only one checkpoint or experiment uses.
VARIANTS = {
    "layers shared": dict(share_layers="all"),
    "factorised embeddings": dict(embedding_size=8),
    "p2p": dict(pos_att_type="c2p|p2c|p2p"),
    "absolute positions": dict(position_biased_input=True),
}


def tiny_config(family: str = "v3", **fields) -> DebertaExtConfig:
    return DebertaExtConfig(**(SIZES | FAMILIES[family] | fields))


def small_model(head: str, family: str, **fields):
    """Return a model whose parameters are random numbers that depend on the parameter names only."""
    name, of_head = HEADS[head]
    model = getattr(hf_deberta_ext, f"DebertaExt{name}")(tiny_config(family, **(of_head | fields)))
    return with_random_parameters(model)


def with_random_parameters(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.empty(parameter.shape).normal_(
                0, 0.15, generator=torch.Generator().manual_seed(sum(name.encode()))
            )
            parameter.copy_(1 + noise if name.endswith("LayerNorm.weight") else noise)
    return model


def batch_of(head: str) -> dict[str, torch.Tensor]:
    """Return inputs and labels of two rows of 14 tokens, including five of padding."""
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(1, 40, (2, 14), generator=generator)
    real = torch.arange(14) < torch.tensor([[14], [9]])
    batch = dict(input_ids=ids * real, attention_mask=real.long())
    ones = torch.ones(2, dtype=torch.long)
    if head == "multiple-choice":
        batch = {name: torch.stack([rows, rows.flip(0)], 1) for name, rows in batch.items()}
    labels = ids if head.startswith(("masked", "pretraining")) else ids % 2
    labels = labels.masked_fill(torch.rand(2, 14, generator=generator) < 0.4, -100).masked_fill(~real, -100)
    if head == "base":
        return batch
    if head == "question-answering":
        return batch | dict(start_positions=ones, end_positions=ones * 4)
    return batch | dict(labels=ones if head in ("sequence-classification", "multiple-choice") else labels)


def outputs_and_gradients():
    for head, family, backend in itertools.product(HEADS, FAMILIES, BACKENDS):
        model = small_model(head, family)
        model.set_attn_implementation(backend)
        yield f"{head} {family} {backend}", numbers_of(model, batch_of(head))
    for name, fields in VARIANTS.items():
        yield name, numbers_of(small_model("masked-lm", "v3", **fields), batch_of("masked-lm"))
    stock = SIZES | dict(relative_attention=True, position_buckets=8, pos_att_type="p2c|c2p", share_att_key=True)
    for backend in BACKENDS:
        model = with_random_parameters(DebertaV2Model(DebertaV2Config(**stock)))
        replace_attention(model, backend)
        yield f"stock deberta-v2 {backend}", numbers_of(model, batch_of("base"))


def numbers_of(model, batch: dict[str, torch.Tensor]) -> dict:
    """Return the norm and four values of each output and gradient. The joint model samples tokens with seed 0."""
    torch.manual_seed(0)
    outputs = model(**batch, output_hidden_states=True)
    loss = outputs.get("loss")
    (outputs.last_hidden_state.square().mean() if loss is None else loss).backward()
    tensors = {name: value for name, value in outputs.items() if torch.is_tensor(value)}
    tensors |= {f"hidden state {n}": value for n, value in enumerate(outputs.get("hidden_states") or ())}
    gradients = {name: parameter.grad for name, parameter in sorted(model.named_parameters())}
    return dict(
        outputs={name: summary(value) for name, value in tensors.items()},
        gradients={name: None if value is None else summary(value) for name, value in gradients.items()},
    )


def summary(tensor: torch.Tensor) -> dict:
    values = tensor.detach().double().flatten()
    places = torch.linspace(0, len(values) - 1, 4).long() if len(values) else []
    values = [values.norm(), *(values[place] for place in places)]
    return dict(shape=[*tensor.shape], norm_and_values=[float(f"{value.item():.7g}") for value in values])


def commands() -> dict[str, str]:
    """Return the lines of golden_commands.txt, with each $NAME replaced by its flags."""
    text = re.sub(r"\n +", " ", re.sub(r"^#.*\n", "", COMMANDS.read_text(encoding="utf-8"), flags=re.MULTILINE))
    flags, runs = ([line for line in part.splitlines() if line] for part in text.split("\n[runs]\n"))
    flags = dict(line.split(" = ", 1) for line in flags)
    expanded = {line: line for line in runs}
    for name in reversed(flags):
        expanded = {line: command.replace(f"${name}", flags[name]) for line, command in expanded.items()}
    return expanded


def write_files():
    """Write data files of every task, each with a few rows."""
    draw = random.Random(0)
    nouns, verbs = "cat dog river mountain teacher garden window letter".split(), "sees likes finds leaves".split()
    documents = [
        " ".join(
            f"The {draw.choice(nouns)} {draw.choice(verbs)} the {draw.choice(nouns)}." for _ in range(draw.randint(3, 8))
        )
        for _ in range(60)
    ]
    Path("text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    reviews = [dict(sentence=f"the {draw.choice(nouns)} was {('bad', 'good')[n % 2]}", label=n % 2) for n in range(16)]
    Path("train.tsv").write_text("sentence\tlabel\n" + "".join(f"{r['sentence']}\t{r['label']}\n" for r in reviews))
    Path("test.csv").write_text("sentence\n" + "".join(f"{row['sentence']}\n" for row in reviews[:5]))
    write_rows("dev.jsonl", reviews[:8])
    pairs = [dict(sentence1=f"a {nouns[n % 8]}", sentence2=f"the {nouns[n % 3]}", label=n % 2) for n in range(12)]
    write_rows("mrpc.jsonl", pairs)
    write_rows("stsb.jsonl", [row | dict(label=n / 3) for n, row in enumerate(pairs)])
    write_rows("squad.jsonl", list(questions(draw, nouns, every=0)))
    write_rows("squad2.jsonl", list(questions(draw, nouns, every=3)))
    for level, count in (("middle", 6), ("high", 4)):
        rows = [
            dict(article=f"a {nouns[n]} .", question="a _ .", options=nouns[:4], answer="ABCD"[n % 4]) for n in range(count)
        ]
        write_rows(f"{level}.jsonl", [row | dict(example_id=f"{level}{n}.txt") for n, row in enumerate(rows)])
    words, tags = ["Ada", "Lovelace", "left", "Paris"], ["B-PER", "I-PER", "O", "B-LOC"]
    tagged = [f"{word} {tag}\n" for word, tag in zip(words, tags, strict=True)]
    Path("ner.conll").write_text("".join([*tagged, "\n", tagged[-1]]), encoding="utf-8")
    write_rows("ner.jsonl", [dict(tokens=words, ner_tags=tags), dict(tokens=words[2:], ner_tags=tags[2:])])
    boolq = [dict(question=f"is it {nouns[n % 3]}", passage="It is a cat.", idx=n, label=n % 3 == 0) for n in range(8)]
    write_rows("boolq.jsonl", boolq)
    write_rows("boolq_test.jsonl", [{key: row[key] for key in ("question", "passage", "idx")} for row in boolq])
    index = [dict(paragraph=0, question=n // 2, answer=n) for n in range(4)]
    multirc = [dict(paragraph="A cat.", question=f"who {n['question']}?", answer=nouns[n["answer"]], idx=n) for n in index]
    write_rows("multirc.jsonl", [row | dict(label=n % 2) for n, row in enumerate(multirc)])
    copa = dict(premise="It is cold.", choice1="A cat.", choice2="A dog.", question="effect")
    write_rows("copa.jsonl", [copa | dict(label=n % 2, idx=n) for n in range(4)])


def questions(draw: random.Random, nouns: list[str], every: int):
    """Return SQuAD rows; every n-th question has no answer."""
    for number in range(9):
        sentences = [f"The old {draw.choice(nouns)} stands near the {draw.choice(nouns)}." for _ in range(4)]
        has_answer = not every or number % every
        sentences.insert(2, "It is owned by Ada." if has_answer else "Nobody owns it.")
        context = " ".join(sentences)
        answers = dict(text=["Ada"], answer_start=[context.index("Ada")]) if has_answer else dict(text=[], answer_start=[])
        yield dict(id=f"id{number}", title="made", context=context, question="Who owns it?", answers=answers)


def write_rows(name: str, rows: list[dict]):
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_for_card(name: str):
    """Save a model with the tokenizer of the run "mlm", for commands that write or check a card."""
    small_model("pretraining" if name == "card_joint" else "masked-lm", "v3", vocab_size=300).save_pretrained(name)
    AutoTokenizer.from_pretrained("mlm").save_pretrained(name)
    if name == "card_written":
        Path(name, "README.md").write_text("---\nlicense: MIT\n---\n\n# Mine\n\nText.\n\n## Empty\n", encoding="utf-8")
