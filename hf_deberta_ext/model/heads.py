# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""The model classes: ONE table, from which registration, configurations, conversion, export, model cards and tests read."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["HEADS", "Head"]


@dataclass(frozen=True)
class Head:
    """A model class of modeling_deberta_ext.py, and its names elsewhere.

    Args:
        model_class (`str`): its name.
        description (`str`): opens a new model card.
        outputs (`tuple[str, ...]`): its tensors without the loss, as exported graphs give them.
        labels (*optional*): "words": ids of the vocabulary [B, N]; "tokens": classes [B, N]; "row": classes [B]; "span":
            start_positions and end_positions [B]; "choice": [B], for inputs [B, choices, N].
        auto_class (`str`, *optional*): the Auto class of transformers that loads it; None = by its own name alone.
        stock_class (`str`, *optional*): the class of transformers that loads it once it is written as deberta-v2.
        pipeline_tag (`str`, *optional*): on the Hub.
    """

    model_class: str
    description: str
    outputs: tuple[str, ...] = ("logits",)
    labels: Literal["words", "tokens", "row", "span", "choice"] | None = None
    auto_class: str | None = None
    stock_class: str | None = None
    pipeline_tag: str | None = None


# By their names on the command line.
HEADS = {
    "base": Head(
        "DebertaExtModel",
        "A DeBERTa encoder",
        outputs=("last_hidden_state",),
        auto_class="AutoModel",
        stock_class="DebertaV2Model",
        pipeline_tag="feature-extraction",
    ),
    "masked-lm": Head(
        "DebertaExtForMaskedLM",
        "A DeBERTa masked language model",
        labels="words",
        auto_class="AutoModelForMaskedLM",
        stock_class="DebertaV2ForMaskedLM",
        pipeline_tag="fill-mask",
    ),
    "replaced-token-detection": Head(
        "DebertaExtForReplacedTokenDetection", "A DeBERTa encoder", labels="tokens", stock_class="DebertaV2Model"
    ),
    "sequence-classification": Head(
        "DebertaExtForSequenceClassification",
        "A DeBERTa text classifier",
        labels="row",
        auto_class="AutoModelForSequenceClassification",
        stock_class="DebertaV2ForSequenceClassification",
        pipeline_tag="text-classification",
    ),
    "token-classification": Head(
        "DebertaExtForTokenClassification",
        "A DeBERTa token classifier",
        labels="tokens",
        auto_class="AutoModelForTokenClassification",
        stock_class="DebertaV2ForTokenClassification",
        pipeline_tag="token-classification",
    ),
    "question-answering": Head(
        "DebertaExtForQuestionAnswering",
        "A DeBERTa model that finds answers in texts",
        outputs=("start_logits", "end_logits"),
        labels="span",
        auto_class="AutoModelForQuestionAnswering",
        stock_class="DebertaV2ForQuestionAnswering",
        pipeline_tag="question-answering",
    ),
    "multiple-choice": Head(
        "DebertaExtForMultipleChoice",
        "A DeBERTa model that chooses among answers",
        labels="choice",
        auto_class="AutoModelForMultipleChoice",
        stock_class="DebertaV2ForMultipleChoice",
        pipeline_tag="multiple-choice",
    ),
    "pretraining": Head(
        "DebertaExtForPreTraining",
        "Generator and discriminator of replaced token detection (DeBERTaV3)",
        outputs=("generator_logits", "discriminator_logits"),
        labels="words",
        auto_class="AutoModelForPreTraining",
    ),
}
