# SPDX-License-Identifier: Apache-2.0
"""Requests to the Hub: what is tried again, how long is waited, and what is said where that was no use."""

import contextlib
import dataclasses
import http
import json
import re
import threading
from collections.abc import Callable, Iterator
from time import sleep
from typing import TypeVar

from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import get_session, hf_raise_for_status, parse_ratelimit_headers
from transformers.utils import logging

logger = logging.get_logger(__name__)

__all__ = ["PushError", "Transfer", "attempt", "patient_session", "status_of"]

T = TypeVar("T")
# Seconds before each further try of a request that huggingface_hub itself sends only once. Uploads, and lists of files, it
# sends up to six times (http_backoff).
WAITS = (1, 2, 4)
# The Hub counts requests in windows of five minutes (its page on rate limits), so one window is always enough.
RATE_LIMIT_SECONDS = 300
# huggingface_hub itself waits for ever.
SILENCE_SECONDS = 300
TRANSIENT = (408, 429, 500, 502, 503, 504)
# The timeout that a session had before the first push that uses it; how many do so.
_patient: dict = {}
_lock = threading.Lock()


class PushError(OSError):
    """A push that failed; says what of it is on the Hub, and what to do.

    Attributes:
        status (`int`, *optional*): of the Hub's answer.
        commit (`str`, *optional*): the commit that was made all the same.
    """

    def __init__(self, message: str, *, status: int | None = None, commit: str | None = None):
        super().__init__(message)
        self.status, self.commit = status, commit


class RateLimitError(Exception):
    """The Hub asks to wait longer than a push waits."""

    def __init__(self, response, seconds: int):
        super().__init__(f"the Hub asks to wait {seconds} s")
        self.response, self.seconds = response, seconds


@contextlib.contextmanager
def patient_session() -> Iterator[None]:
    """Inside, requests of huggingface_hub wait neither for ever for an answer, nor for a rate limit longer than one window.

    Its retries would wait as long as they are told, five times. Pushes in several threads share one session, and what they
    are told to wait.
    """
    waited = 0

    def look_at(response):
        nonlocal waited
        if response.status_code >= 500 and response.request.url.path.endswith("/validate-yaml"):
            # huggingface_hub would read it as JSON before it looks at the status.
            response.read()
            hf_raise_for_status(response)
        if response.status_code != 429:
            return
        seconds = asked_to_wait(response)
        if waited + seconds > RATE_LIMIT_SECONDS:
            raise RateLimitError(response, seconds)
        waited += seconds
        if seconds:
            logger.warning(f"The Hub has too many requests and asks to wait {seconds} s; going on then.")

    client = get_session()
    with _lock:
        timeout, users = _patient.get(client, (client.timeout, 0))
        _patient[client] = timeout, users + 1
        client.timeout = SILENCE_SECONDS
        client.event_hooks = {**client.event_hooks, "response": [*client.event_hooks.get("response", ()), look_at]}
    try:
        yield
    finally:
        with _lock:
            hooks = client.event_hooks
            client.event_hooks = {**hooks, "response": [hook for hook in hooks["response"] if hook is not look_at]}
            timeout, users = _patient.pop(client)
            if users > 1:
                _patient[client] = timeout, users - 1
            else:
                client.timeout = timeout


def asked_to_wait(response) -> int:
    """Seconds of Retry-After or of the Hub's own header; 0 where neither is there."""
    limit = parse_ratelimit_headers(response.headers)
    if limit is not None and limit.remaining == 0:
        return limit.reset_in_seconds
    after = response.headers.get("Retry-After", "").strip()
    return int(after) if after.isdigit() else 0


def attempt(action: Callable[[], T], settled: Callable[[], T | None] = lambda: None, waits: tuple[int, ...] = WAITS) -> T:
    """The result of `action`, which is tried again where the Hub is in trouble or the connection broke.

    Args:
        settled: after each such failure: what the action would return if it was done all the same, else None. A request
            whose answer is lost may have been served.
    """
    for wait in (*waits, None):
        try:
            return action()
        except Exception as error:
            if not _is_transient(error):
                raise
            if (result := settled()) is not None:
                return result
            if wait is None:
                raise
            response = _response(error)
            if response is not None:
                # The first wait is told by the session.
                wait = asked_to_wait(response) + 1 if asked_to_wait(response) else wait
            logger.warning(f"{_reason(error)}: trying again in {wait} s.")
            sleep(wait)
    raise AssertionError("the last try returns or raises")


@dataclasses.dataclass
class Transfer:
    """Sends a push step by step; whatever fails becomes a `PushError` that says how far it came.

    Args:
        source (`str`): the folder, for messages.
        on_hub (`str`): what of the push is on the Hub by now, a sentence without its full stop.
    """

    repo_id: str
    source: str
    on_hub: str = "Nothing was changed on the Hub"
    commit: str | None = None

    def step(self, what: str, action: Callable[[], T], advice: str | None = None, **retries) -> T:
        """`attempt(action, **retries)`; `what` was to be done, "the commit" or "uploading". `advice` replaces the usual.

        Raises:
            PushError: it failed.
        """
        try:
            return attempt(action, **retries)
        except Exception as error:
            if isinstance(error, PushError) or not _is_of_transfer(error):
                raise
            if file := re.search(r"Error while uploading '([^']+)'", str(error)):
                what = f"{what} {file[1]}"
            raise self.error(f"{what} failed: {_reason(error)}", advice or self._advice(error), status_of(error)) from error

    def error(self, failure: str, advice: str, status: int | None = None) -> PushError:
        text = f"{failure}. {self.on_hub}; {self.source} is as it was. {advice}"
        return PushError(text, status=status, commit=self.commit)

    def _advice(self, error: Exception) -> str:
        cause, status = _cause(error), status_of(error)
        if _local_file(cause):
            return "Make it readable, and push again."
        if isinstance(cause, OfflineModeIsEnabled):
            return "Take HF_HUB_OFFLINE out of the environment, or look only, with a dry run."
        if isinstance(cause, RateLimitError):
            return f"Push again in {cause.seconds} s: files that were uploaded are not sent again."
        known = {
            401: "Log in with `hf auth login`, or give a token that may write (--token, or HF_TOKEN).",
            403: f"The token may not write to {self.repo_id}: take one with write access from https://huggingface.co/"
            "settings/tokens, or a repository of your own; to somebody else's, propose it with --create_pr.",
            404: f"Look whether {self.repo_id} is still there, and whether the token may see it.",
            409: f"Perhaps another request to {self.repo_id} is under way, or it is hidden from this token: look with a "
            "dry run, and push again.",
            413: 'Save the model in smaller files, model.save_pretrained(folder, max_shard_size="5GB"), and push again.',
            429: "Push again in some minutes: files that were uploaded are not sent again.",
        }
        if status in known:
            return known[status]
        if isinstance(cause, PermissionError):
            # XetAuthenticationError of hf_xet.
            return known[401]
        if isinstance(cause, (OSError, RuntimeError)) and not isinstance(cause, HTTPError):
            return (
                "Push again: files that were uploaded are not sent again. Should hf_xet fail again, HF_HUB_DISABLE_XET=1 in "
                "the environment uploads without it."
            )
        if status is None:
            return "Look at the connection and push again: files that were uploaded are not sent again."
        if status >= 500:
            return "The Hub is in trouble: push again later; files that were uploaded are not sent again."
        return "Mend what the Hub says, and push again."


def status_of(error: BaseException) -> int | None:
    response = _response(error)
    return None if response is None else response.status_code


def _cause(error: BaseException) -> BaseException:
    """What is behind an error; uploads of large files wrap theirs."""
    seen = error
    while seen is not None and not isinstance(seen, PushError):
        if isinstance(seen, (HTTPError, OfflineModeIsEnabled, RateLimitError)):
            return seen
        seen = seen.__cause__
    return error


def _response(error: BaseException):
    return getattr(_cause(error), "response", None)


def _is_transient(error: Exception) -> bool:
    cause = _cause(error)
    # An HTTPError without an answer is one of the connection; an answer that is no JSON, of a machine before the Hub.
    if isinstance(cause, json.JSONDecodeError):
        return True
    return status_of(cause) in TRANSIENT if isinstance(cause, HfHubHTTPError) else isinstance(cause, HTTPError)


def _is_of_transfer(error: Exception) -> bool:
    # RuntimeError and OSError: of hf_xet, or of a local file. ValueError: an answer that is not understood.
    kinds = (HTTPError, OfflineModeIsEnabled, RateLimitError)
    return isinstance(_cause(error), kinds) or isinstance(error, (OSError, RuntimeError, ValueError))


def _local_file(error: BaseException) -> str | None:
    """The file that could not be read, if that is what the error says; those of hf_xet about the Hub name none."""
    return getattr(error, "filename", None) if isinstance(error, OSError) and not isinstance(error, HTTPError) else None


def _reason(error: BaseException) -> str:
    cause = _cause(error)
    if isinstance(cause, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set"
    if isinstance(cause, RateLimitError):
        return f"429 Too Many Requests, {cause}"
    if isinstance(cause, HfHubHTTPError):
        status = cause.response.status_code
        try:
            phrase = f"{status} {http.HTTPStatus(status).phrase}"
        except ValueError:
            phrase = str(status)
        said = " ".join((cause.server_message or "").split())[:300].rstrip(".")
        return f"{phrase}, {said}" if said else phrase
    if file := _local_file(cause):
        return f"{file} cannot be read ({cause.strerror})"
    if isinstance(cause, json.JSONDecodeError):
        return "the answer was no JSON, perhaps a page of a proxy or of a Hub in trouble"
    text = " ".join(str(cause).split())[:300].rstrip(".") or type(cause).__name__
    if "Timeout" in type(cause).__name__:
        return f"no answer for {SILENCE_SECONDS} s ({text})"
    return f"the connection broke ({text})" if isinstance(cause, HTTPError) else text
