# SPDX-License-Identifier: Apache-2.0
"""Code shared by pre-training and fine-tuning: flags, user errors, run folders, checkpoints and the base trainer."""
