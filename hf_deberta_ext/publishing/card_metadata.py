# SPDX-License-Identifier: Apache-2.0
"""Names in the metadata of a model card: licences that the Hub knows, and languages."""

import difflib
import re
from collections.abc import Sequence
from typing import Any

from ..data.languages import language_problem

__all__ = [
    "DATASET_LANGUAGES", "LICENSES", "as_list", "check_metadata", "is_hub_id", "license_problem", "one_or_list",
]  # fmt: skip

# Source: huggingface/hub-docs, docs/hub/repositories-licenses.md, with the additions up to 2025.
LICENSES = frozenset(
    """
    apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m afl-3.0
    artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0
    cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0
    cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0 cdla-permissive-2.0 wtfpl ecl-2.0
    epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0 lgpl lgpl-2.1 lgpl-3.0 isc h-research
    intel-research lppl-1.3c ms-pl apple-ascl apple-amlr mpl-2.0 odc-by odbl openmdw-1.0 openmdw-1.1 openrail++ osl-3.0
    postgresql ofl-1.1 ncsa unlicense zlib pddl lgpl-lr deepfloyd-if-license fair-noncommercial-research-license llama2
    llama3 llama3.1 llama3.2 llama3.3 llama4 grok2-community gemma unknown other
    """.split()
)
# Languages of data sets on the Hub, as their cards say.
DATASET_LANGUAGES = {
    "allenai/swag": "en", "aps/super_glue": "en", "clue/clue": "zh", "ehovy/race": "en", "eriktks/conll2003": "en",
    "jaredfern/codah": "en", "leondz/wnut_17": "en", "nyu-mll/glue": "en", "rajpurkar/squad": "en",
    "rajpurkar/squad_v2": "en",
}  # fmt: skip


def license_problem(name: Any) -> str | None:
    """The problem of the name of a licence, or None."""
    if isinstance(name, str) and name in LICENSES:
        return None
    close = difflib.get_close_matches(str(name).lower(), LICENSES, 1)
    advice = f"is it {close[0]}? " if close else ""
    return f"the Hub knows no license {name!r}: {advice}Any other license is 'other', with its text in a file LICENSE"


def check_metadata(*, language: str | Sequence[str] | None = None, license: str | None = None, flag: str = "--language"):
    """Refuse names that the Hub does not know.

    Raises:
        ValueError: names the flag, `flag` for a language.
    """
    for name in as_list(language):
        if problem := language_problem(name):
            raise ValueError(f"{flag}: {problem}")
    if license is not None and (problem := license_problem(license)):
        raise ValueError(f"--license: {problem}")


def is_hub_id(name: str | None) -> bool:
    """True for the form of the id of a repository, "name" or "owner/name"."""
    return name is not None and re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", name) is not None


def as_list(value: Any) -> list[Any]:
    """None, one or several, as a list."""
    if value is None:
        return []
    return [*value] if isinstance(value, (list, tuple, set, frozenset)) else [value]


def one_or_list(values: Sequence[Any]) -> Any:
    """As metadata have it: None, one value, or a list of several."""
    return None if not values else values[0] if len(values) == 1 else [*values]
