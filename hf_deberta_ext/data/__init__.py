# SPDX-License-Identifier: Apache-2.0
"""Read data files and data sets on the Hub; check language codes."""
