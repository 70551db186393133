# SPDX-License-Identifier: Apache-2.0
"""Reading of data files and of data sets of the Hub, and codes of languages."""
