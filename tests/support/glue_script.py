# SPDX-License-Identifier: Apache-2.0
"""Runs of examples/run_glue.py on generated reviews: files, a tiny model, flags and processes."""

import json
import random

import pytest
from fine_tuning_scripts import save_model
from scripts import command_line

NOUNS, GOOD, BAD = "film play book song".split(), "fine great lovely".split(), "poor awful dull".split()


def reviews(count, seed):
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        label = rng.randrange(2)
        rows.append(dict(sentence=f"the {rng.choice(NOUNS)} was {rng.choice((BAD, GOOD)[label])}", label=label))
    return rows


def write_material(folder):
    """Write train.tsv, dev.jsonl, test.csv (no labels) and a tiny model, which learns these texts in 40 steps."""
    train, dev, test = (reviews(count, seed) for seed, count in enumerate((240, 40, 9)))
    lines = ["sentence\tlabel", *(f"{row['sentence']}\t{row['label']}" for row in train)]
    (folder / "train.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "dev.jsonl").write_text("\n".join(map(json.dumps, dev)), encoding="utf-8")
    (folder / "test.csv").write_text("\n".join(["sentence", *(row["sentence"] for row in test)]), encoding="utf-8")
    save_model(folder / "model", [row["sentence"] for row in train], 300, intermediate_size=64, hidden_dropout_prob=0.1)


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    folder = tmp_path_factory.mktemp("material")
    write_material(folder)
    return folder


def arguments(material, folder, *more, **flags):
    common = dict(
        model_name_or_path=material / "model", train_file=material / "train.tsv", validation_file=material / "dev.jsonl",
        output_dir=folder, max_steps=4, report_to="none", disable_tqdm="true", logging_steps=1, learning_rate=5e-3,
    )  # fmt: skip
    return [*command_line(common | flags), *map(str, more)]
