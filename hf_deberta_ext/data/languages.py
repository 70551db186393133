# SPDX-License-Identifier: Apache-2.0
"""Codes of languages, as the Hub takes them: ISO 639, or tags of BCP 47 such as pt-BR."""

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
    """Raise a ValueError that names the flag for the first name that has not the form of the code of a language."""
    for name in names:
        if name not in SPECIAL_LANGUAGES and not LANGUAGE_TAG.fullmatch(str(name)):
            raise ValueError(f"{flag}: there is no language {name!r}: give an ISO 639 code such as en, de or pt-BR")
