# SPDX-License-Identifier: Apache-2.0
"""A page that shows a model at work: `deberta-ext demo`."""
