# SPDX-License-Identifier: Apache-2.0
"""Compute baselines without pre-training for classification and regression: majority class, linear models on TF-IDF."""

from collections.abc import Sequence

import numpy as np

__all__ = ["MAJORITY", "MAX_ROWS", "TFIDF", "TFIDF_SCORES", "majority_logits", "tfidf_logits"]

MAJORITY, TFIDF, TFIDF_SCORES = "majority class", "TF-IDF + logistic regression", "TF-IDF + ridge regression"
MAX_ROWS = 100_000


def majority_logits(labels: np.ndarray, num_labels: int, count: int) -> np.ndarray:
    """Return logits that predict the most common label (multi-label: all labels that more than half of the rows have).

    `labels` are label ids [n], or 0 and 1 [n, num_labels] for multi-label data. The logits are `count` equal rows.
    """
    if labels.ndim == 2:
        return np.tile(labels.mean(0) - 0.5, (count, 1))
    return np.tile(np.bincount(labels, minlength=num_labels) / len(labels), (count, 1))


def tfidf_logits(
    train: Sequence[Sequence[str]],
    labels: np.ndarray,
    evaluated: Sequence[Sequence[Sequence[str]]],
    *,
    num_labels: int,
    balanced: bool = False,
) -> list[np.ndarray]:
    """Fit a linear model on TF-IDF features; return, for each set in `evaluated`, logits [n, num_labels] or scores [n].

    Features of a text are sublinear TF-IDF of 1- and 2-grams of words and punctuation. Features of a pair of texts with
    unigram vectors a and b are |a - b|, a * b, 3 cos(a, b), and the absolute difference of lengths in units of 10 words.
    Labels are predicted by logistic regression with C = 10 (pairs: C = 1), scores by ridge regression with alpha = 1. If
    there are more than `MAX_ROWS` training rows, only every k-th row is used, with the smallest k that is enough.

    Args:
        train: columns of the training set: one column of texts, or two columns for pairs.
        labels (`np.ndarray`): [n] label ids (int), [n] scores (float), or [n, num_labels] of 0 and 1 (multi-label).
        evaluated: for each set to predict, its columns, in the format of `train`.
        balanced (`bool`): give all classes equal weight, and use 1- to 3-grams of single texts; for tasks that are scored
            with Matthews' correlation.
    """
    from scipy.sparse import csr_matrix, hstack
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier

    step = -(-len(labels) // MAX_ROWS)
    train, labels, pairs = [column[::step] for column in train], labels[::step], len(train) == 2
    longest, C, weight = 2, 10, None
    if balanced:
        longest, weight = 3, "balanced"
    if pairs:
        longest, C = 1, 1
    vectorizer = TfidfVectorizer(ngram_range=(1, longest), sublinear_tf=True, token_pattern=r"\w+|[^\w\s]")
    vectorizer.fit([text for column in train for text in column])

    def features(columns):
        vectors = [vectorizer.transform(column) for column in columns]
        if not pairs:
            return vectors[0]
        lengths = np.array([[len(text.split()) for text in column] for column in columns])
        products = vectors[0].multiply(vectors[1])
        dense = np.column_stack([3 * np.asarray(products.sum(axis=1)).ravel(), abs(lengths[0] - lengths[1]) / 10])
        return hstack([abs(vectors[0] - vectors[1]), products, csr_matrix(dense)]).tocsr()

    if labels.ndim == 1 and labels.dtype.kind == "f":
        model = Ridge().fit(features(train), labels)
        return [model.predict(features(columns)) for columns in evaluated]
    model = LogisticRegression(C=C, max_iter=1000, class_weight=weight)
    if labels.ndim == 2:
        model = OneVsRestClassifier(model).fit(features(train), labels)
        return [model.predict_proba(features(columns)) - 0.5 for columns in evaluated]
    model.fit(features(train), labels)
    answers = []
    for columns in evaluated:
        # Labels without training rows keep the value 0.
        answers.append(np.zeros((len(columns[0]), num_labels)))
        answers[-1][:, model.classes_] = model.predict_proba(features(columns))
    return answers
