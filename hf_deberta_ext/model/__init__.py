# SPDX-License-Identifier: Apache-2.0
"""The model: four files, which every saved checkpoint carries byte for byte."""
