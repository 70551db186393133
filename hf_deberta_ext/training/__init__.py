# SPDX-License-Identifier: Apache-2.0
"""What the scripts of pre-training and of fine-tuning share: flags, the folder of a run, its end, model cards."""
