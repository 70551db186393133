# SPDX-License-Identifier: Apache-2.0
"""Reading of data files and Hub data sets, and language codes."""
