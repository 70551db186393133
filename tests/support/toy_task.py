# SPDX-License-Identifier: Apache-2.0
"""A generated fine-tuning task: sentences that contain a good or a bad word, and tiny models of all families."""

import functools
import json
import random
from dataclasses import dataclass, field
from pathlib import Path

import datasets
import torch
import transformers
from safetensors.torch import load_file
from scripts import command_line
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, DataCollatorWithPadding

from hf_deberta_ext import DebertaExtConfig
from hf_deberta_ext.finetuning import loop as fine_tuning
from hf_deberta_ext.finetuning.arguments import DataArguments, parse
from hf_deberta_ext.finetuning.task import EncodedTask, EvaluationSet, TaskData
from hf_deberta_ext.finetuning.tasks import Task
from hf_deberta_ext.finetuning.tasks.text_classification import TextClassificationArguments, TextClassificationData
from hf_deberta_ext.tokenization import wrap_tokenizer

WORDS = "good fine great bad poor awful film play book was the a so here today".split()
GOOD = {"good", "fine", "great"}
SIZES = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, vocab_size=32, pad_token_id=2,
    max_position_embeddings=40,
)  # fmt: skip
V2 = dict(relative_attention=True, position_biased_input=False, pos_att_type="p2c|c2p")
CONFIGS = {
    "ours": lambda: DebertaExtConfig(**SIZES, position_buckets=16),
    "v1": lambda: transformers.DebertaConfig(**SIZES, **V2),
    "v2": lambda: transformers.DebertaV2Config(
        **SIZES, **V2, position_buckets=16, share_att_key=True, norm_rel_ebd="layer_norm", type_vocab_size=0
    ),
    "bert": lambda: transformers.BertConfig(**SIZES),
    "roberta": lambda: transformers.RobertaConfig(**SIZES, type_vocab_size=2),
    "electra": lambda: transformers.ElectraConfig(**SIZES, embedding_size=16),
    "albert": lambda: transformers.AlbertConfig(**SIZES, embedding_size=16),
}


def sentences(count, seed, labelled=True):
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        words = [*rng.sample(WORDS[6:], 3), rng.choice(WORDS[:6])]
        rng.shuffle(words)
        rows.append({"text": " ".join(words)} | ({"label": int(bool(GOOD & {*words}))} if labelled else {}))
    return rows


def accuracy(predictions, labels):
    return {"accuracy": float((predictions.argmax(-1) == labels).mean())}


@dataclass
class ToyArguments(DataArguments):
    labels: list[str] = field(default_factory=lambda: ["bad", "good"])
    train_count: int = 24
    evaluation_count: int = 10
    test_count: int = 6
    second_set: bool = False


class ToyData(TaskData):
    """Sentences that contain a good or a bad word."""

    pipeline, auto_class, dataset = "text-classification", AutoModelForSequenceClassification, "made here"

    def __init__(self, data_args, hub=None):
        self.args, self.name = data_args, data_args.task_name or "toy"
        self.num_train, self.num_evaluation = data_args.train_count, data_args.evaluation_count

    def config_fields(self):
        labels = dict(enumerate(self.args.labels))
        return dict(num_labels=len(labels), id2label=labels, label2id={name: n for n, name in labels.items()})

    def encode(self, tokenizer, config):
        def features(count, seed, labelled=True):
            rows = sentences(count, seed, labelled)
            columns = dict(tokenizer([row["text"] for row in rows]))
            if labelled:
                columns["labels"] = [row["label"] for row in rows]
            return datasets.Dataset.from_dict(columns)

        def write(predictions, folder, stem):
            file = folder / f"{stem}_answers.json"
            file.write_text(json.dumps(predictions.argmax(-1).tolist()), encoding="utf-8")
            return [file]

        def evaluation_set(count, seed, labelled=True):
            return EvaluationSet(features(count, seed, labelled), accuracy if labelled else None, write, count)

        evaluation = {"": evaluation_set(self.num_evaluation, 1)} if self.num_evaluation else {}
        if self.args.second_set:
            evaluation["mm"] = evaluation_set(7, 2)
        test = {"": evaluation_set(self.args.test_count, 3, labelled=False)} if self.args.test_count else {}
        train = features(self.num_train, 0) if self.num_train else None
        return EncodedTask(train, evaluation, test, DataCollatorWithPadding(tokenizer), "accuracy")


def toy_tokenizer():
    vocabulary = {word: n for n, word in enumerate(["[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", *WORDS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return wrap_tokenizer(backend, model_max_length=40)


def model_folders(new_folder):
    """Return folder_of(family), which saves a tiny masked language model with its tokenizer in new_folder(family)."""

    @functools.cache
    def folder_of(family):
        torch.manual_seed(0)
        folder = new_folder(family)
        AutoModelForMaskedLM.from_config(CONFIGS[family]()).save_pretrained(folder)
        toy_tokenizer().save_pretrained(folder)
        return folder

    return folder_of


def flags(model, folder, *more, **given):
    common = dict(
        model_name_or_path=model, output_dir=folder, max_steps=4, per_device_train_batch_size=4, report_to="none",
        disable_tqdm="true", logging_steps=1, learning_rate=1e-2, save_strategy="no",
    )  # fmt: skip
    return [*command_line(common | given), *map(str, more)]


def run(*argv, read=ToyData, arguments=ToyArguments, **given):
    parsed = parse(flags(*argv, **given), arguments, description="toy")
    return fine_tuning.train_and_report(fine_tuning.prepare(read, *parsed))


run_classification = functools.partial(run, read=TextClassificationData, arguments=TextClassificationArguments)


def main(*argv, read=ToyData, **given):
    return fine_tuning.main(Task(read, ToyArguments), flags(*argv, **given), description="toy")


def weights(folder):
    return load_file(Path(folder) / "model.safetensors")


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(value, b[name]) for name, value in a.items())


def read(folder, name):
    return json.loads(Path(folder, name).read_text(encoding="utf-8"))
