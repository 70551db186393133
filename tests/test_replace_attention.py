# SPDX-License-Identifier: Apache-2.0
"""Stock DeBERTa models on our backends: same outputs, gradients, parameters and files, wherever the attention sits."""

import copy
import functools
import pickle

import pytest
import torch
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    DebertaV2Model,
)
from transformers.models.deberta import modeling_deberta as v1
from transformers.models.deberta_v2 import modeling_deberta_v2 as v2

from hf_deberta_ext import DebertaExtModel
from hf_deberta_ext import replace_attention as module_under_test  # noqa: F401
