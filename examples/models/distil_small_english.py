# SPDX-License-Identifier: Apache-2.0
"""Train deberta-ext-small-en on the similarities of sentences that a sentence encoder gives, and on masked words.

    python examples/models/small_english.py corpus DATA corpus/
    python examples/models/distil_small_english.py pairs corpus/ all-MiniLM-L6-v2 pairs/ --evaluation DATA/glue
    torchrun --nproc_per_node 2 examples/models/distil_small_english.py train corpus/ pairs/ \\
        examples/models/deberta-ext-small-en distilled/

`pairs` writes pairs of sentences of the corpus with the cosine of their embeddings: neighbours, sentences that follow each
other, random sentences, edited sentences, and passages with a part of one of their sentences. Sentences that share 13 words
in a row with an evaluation row are left out.

Each step of `train` adds four losses: the model reads a pair as one input and predicts its cosine (a regression, as in
fine-tuning); its mean pooled states of single sentences match the teacher's embeddings; it predicts masked words in other
sentences, and in passages of 256 tokens. Without one of the last two, the model forgets short or long texts. Run the same
command again to resume.
"""

import argparse
import json
import math
import os
import random
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.nn import functional
from tqdm import tqdm
from transformers import AutoModel, AutoTokenizer

from hf_deberta_ext import DebertaExtForMaskedLM
from hf_deberta_ext.data.files import read_rows
from hf_deberta_ext.distillation.objectives import cosine_loss, signals
from hf_deberta_ext.distillation.teacher import principal_directions
from hf_deberta_ext.files import replace_text
from hf_deberta_ext.pretraining.corpus import load_corpus
from hf_deberta_ext.pretraining.dynamic_masking import MaskingCollator
from hf_deberta_ext.pretraining.masking import MaskingOptions, MaskingVocabulary
from hf_deberta_ext.pretraining.packing import pack
from hf_deberta_ext.tokenization import load_tokenizer

WORDS = 13  # in a row, which no sentence shares with an evaluation row
SENTENCES, NEIGHBOURS, RANDOM, NEXT, EDITED, PASSAGES = 120_000, 42_000, 8_000, 9_000, 34_000, 16_000
# Rows of each loss in a step, of all processes together, and weights of the losses
ROWS = dict(pairs=64, embeddings=64, sentences=36, passages=6)
WEIGHTS = dict(pairs=1.0, embeddings=2.0, sentences=1.0, passages=1.0)
STEPS, FALLING, RATE, LENGTH = 1600, 700, 5e-4, 256
SAVE_STEPS = 100


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, positions in (
        ("pairs", ("corpus", "teacher", "folder")),
        ("train", ("corpus", "pairs", "model", "folder")),
    ):
        command = commands.add_parser(name)
        for position in positions:
            command.add_argument(position, type=Path)
        if name == "pairs":
            command.add_argument("--evaluation", type=Path, required=True, help="folder with evaluation rows, TASK/*.jsonl")
        else:
            command.add_argument("--bf16", action="store_true", help="compute products in bfloat16 (only on CPUs that have it)")
    args = vars(parser.parse_args())
    {"pairs": write_pairs, "train": train}[args.pop("command")](**args)


def write_pairs(corpus: Path, teacher: Path, folder: Path, evaluation: Path):
    """Write sentences.json, embeddings.npy (float16) and pairs.jsonl (sentence1, sentence2, label = 5 cosines, kind)."""
    folder.mkdir(parents=True, exist_ok=True)
    choices = random.Random(0)
    sentences, paragraphs = read_sentences(corpus, evaluation_words(evaluation), choices)
    encoder = SentenceEncoder(teacher)
    embeddings = encoder(sentences)
    np.save(folder / "embeddings.npy", embeddings.astype(np.float16))
    replace_text(folder / "sentences.json", json.dumps(sentences))
    pairs = similar_pairs(sentences, paragraphs, embeddings, choices)
    pairs += edited_pairs(sentences, embeddings, encoder, choices)
    pairs += passage_pairs(sentences, paragraphs, embeddings, encoder, choices)
    choices.shuffle(pairs)
    for kind in dict.fromkeys(pair["kind"] for pair in pairs):
        labels = [pair["label"] for pair in pairs if pair["kind"] == kind]
        print(f"{kind}: {len(labels):,} pairs, {np.mean(labels):.2f} ± {np.std(labels):.2f}")
    replace_text(folder / "pairs.jsonl", "".join(json.dumps(pair) + "\n" for pair in pairs))


def evaluation_words(folder: Path) -> set[str]:
    """Return all runs of 13 words of the rows in TASK/*.jsonl and *.jsonl.gz, without the training rows."""
    found = set()
    for file in folder.glob("*/*.jsonl*"):
        if "train" in file.name:
            continue
        for _, row in read_rows(file):
            for value in row.values():
                found |= runs_of_words(value) if isinstance(value, str) else set()
    return found


def runs_of_words(text: str) -> set[str]:
    words = re.findall(r"\w+", text.lower())
    return {" ".join(words[start : start + WORDS]) for start in range(len(words) - WORDS + 1)}


def read_sentences(corpus: Path, banned: set[str], choices: random.Random) -> tuple[list[str], list[int]]:
    """Return sentences of 6 to 38 words, in the order of the text in its paragraph, and the paragraph of each one.

    All of Wikipedia's paragraphs are candidates, but only a quarter of the sections of the manuals.
    """
    groups = []
    for file in sorted(corpus.glob("train/*.jsonl")):
        share = 0.25 if file.name.startswith("manual") else 1.0
        texts = [row["text"] for _, row in read_rows(file) if choices.random() <= share]
        groups += [kept for text in texts for paragraph in text.split("\n") if (kept := sentences_of(paragraph))]
    choices.shuffle(groups)
    sentences, paragraphs = [], []
    for paragraph, group in enumerate(groups):
        allowed = [sentence for sentence in group if not runs_of_words(sentence) & banned]
        sentences += allowed
        paragraphs += [paragraph] * len(allowed)
        if len(sentences) >= SENTENCES:
            break
    return sentences, paragraphs


def sentences_of(paragraph: str) -> list[str]:
    parts = [part.strip() for part in re.split(r"(?<=[.!?])\s+(?=[A-Z\"'(])", paragraph)]
    return [part for part in parts if is_sentence(part)]


def is_sentence(text: str) -> bool:
    if not 6 <= len(text.split()) <= 38 or text[-1] not in '.!?"':
        return False
    letters = sum(character.isalpha() or character == " " for character in text)
    return re.search("[a-z]", text) is not None and letters > 0.85 * len(text)


class SentenceEncoder:
    """Mean pooled, normalised embeddings of a model of transformers."""

    def __init__(self, folder: Path):
        self.tokenizer, self.model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Return float32 embeddings [len(texts), hidden size]."""
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        embeddings = np.zeros((len(texts), self.model.config.hidden_size), np.float32)
        for start in tqdm(range(0, len(order), 64), desc="embeddings"):
            rows = order[start : start + 64]
            options = dict(padding=True, truncation=True, max_length=128, return_tensors="pt")
            inputs = self.tokenizer([texts[row] for row in rows], **options)
            states = self.model(**inputs).last_hidden_state
            embeddings[rows] = functional.normalize(mean_pooled(states, inputs["attention_mask"]), dim=-1).numpy()
        return embeddings


def mean_pooled(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the means [B, H] of states [B, N, H] over the tokens with mask 1, as distillation computes embeddings."""
    return signals(["embeddings"], {"hidden_states": [states]}, mask, {})["embeddings"][:, 0]


def pair(first: str, second: str, cosine: float, kind: str, choices: random.Random | None = None) -> dict[str, Any]:
    """Return a row of pairs.jsonl; `choices` draws the order of the sentences."""
    if choices is not None and choices.random() >= 0.5:
        first, second = second, first
    return dict(sentence1=first, sentence2=second, label=round(5 * float(cosine), 4), kind=kind)


def neighbours(rows: Sequence[int], embeddings: np.ndarray, count: int) -> Iterator[tuple[int, list[int], list[float]]]:
    """Yield (row, its `count` nearest rows, their cosines) for each of the rows."""
    vectors = torch.from_numpy(embeddings)
    for block in np.array_split(np.array(rows), max(1, len(rows) // 100)):
        cosines = vectors[block] @ vectors.T
        cosines[torch.arange(len(block)), torch.from_numpy(block)] = -1.0
        nearest = cosines.topk(count, dim=-1)
        yield from zip(block.tolist(), nearest.indices.tolist(), nearest.values.tolist())


def similar_pairs(sentences: list[str], paragraphs: list[int], embeddings: np.ndarray, choices: random.Random):
    """Return pairs of neighbours in the embedding space, of random sentences, and of sentences that follow each other."""
    count, pairs = len(sentences), []
    for row, nearest, cosines in neighbours(choices.sample(range(count), NEIGHBOURS), embeddings, 60):
        place = min(59, int(choices.expovariate(1 / 6)))
        pairs.append(pair(sentences[row], sentences[nearest[place]], cosines[place], "neighbour", choices))
    for _ in range(RANDOM):
        row, other = choices.randrange(count), choices.randrange(count)
        pairs.append(pair(sentences[row], sentences[other], embeddings[row] @ embeddings[other], "random", choices))
    following = [row for row in range(count - 1) if paragraphs[row] == paragraphs[row + 1]]
    for row in choices.sample(following, NEXT):
        cosine = embeddings[row] @ embeddings[row + 1]
        pairs.append(pair(sentences[row], sentences[row + 1], cosine, "next", choices))
    return pairs


def edited_pairs(sentences: list[str], embeddings: np.ndarray, encoder: SentenceEncoder, choices: random.Random):
    """Return pairs of an edited sentence with the sentence, or with a neighbour from which the edit took words."""
    words = [word for sentence in choices.sample(sentences, min(5000, len(sentences))) for word in sentence.split()]
    rows = choices.sample(range(len(sentences)), EDITED)
    close = [choices.choice(nearest) for _, nearest, _ in neighbours(rows, embeddings, 5)]
    edited = [edit(sentences[row], sentences[other], words, choices) for row, other in zip(rows, close)]
    pairs = []
    for row, other, text, vector in zip(rows, close, edited, encoder(edited)):
        kind, source = ("edited", row) if choices.random() < 0.75 else ("edited neighbour", other)
        pairs.append(pair(sentences[source], text, embeddings[source] @ vector, kind, choices))
    return pairs


def edit(sentence: str, neighbour: str, words: list[str], choices: random.Random) -> str:
    """Remove, replace or move words of a sentence, or put in words of its neighbour."""
    own, other = sentence.split(), neighbour.split()
    operation = choices.choice(["remove", "replace", "move", "join", "names", "splice"])
    if operation == "remove" and len(own) > 9:
        size = choices.randrange(2, len(own) // 2)
        start = choices.randrange(len(own) - size)
        del own[start : start + size]
    elif operation == "move":
        size = choices.randrange(2, max(3, len(own) // 2))
        start = choices.randrange(len(own) - size + 1)
        moved, own = own[start : start + size], own[:start] + own[start + size :]
        place = choices.randrange(len(own) + 1)
        own[place:place] = moved
    elif operation == "join":
        own = own[: len(own) // 2] + other[len(other) // 2 :]
    elif operation == "names":
        capitals = [word for word in other[1:] if word[:1].isupper()] or other
        places = [place for place in range(1, len(own)) if own[place][:1].isupper()] or [choices.randrange(len(own))]
        for place in choices.sample(places, min(len(places), 2)):
            own[place] = choices.choice(capitals)
    elif operation == "splice":
        size, start, place = choices.randrange(1, 5), choices.randrange(len(other)), choices.randrange(len(own))
        own[place : place + size] = other[start : start + size]
    else:
        for _ in range(choices.randrange(1, 4)):
            own[choices.randrange(len(own))] = choices.choice(words)
    return " ".join(own)


def passage_pairs(
    sentences: list[str], paragraphs: list[int], embeddings: np.ndarray, encoder: SentenceEncoder, choices: random.Random
):
    """Return pairs of two or three sentences in a row with a part, an edit or a neighbour of one of them."""
    groups: dict[int, list[int]] = {}
    for row, paragraph in enumerate(paragraphs):
        groups.setdefault(paragraph, []).append(row)
    candidates = [group for group in groups.values() if len(group) > 1]
    passages, chosen = [], []
    for group in choices.sample(candidates, min(PASSAGES, len(candidates))):
        size = min(len(group), choices.randrange(2, 4))
        start = choices.randrange(len(group) - size + 1)
        passages.append(group[start : start + size])
        chosen.append(choices.choice(passages[-1]))
    hypotheses = []
    for passage, (row, nearest, _) in zip(passages, neighbours(chosen, embeddings, 5)):
        words, draw = sentences[row].split(), choices.random()
        if draw < 0.35:
            size = choices.randrange(4, len(words) + 1)
            start = choices.randrange(len(words) - size + 1)
            hypotheses.append(" ".join(words[start : start + size]))
        elif draw < 0.65:
            hypotheses.append(edit(sentences[row], sentences[choices.choice(passage)], words, choices))
        elif draw < 0.9:
            hypotheses.append(sentences[choices.choice(nearest)])
        else:
            hypotheses.append(sentences[row])
    premises = [" ".join(sentences[row] for row in passage) for passage in passages]
    cosines = (encoder(premises) * encoder(hypotheses)).sum(-1)
    return [pair(*texts, "passage") for texts in zip(premises, hypotheses, cosines)]


class Data:
    """Batches of the four losses; a batch depends only on the number of the step and of the process."""

    def __init__(self, corpus: Path, folder: Path, model: Path, width: int):
        self.tokenizer = load_tokenizer(model)
        self.sentences = json.loads((folder / "sentences.json").read_text(encoding="utf-8"))
        self.pairs = [row for _, row in read_rows(folder / "pairs.jsonl")]
        embeddings = np.load(folder / "embeddings.npy").astype(np.float32)
        directions = principal_directions(embeddings[:20_000], width)
        self.embeddings = torch.from_numpy(embeddings @ directions)
        documents = load_corpus([str(corpus / "train")]).shuffle(seed=3)
        documents = documents.select(range(min(4500, len(documents))))
        self.passages, _ = pack(documents, self.tokenizer, mode="full_sentences", max_length=LENGTH)
        options = MaskingOptions(unit="word", rate=0.2)
        self.mask = MaskingCollator(MaskingVocabulary.from_tokenizer(self.tokenizer), options)
        lengths = [len(sentence) for sentence in self.sentences]
        self.batches = dict(
            pairs=batches([len(row["sentence1"]) + len(row["sentence2"]) for row in self.pairs], ROWS["pairs"], 1),
            embeddings=batches(lengths, ROWS["embeddings"], 2),
            sentences=batches(lengths, ROWS["sentences"], 3),
            passages=batches([LENGTH] * len(self.passages), ROWS["passages"], 4),
        )

    def rows(self, name: str, step: int, process: int, processes: int) -> list[int]:
        return self.batches[name][step][process::processes]

    def encode(self, *texts: list[str]) -> dict[str, torch.Tensor]:
        options = dict(padding=True, truncation=True, max_length=160, return_token_type_ids=False)
        return dict(self.tokenizer(*texts, return_tensors="pt", **options))

    def masked(self, rows: list[list[int]], numbers: list[int], step: int) -> dict[str, torch.Tensor]:
        """Return token ids with masked words, their attention mask, and labels."""
        features = [dict(input_ids=ids, example=number, epoch=step) for ids, number in zip(rows, numbers)]
        batch = self.mask(features)
        return {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}


def batches(lengths: list[int], size: int, seed: int) -> list[list[int]]:
    """Return STEPS batches of rows of similar length, which contain each row once per epoch."""
    choices, order = random.Random(seed), []
    while len(order) < STEPS * size:
        order += choices.sample(range(len(lengths)), len(lengths))
    found = []
    for start in range(0, STEPS * size, 16 * size):
        window = sorted(order[start : min(start + 16 * size, STEPS * size)], key=lengths.__getitem__)
        group = [window[first : first + size] for first in range(0, len(window), size)]
        choices.shuffle(group)
        found += group
    return found


class Student(nn.Module):
    """The masked language model, with a regression head on the first token for pairs."""

    def __init__(self, model: DebertaExtForMaskedLM):
        super().__init__()
        width = model.config.hidden_size
        self.model, self.head = model, nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))

    def losses(self, data: Data, step: int, process: int, processes: int) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the name and value of one loss at a time, so that only one graph is in memory."""
        rows = {name: data.rows(name, step, process, processes) for name in ROWS}
        pairs = [data.pairs[row] for row in rows["pairs"]]
        inputs = data.encode([row["sentence1"] for row in pairs], [row["sentence2"] for row in pairs])
        scores = self.head(self.model.base_model(**inputs).last_hidden_state[:, 0]).squeeze(-1)
        yield "pairs", functional.mse_loss(scores, torch.tensor([row["label"] for row in pairs]))

        inputs = data.encode([data.sentences[row] for row in rows["embeddings"]])
        found = mean_pooled(self.model.base_model(**inputs).last_hidden_state, inputs["attention_mask"])
        target = data.embeddings[rows["embeddings"]]
        cosines, wanted = (x @ x.T for x in (functional.normalize(found, dim=-1), functional.normalize(target, dim=-1)))
        yield "embeddings", cosine_loss(found, target) + 2 * functional.mse_loss(cosines, wanted)

        texts = [data.sentences[row] for row in rows["sentences"]]
        sentences = data.tokenizer(texts, truncation=True, max_length=128)["input_ids"]
        passages = [data.passages[row]["input_ids"] for row in rows["passages"]]
        for name, ids in (("sentences", sentences), ("passages", passages)):
            yield name, self.model(**data.masked(ids, rows[name], step), masked_only=True).loss


def train(corpus: Path, pairs: Path, model: Path, folder: Path, bf16: bool = False):
    """Train with as many processes as torchrun has started; save the model and training.json, with the losses."""
    processes = int(os.environ.get("WORLD_SIZE", 1))
    if processes > 1:
        distributed.init_process_group("gloo")
    process = distributed.get_rank() if processes > 1 else 0
    torch.manual_seed(0)
    dropout = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    student = Student(DebertaExtForMaskedLM.from_pretrained(model, **dropout)).train()
    data = Data(corpus, pairs, model, student.model.config.hidden_size)
    parameters = [*student.parameters()]
    groups = [[x for x in parameters if x.dim() > 1], [x for x in parameters if x.dim() < 2]]
    options = dict(lr=RATE, betas=(0.9, 0.98), eps=1e-6, fused=True)
    optimizer = torch.optim.AdamW([dict(params=x, weight_decay=decay) for x, decay in zip(groups, (0.1, 0.0))], **options)
    state, log, seconds = folder / "state.pt", [], 0.0
    if state.is_file():
        saved = torch.load(state)
        student.load_state_dict(saved["student"])
        optimizer.load_state_dict(saved["optimizer"])
        log, seconds = saved["log"], saved["seconds"]
    began = time.monotonic() - seconds
    for step in tqdm(range(len(log), STEPS), initial=len(log), total=STEPS, disable=process > 0):
        for group in optimizer.param_groups:
            group["lr"] = RATE * rate_factor(step)
        losses = {}
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16, cache_enabled=False):
            for name, loss in student.losses(data, step, process, processes):
                (WEIGHTS[name] * loss).backward()
                losses[name] = loss.item()
        for x in parameters:
            if processes > 1 and x.grad is not None:
                distributed.all_reduce(x.grad)
                x.grad /= processes
        nn.utils.clip_grad_norm_(parameters, 4.0)
        optimizer.step()
        optimizer.zero_grad()
        log.append(losses)
        if process == 0 and ((step + 1) % SAVE_STEPS == 0 or step + 1 == STEPS):
            save(folder, student, optimizer, data, log, time.monotonic() - began)


def rate_factor(step: int) -> float:
    """Return the learning rate / RATE: 40 steps of warm-up, then constant; falls as 1 - sqrt in the last FALLING steps."""
    fallen = max(0, step - (STEPS - FALLING)) / FALLING
    return min(1.0, (step + 1) / 40) * (1 - math.sqrt(fallen))


def save(folder: Path, student: Student, optimizer: Any, data: Data, log: list[dict[str, float]], seconds: float):
    student.model.save_pretrained(folder)
    data.tokenizer.save_pretrained(folder)
    last = {name: float(np.mean([losses[name] for losses in log[-100:]])) for name in ROWS}
    report = dict(steps=len(log), rows=ROWS, weights=WEIGHTS, learning_rate=RATE, seconds=round(seconds), losses=last)
    replace_text(folder / "training.json", json.dumps(report, indent=2) + "\n")
    temporary = folder / "state.new"
    torch.save(dict(student=student.state_dict(), optimizer=optimizer.state_dict(), log=log, seconds=seconds), temporary)
    os.replace(temporary, folder / "state.pt")


if __name__ == "__main__":
    main()
