# SPDX-License-Identifier: Apache-2.0
"""Codes of languages, as the Hub takes them."""

import re
from collections.abc import Iterable
from typing import Any

__all__ = ["LANGUAGES", "check_languages", "language_problem", "primary_language"]

# ISO 639-1. Codes of three letters (ISO 639-2 and 639-3) are too many to list: their form is checked alone, as is that of
# what follows the language in BCP 47: script, region, variants (zh-Hant, pt-BR, sl-rozaj).
LANGUAGES = frozenset(
    """
    aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en eo es
    et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv ka kg ki kj
    kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv
    ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss st su sv sw ta te tg th
    ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
    """.split()
)
SPECIAL_LANGUAGES = ("multilingual", "code")
LANGUAGE_TAG = re.compile(
    r"([a-z]{2,3})(-[a-z]{4})?(-(?:[a-z]{2}|[0-9]{3}))?(-(?:[a-z0-9]{5,8}|[0-9][a-z0-9]{3}))*", re.IGNORECASE
)


def language_problem(name: Any) -> str | None:
    """The problem of the code of a language, or None; a region may follow it (pt-BR), but see `primary_language`."""
    language = primary_language(name) if isinstance(name, str) else ""
    if name in SPECIAL_LANGUAGES or language in LANGUAGES or re.fullmatch("[a-z]{3}", language):
        return None
    # YAML reads the code of Norwegian as a truth value.
    norwegian = ' (YAML reads no as false: write "no" in quotes)' if name is False else ""
    return f"there is no language {name!r}: give an ISO 639 code such as en, de or pt-BR, or multilingual{norwegian}"


def check_languages(names: Iterable[Any], flag: str) -> None:
    """Raise a ValueError that names the flag for the first name that is not the code of a language."""
    for name in names:
        if problem := language_problem(name):
            raise ValueError(f"{flag}: {problem}")


def primary_language(name: str) -> str:
    """The language of a tag of BCP 47, "pt" of "pt-BR", by which the Hub lists models; "" if it is none."""
    match = LANGUAGE_TAG.fullmatch(name)
    return match[1] if match else ""
