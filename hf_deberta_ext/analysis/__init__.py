# SPDX-License-Identifier: Apache-2.0
"""Analysis of trained models: attention scores, replaced tokens, embedding similarity, figures."""
