# SPDX-License-Identifier: Apache-2.0
"""Distillation: train a small student on the outputs of a teacher of any architecture and tokenizer."""
