"""HTTP for clients of registries: time-outs, patience, redirects, and no secret where it does not belong.

Speaks https, and http with this machine only.
"""

from __future__ import annotations

import contextlib
import io
import ipaddress
import json
import random
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests

from ctrain_runtime.errors import RegistryError

_WAITS = (0.5, 1.0, 2.0, 0.0)  # seconds after each try; varied, so that many clients don't come back together
_LONGEST_WAIT = 30  # seconds; who asks for more is not waited for
_REDIRECTS = 5
_LARGEST = 16_000_000  # bytes; registries limit manifests to 4 MB
_PART = 1 << 20  # bytes of a stream at a time
_LATER = "Retry later, or for a build, do not ask registries: --offline"
_TOO_LATE = (TimeoutError, socket.timeout)  # two kinds before Python 3.10
_PERMANENT_ERRORS = (*_TOO_LATE, socket.gaierror, ssl.SSLError, ValueError)  # another try would end like the first


class Unreachable(RegistryError):
    """A server gives no answer, or none that is of use: it may do so later."""


@dataclass(frozen=True)
class Request:
    """How a URL is requested.

    `patience`: how many seconds longer than others the answer may take. `stream`: the body is not read at once.
    """

    method: str = "GET"
    body: bytes = b""
    patience: float = 0
    stream: bool = False


GET = Request()


@dataclass(frozen=True)
class Response:
    """The answer of a server.

    `url`: where it came from, after redirects. `parts`: the bytes of a stream, which has no `body`; each read of them
    may take as long as a whole answer. They raise Unreachable.
    """

    url: str
    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes
    parts: Iterator[bytes] = field(default_factory=lambda: iter(()))

    def data(self) -> dict[str, Any]:
        """The JSON object that it is. Raises RegistryError."""
        with contextlib.suppress(ValueError, RecursionError):
            data = json.loads(self.body)
            if isinstance(data, dict):
                return data
        raise RegistryError(f"{host(self.url)} did not return a registry response", "Check for a proxy or login page")


class _Session(requests.Session):
    """Leaves redirects to HttpClient. Otherwise requests reads the body of each to its end, however long it takes."""

    def get_redirect_target(self, resp: requests.Response) -> None:  # noqa: ARG002  # the signature of requests
        return None


class HttpClient:
    """Keeps connections. `timeout` is how many seconds an answer may take in all."""

    def __init__(self, timeout: float, pause: Callable[[float], None]) -> None:
        self._timeout, self._pause = timeout, pause
        self._session = _Session()
        # The certificates that this machine and its engine trust, not those that come with requests.
        paths = ssl.get_default_verify_paths()
        self._session.verify = paths.cafile or paths.capath or True

    def fetch(self, url: str, headers: Mapping[str, str], call: Request = GET) -> Response:
        """An answer below 500, after as many tries as it takes: of a PATCH after one. Raises Unreachable."""
        for wait in _WAITS:
            last = not wait or call.method == "PATCH"  # what was sent may have been added already
            wait *= random.uniform(0.5, 1.5)  # noqa: S311  # nothing secret
            try:
                answer = self._once(url, headers, call)
            except (requests.RequestException, TimeoutError, ValueError) as error:
                root = _root(error)
                if last or isinstance(root, _PERMANENT_ERRORS):
                    raise Unreachable(f"{host(url)} cannot be reached: {self._why(root)}", _hint(root)) from error
            else:
                if answer.status != 429 and answer.status < 500:
                    return answer
                retry_after = answer.headers.get("Retry-After", "")
                wait = max(wait, int(retry_after[:9])) if retry_after.isdecimal() else wait
                if last or wait > _LONGEST_WAIT:
                    raise Unreachable(f"{host(url)} answers {answer.status} {answer.reason}", _LATER)
            self._pause(wait)
        raise AssertionError("the last wait is 0")

    def _once(self, url: str, headers: Mapping[str, str], call: Request) -> Response:
        start, timeout = origin(url), self._timeout + call.patience
        deadline = time.monotonic() + timeout
        for _ in range(_REDIRECTS + 1):
            _require_privacy(url)
            sent = {name: value for name, value in headers.items() if value}
            if origin(url) != start:
                sent.pop("Authorization", None)
            response = self._session.request(
                call.method,
                url,
                data=io.BytesIO(call.body) if call.body else None,  # a file: its time-out is for a piece, not for all
                headers={**sent, "Accept-Encoding": "identity", "User-Agent": "ctrain"},
                auth=_without_netrc,
                timeout=(min(10, self._timeout), timeout),
                allow_redirects=False,
                stream=True,
                proxies={"http": ""},  # plain http is for this machine, which no proxy stands before
            )
            head = url, response.status_code, response.reason, response.headers
            if call.stream and response.status_code in (200, 206):
                return Response(*head, b"", self._parts(url, response))
            with response:
                if call.method not in ("GET", "HEAD") or not response.is_redirect:
                    return Response(*head, b"" if call.method == "HEAD" else _read(response, deadline))
                url = follow(url, response.headers["Location"])
        raise Unreachable(f"{host(url)} redirects without end", _LATER)

    def _parts(self, url: str, response: requests.Response) -> Iterator[bytes]:
        try:
            with response:
                yield from response.iter_content(_PART)
        except (requests.RequestException, TimeoutError) as error:
            root = _root(error)
            why = f"no byte within {self._timeout:g} s" if isinstance(root, _TOO_LATE) else self._why(root)
            raise Unreachable(f"{host(url)} stopped sending: {why}", _hint(root)) from error

    def _why(self, root: BaseException) -> str:
        if isinstance(root, _TOO_LATE):
            return f"no whole answer within {self._timeout:g} s"
        if isinstance(root, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted ({root.verify_message})"
        if isinstance(root, ValueError):  # its text may hold a header
            return "the address is not valid"
        reason = getattr(root, "strerror", None) or (str(root) if isinstance(root, OSError) else "")
        return reason or "the connection was cut"


def host(url: str) -> str:
    """HOST[:PORT] of an address: messages name no more of it, as the rest may hold secrets."""
    return re.split(r"[/?#]", url.partition("://")[2])[0].rpartition("@")[2]


def origin(url: str) -> str:
    """SCHEME://HOST[:PORT] of an address: a login is for one of these."""
    return f"{url.partition('://')[0]}://{host(url)}"


def follow(url: str, link: str) -> str:
    """The address of a link that was found at `url`. Raises RegistryError."""
    try:
        return urljoin(url, link)
    except ValueError as error:
        raise RegistryError(
            f"{host(url)} redirects to an invalid address", "Report it to its administrators"
        ) from error


def server(where: str) -> str:
    """The address of HOST[:PORT]: by https, or by http on this machine."""
    return f"{'http' if is_this_machine(where) else 'https'}://{where}"


def is_this_machine(where: str) -> bool:
    """Whether a HOST[:PORT] is a loopback address."""
    with contextlib.suppress(ValueError):
        name = urlsplit(f"//{where}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    return False


def _require_privacy(url: str) -> None:
    if not url.startswith("https://") and not (url.startswith("http://") and is_this_machine(host(url))):
        raise RegistryError(f"{origin(url)} is not reached by https", "Plain http is for registries on this machine")


def _without_netrc(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Authentication that leaves our headers alone; without one, requests sends what ~/.netrc has for the host."""
    return request


def _read(response: requests.Response, deadline: float) -> bytes:
    body = bytearray()
    for part in response.iter_content(64):  # small: a server that trickles is noticed between two of them
        body += part
        if time.monotonic() > deadline:
            raise TimeoutError
        if len(body) > _LARGEST:
            raise RegistryError(
                f"{host(response.url)} sends more than {_LARGEST // 1_000_000} MB, which is no manifest"
            )
    length = response.headers.get("Content-Length", "")
    if length.isdecimal() and len(body) < int(length[:9]):
        raise requests.ConnectionError  # urllib3 1 takes what it gets
    return bytes(body)


def _root(error: BaseException) -> BaseException:
    """What is behind an error of requests: the first that is not its own or urllib3's."""
    while type(error).__module__.split(".")[0] in ("requests", "urllib3") and (error.__cause__ or error.__context__):
        error = error.__cause__ or error.__context__ or error
    return error


def _hint(root: BaseException) -> str:
    if isinstance(root, ssl.SSLCertVerificationError):
        return "Name a file with its issuer's certificate in SSL_CERT_FILE"
    return "Check the network and https_proxy, or for a build, do not ask registries: --offline"
