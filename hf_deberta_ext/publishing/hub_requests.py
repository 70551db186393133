# SPDX-License-Identifier: Apache-2.0
"""Requests to the Hub: retries, waiting times, and the errors of requests that failed for good."""

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

__all__ = ["AnswerError", "PushError", "RequestSteps", "advice", "attempt", "patient_session", "reason"]

T = TypeVar("T")
# Seconds before each further try of a request that huggingface_hub itself sends only once. It sends uploads and lists of
# files up to six times (http_backoff).
WAITS = (1, 2, 4)
# The Hub counts requests in windows of five minutes (its page on rate limits), so one window is always enough.
RATE_LIMIT_SECONDS = 300
# huggingface_hub itself waits for ever.
SILENCE_SECONDS = 300
TRANSIENT = (408, 429, 500, 502, 503, 504)
# Of which huggingface_hub takes an object for an empty list.
LISTS = re.compile("/api/(?:models|spaces)/[^/]+/[^/]+/(?:tree|commits)/")
# Session -> its timeout before the first push, and the number of pushes that use it.
_patient_sessions: dict = {}
_lock = threading.Lock()
# The last answer in this thread, for messages.
_last = threading.local()


class PushError(OSError):
    """Error of a push, with the state of the repository on the Hub and the way out.

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


class AnswerError(ValueError):
    """An answer of the Hub that is JSON of another form than expected."""

    def __init__(self):
        response = getattr(_last, "response", None)
        # Of an upload there may be nothing to read.
        text = " ".join(response.text.split()) if response is not None and response.is_closed else ""
        super().__init__(f"the Hub answered `{text[:60]}{'...' * (len(text) > 60)}`")


@contextlib.contextmanager
def patient_session() -> Iterator[None]:
    """Limit the waiting of huggingface_hub: for an answer, and for a rate limit to one window in all.

    Its own retries would wait five times, as long as the Hub asks for. Pushes in several threads share one session.
    """
    waited = 0

    def check_response(response):
        nonlocal waited
        _last.response = response
        if response.status_code >= 500 and response.request.url.path.endswith("/validate-yaml"):
            # huggingface_hub would read it as JSON before it looks at the status.
            response.read()
            hf_raise_for_status(response)
        if response.status_code == 200 and LISTS.search(response.request.url.path):
            response.read()
            if not isinstance(response.json(), list):
                raise AnswerError
        if response.status_code != 429:
            return
        seconds = retry_after(response)
        if waited + seconds > RATE_LIMIT_SECONDS:
            raise RateLimitError(response, seconds)
        waited += seconds
        if seconds:
            logger.warning(f"The Hub has too many requests and asks to wait {seconds} s; going on then.")

    client = get_session()
    with _lock:
        timeout, users = _patient_sessions.get(client, (client.timeout, 0))
        _patient_sessions[client] = timeout, users + 1
        client.timeout = SILENCE_SECONDS
        client.event_hooks = {**client.event_hooks, "response": [*client.event_hooks.get("response", ()), check_response]}
    try:
        yield
    finally:
        with _lock:
            hooks = client.event_hooks
            client.event_hooks = {**hooks, "response": [hook for hook in hooks["response"] if hook is not check_response]}
            timeout, users = _patient_sessions.pop(client)
            if users > 1:
                _patient_sessions[client] = timeout, users - 1
            else:
                client.timeout = timeout


def retry_after(response) -> int:
    """Seconds of Retry-After or of the Hub's own header; 0 where neither is there."""
    limit = parse_ratelimit_headers(response.headers)
    if limit is not None and limit.remaining == 0:
        return limit.reset_in_seconds
    after = response.headers.get("Retry-After", "").strip()
    return int(after) if after.isdigit() else 0


def attempt(action: Callable[[], T], settled: Callable[[], T | None] = lambda: None, waits: tuple[int, ...] = WAITS) -> T:
    """The result of `action`, which is repeated after errors of the Hub's servers and of the connection.

    Args:
        settled: called after each failure that is no refusal: the result of the action if it was done all the same, else
            None. A request whose answer is lost, or cannot be read, may have been served.
    """
    for wait in (*waits, None):
        try:
            try:
                return action()
            except (AttributeError, LookupError, TypeError) as error:
                # Of huggingface_hub, which takes the form of an answer for granted.
                raise AnswerError from error
        except Exception as error:
            if isinstance(error, PushError) or (400 <= (status_of(error) or 0) < 500 and not is_transient(error)):
                raise
            if (result := settled()) is not None:
                return result
            if wait is None or not is_transient(error):
                raise
            response = getattr(root_cause(error), "response", None)
            if response is not None:
                # patient_session has logged this wait.
                wait = retry_after(response) + 1 if retry_after(response) else wait
            logger.warning(f"{reason(error)}: trying again in {wait} s.")
            sleep(wait)
    raise AssertionError("the last try returns or raises")


@dataclasses.dataclass
class RequestSteps:
    """The requests of a push, step by step; an error becomes a `PushError` with the state of the repository.

    Args:
        source (`str`): the folder, for messages.
        on_hub (`str`): changes on the Hub until now, a sentence without its full stop.
    """

    repo_id: str
    source: str
    on_hub: str = "Nothing was changed on the Hub"
    commit: str | None = None

    def step(
        self, name: str, action: Callable[[], T], way_out: str | None = None, *, expected: str = "JSON", **retries
    ) -> T:
        """`attempt(action, **retries)`; `name` is "the commit" or "uploading". `way_out` replaces the usual advice.

        Args:
            expected (`str`): the form of the answer.

        Raises:
            PushError: it failed.
        """
        try:
            return attempt(action, **retries)
        except PushError:
            raise
        except Exception as error:
            if file := re.search(r"Error while uploading '([^']+)'", str(error)):
                name = f"{name} {file[1]}"
            text = f"{name} failed: {reason(error)}"
            if isinstance(root_cause(error), ValueError):
                text += f"; expected was {expected}"
            raise self.error(text, way_out or advice(error, self.repo_id), status_of(error)) from error

    def error(self, failure: str, way_out: str, status: int | None = None) -> PushError:
        text = f"{failure}. {self.on_hub}; {self.source} is as it was. {way_out}"
        return PushError(text, status=status, commit=self.commit)


def advice(error: Exception, repo_id: str) -> str:
    """The way out of an error, for the user."""
    cause, status = root_cause(error), status_of(error)
    if local_file(cause):
        return "Make it readable, and push again."
    if isinstance(cause, OfflineModeIsEnabled):
        return "Take HF_HUB_OFFLINE out of the environment, or look only, with a dry run."
    if isinstance(cause, RateLimitError):
        return f"Push again in {cause.seconds} s: files that were uploaded are not sent again."
    by_status = {
        401: "Log in with `hf auth login`, or give a token that may write (--token, or HF_TOKEN).",
        403: f"The token may not write to {repo_id}: take one with write access from https://huggingface.co/"
        "settings/tokens, or a repository of your own; to somebody else's, propose it with --create_pr.",
        404: f"Look whether {repo_id} is still there, and whether the token may see it.",
        409: f"Perhaps another request to {repo_id} is under way, or it is hidden from this token: look with a "
        "dry run, and push again.",
        413: 'Save the model in smaller files, model.save_pretrained(folder, max_shard_size="5GB"), and push again.',
        429: "Push again in some minutes: files that were uploaded are not sent again.",
    }
    if status in by_status:
        return by_status[status]
    if isinstance(cause, PermissionError):
        # XetAuthenticationError of hf_xet.
        return by_status[401]
    if isinstance(cause, (OSError, RuntimeError)) and not isinstance(cause, HTTPError):
        return (
            "Push again: files that were uploaded are not sent again. Should hf_xet fail again, HF_HUB_DISABLE_XET=1 in "
            "the environment uploads without it."
        )
    if status is None or 300 <= status < 400:
        return "Look at the connection and push again: files that were uploaded are not sent again."
    if status >= 500:
        return "The Hub is in trouble: push again later; files that were uploaded are not sent again."
    return "Fix the reported error, and push again."


def root_cause(error: BaseException) -> BaseException:
    """The error of the request or connection inside of others, which uploads of large files put around theirs."""
    cause = error
    while cause is not None and not isinstance(cause, PushError):
        if isinstance(cause, (HTTPError, OfflineModeIsEnabled, RateLimitError)):
            return cause
        cause = cause.__cause__
    return error


def status_of(error: BaseException) -> int | None:
    """Status of the Hub's answer, if there was one."""
    response = getattr(root_cause(error), "response", None)
    return None if response is None else response.status_code


def is_transient(error: Exception) -> bool:
    """True for errors after which the same request may succeed."""
    cause = root_cause(error)
    # An HTTPError without an answer is one of the connection; an answer that is no JSON, of a machine before the Hub.
    if isinstance(cause, (AnswerError, json.JSONDecodeError)):
        return True
    return status_of(cause) in TRANSIENT if isinstance(cause, HfHubHTTPError) else isinstance(cause, HTTPError)


def local_file(error: BaseException) -> str | None:
    """The file that could not be read, if the error is of one; those of hf_xet about the Hub name none."""
    return getattr(error, "filename", None) if isinstance(error, OSError) and not isinstance(error, HTTPError) else None


def reason(error: BaseException) -> str:
    """The error in one line."""
    cause = root_cause(error)
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
        message = " ".join((cause.server_message or "").split())[:300].rstrip(".")
        return f"{phrase}, {message}" if message else phrase
    if file := local_file(cause):
        return f"{file} cannot be read ({cause.strerror})"
    if isinstance(cause, json.JSONDecodeError):
        return "the answer was no JSON, perhaps a page of a proxy or of a Hub in trouble"
    text = " ".join(str(cause).split())[:300].rstrip(".") or type(cause).__name__
    if "Timeout" in type(cause).__name__:
        return f"no answer for {SILENCE_SECONDS} s ({text})"
    return f"the connection broke ({text})" if isinstance(cause, HTTPError) else text
