# SPDX-License-Identifier: Apache-2.0
"""Language codes that the Hub accepts: ISO 639 codes, or BCP 47 tags such as pt-BR."""

import re
from collections.abc import Iterable
from typing import Any

__all__ = ["check_languages"]

SPECIAL_LANGUAGES = ("multilingual", "code")
# Language, script, region and variants.
LANGUAGE_TAG = re.compile(
    r"[a-z]{2,3}(-[a-z]{4})?(-(?:[a-z]{2}|[0-9]{3}))?(-(?:[a-z0-9]{5,8}|[0-9][a-z0-9]{3}))*", re.IGNORECASE
)


def check_languages(names: Iterable[Any], flag: str) -> None:
    """Raise a ValueError for the first name that does not have the form of a language code; the message names the flag."""
    for name in names:
        if name not in SPECIAL_LANGUAGES and not LANGUAGE_TAG.fullmatch(str(name)):
            raise ValueError(f"{flag} expects language codes such as en, de or pt-BR, got {name!r}")
