# SPDX-License-Identifier: Apache-2.0
"""Web page to try a model: `deberta-ext demo`."""
