# SPDX-License-Identifier: Apache-2.0
"""Shared by pre-training and fine-tuning: flags, errors of users, the folder of a run, checkpoints, the base of trainers."""
