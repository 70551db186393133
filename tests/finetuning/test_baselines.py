# SPDX-License-Identifier: Apache-2.0
"""Baselines without pre-training: by hand, on separable rows for all problem types."""

import json

import pytest

from hf_deberta_ext.finetuning import baselines
from hf_deberta_ext.finetuning.tasks.text_classification import TextClassificationArguments, TextClassificationData

FRUIT, STONE = "ripe apple juice", "cold grey granite"
TEXTS = [f"{words} {number}" for number in range(10) for words in (FRUIT, STONE)]


def of(tmp_path, rows, **flags):
    """Compute the baselines of synthetic rows, with the same rows for training and evaluation."""
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    arguments = TextClassificationArguments(train_file=[str(file)], validation_file=[str(file), f"more={file}"], **flags)
    return TextClassificationData(arguments).baselines


@pytest.mark.parametrize(
    "labels", [["stone", "fruit", "other"], [1, 0, 2], [["a", "b"], ["b"], []]], ids=["names", "numbers", "multi_label"]
)
def test_words_that_decide_are_learned_and_the_majority_is_by_hand(labels, tmp_path):
    rows = [dict(text=text, label=labels[STONE in text]) for text in TEXTS]
    rows.append(dict(text="something else entirely", label=labels[2]))
    found = of(tmp_path, rows)
    metric = "micro_f1" if isinstance(labels[0], list) else "accuracy"
    # 10 of 21 rows have each label. Lists: only "b" is predicted, correct for 20 of 30 labels: 2 * 20 / (21 + 30).
    expected = 2 * 20 / (21 + 30) if metric == "micro_f1" else 10 / 21
    assert found[baselines.MAJORITY][metric] == pytest.approx(expected)
    assert found[baselines.TFIDF][metric] > 0.95
    assert found[baselines.TFIDF][f"more_{metric}"] == found[baselines.TFIDF][metric]


def test_scores_of_pairs_follow_the_words_they_share(tmp_path):
    pairs = [(FRUIT, " ".join(FRUIT.split()[:shared] + STONE.split()[shared:]), float(shared) + 0.5) for shared in range(4)]
    found = of(tmp_path, [dict(sentence1=a, sentence2=b, label=score) for a, b, score in pairs * 5])
    assert [*found] == [baselines.TFIDF_SCORES] and found[baselines.TFIDF_SCORES]["pearson"] > 0.95
