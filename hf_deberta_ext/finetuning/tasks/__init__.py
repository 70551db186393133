# SPDX-License-Identifier: Apache-2.0
"""Tasks: from raw texts to features, predictions and metrics. Nothing here knows which model is used."""
