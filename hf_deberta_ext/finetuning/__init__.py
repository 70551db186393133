# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning: the tasks, their arguments, the training loop and its reports. Works with any transformers model."""
