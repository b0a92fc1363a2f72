"""Address, TLS, proxy and headers of a load test's requests.

Secrets (bearer token, header values, a proxy's password) live in ``Secrets`` alone: nothing here
prints or stores them.
"""

import base64
import os
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from inferometer import __version__, suggestions
from inferometer.errors import SpecError
from inferometer.inputs.plans import Endpoint, LoadPlan

_PATHS: Final[dict[Endpoint, str]] = {"chat": "/chat/completions", "completions": "/completions"}
_PORTS: Final = {"http": 80, "https": 443}
_TOKEN_VARIABLES: Final = ("INFEROMETER_API_KEY", "OPENAI_API_KEY")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VARIABLE: Final = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", re.ASCII)
_OURS: Final = frozenset(
    {
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "accept",
        "accept-encoding",
        "content-type",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """Credentials, which are sent but never shown."""

    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    proxy_authorization: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A port of a host, with TLS or without."""

    host: str
    port: int
    is_tls: bool

    @property
    def authority(self) -> str:
        """Value of the ``Host`` header: IPv6 in brackets, without a default port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (
            host
            if self.port == _PORTS["https" if self.is_tls else "http"]
            else f"{host}:{self.port}"
        )

    @property
    def host_and_port(self) -> str:
        """Host and port as ``CONNECT`` needs them: always with the port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server, the proxy before it if any, and the path of requests."""

    server: Place
    path: str
    proxy: Place | None
    verifies_tls: bool

    @property
    def first_hop(self) -> Place:
        """Host and port of the TCP connection: the proxy's, else the server's."""
        return self.proxy or self.server

    @property
    def has_tunnel(self) -> bool:
        """Does TLS run through a proxy (``CONNECT``)?"""
        return self.proxy is not None and self.server.is_tls

    def tls_context(self) -> ssl.SSLContext:
        """The TLS context; verifies the certificate unless switched off."""
        return tls_context(verifies=self.verifies_tls)


def tls_context(*, verifies: bool) -> ssl.SSLContext:
    """A client's TLS context."""
    context = ssl.create_default_context()
    if not verifies:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def shown_url(url: str) -> str:
    """The URL without credentials and query (it may hold a token), to show and store.

    >>> shown_url("https://user:password@host/metrics?token=abc")
    'https://…@host/metrics?…'
    """
    start, has_query, _ = url.partition("?")
    scheme, has_scheme, rest = start.rpartition("://")
    authority, slash, path = rest.partition("/")
    bare = f"…@{authority.rpartition('@')[2]}" if "@" in authority else authority
    return f"{scheme}{has_scheme}{bare}{slash}{path}{'?…' if has_query else ''}"


def proxy_of(url: str) -> Place:
    """The place of a proxy."""
    return _place(url, "--proxy")[1]


def endpoint_in(url: str) -> tuple[str, Endpoint | None]:
    """The URL before an endpoint that it names, and that endpoint; None where it names none.

    >>> endpoint_in("http://h:8000/v1/chat/completions"), endpoint_in("http://h:8000/v1")
    (('http://h:8000', 'chat'), ('http://h:8000/v1', None))
    """
    for endpoint, ending in _PATHS.items():
        if url.rstrip("/").endswith(ending):
            return url.rstrip("/").removesuffix(ending).removesuffix("/v1"), endpoint
    return url, None


def target_of(plan: LoadPlan) -> Target:
    """Target of the plan's requests.

    Raises
    ------
    SpecError
        The URL, or the proxy's, is invalid.
    """
    parts, server = _place(plan.url, "URL")
    prefix = parts.path.rstrip("/")
    _refuse_endpoint(plan.url, prefix)
    path = (prefix if prefix.endswith("/v1") else prefix + "/v1") + _PATHS[plan.endpoint]
    proxy = None if plan.proxy is None else proxy_of(plan.proxy)
    return Target(server=server, path=path, proxy=proxy, verifies_tls=plan.verifies_tls)


def proxy_for(
    url: str, given: str | None, environment: Mapping[str, str]
) -> tuple[str | None, str | None]:
    """Proxy of this URL without its credentials, and the value that authorises us to it.

    The flag rules; else ``http_proxy`` or ``https_proxy`` and ``all_proxy``, unless ``no_proxy``
    names the host.
    """
    parts, server = _place(url, "URL")
    found = given or _proxy_of_environment(parts.scheme, server.host, environment)
    if not found:
        return None, None
    proxy = urlsplit(found if "://" in found else f"http://{found}")
    _place(proxy.geturl(), "--proxy" if given else "the environment's proxy")
    bare = proxy._replace(netloc=proxy.netloc.rpartition("@")[2]).geturl()
    if proxy.username is None:
        return bare, None
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return bare, "Basic " + base64.b64encode(pair.encode()).decode()


def bearer_token(environment: Mapping[str, str]) -> str | None:
    """The token for the server: of ``INFEROMETER_API_KEY``, else of ``OPENAI_API_KEY``.

    Raises
    ------
    SpecError
        It has characters that headers cannot carry.
    """
    name = next((name for name in _TOKEN_VARIABLES if environment.get(name)), None)
    return None if name is None else _header_value(environment[name].strip(), where=name)


def custom_header(text: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """The header that ``Name: value`` means; ``$VARIABLE`` in the value is the environment's.

    Raises
    ------
    SpecError
        No header, one that the client sets itself, or an empty variable. The value is not repeated.
    """
    name, colon, value = text.partition(":")
    name, value = name.strip(), value.strip()
    example = "--header 'X-Team: $TEAM_TOKEN'"
    if not colon or _HEADER_NAME.fullmatch(name) is None:
        raise SpecError(
            "a header without a name or a colon",
            where="--header",
            allowed="'Name: value'",
            try_=example,
        )
    if name.lower() in _OURS:
        raise SpecError(
            f"{name} is set by the client itself", where="--header", allowed="other headers"
        )
    for variable in (match[1] or match[2] for match in _VARIABLE.finditer(value)):
        if not environment.get(variable):
            raise SpecError(
                f"the environment has no {variable}",
                where=f"--header {name}",
                try_=f"export {variable}=…",
            )
    value = _VARIABLE.sub(lambda match: environment[match[1] or match[2]], value)
    return name, _header_value(value, where=f"--header {name}")


def request_head(target: Target, secrets: Secrets, *, is_streaming: bool) -> tuple[bytes, bytes]:
    """A request's head without two values.

    The id goes between its two parts, the body's length and an empty line after the second.
    """
    return _head(
        target,
        secrets,
        f"POST {target.path}",
        "text/event-stream" if is_streaming else "application/json",
    )


def models_head(target: Target, secrets: Secrets) -> tuple[bytes, bytes]:
    """Head of a request for the list of models."""
    prefix = next(
        target.path.removesuffix(ending)
        for ending in _PATHS.values()
        if target.path.endswith(ending)
    )
    return _head(target, secrets, f"GET {prefix}/models", "application/json")


def _head(
    target: Target, secrets: Secrets, request_line: str, accepted: str
) -> tuple[bytes, bytes]:
    method, path = request_line.split(" ", 1)
    through_proxy = target.proxy is not None and not target.has_tunnel
    resource = f"http://{target.server.authority}{path}" if through_proxy else path
    lines = [
        f"{method} {resource} HTTP/1.1",
        f"Host: {target.server.authority}",
        f"User-Agent: inferometer/{__version__}",
        f"Accept: {accepted}",
        "Accept-Encoding: identity",
        "Content-Type: application/json",
        *(f"{name}: {value}" for name, value in secrets.headers),
    ]
    if through_proxy and secrets.proxy_authorization is not None:
        lines.append(f"Proxy-Authorization: {secrets.proxy_authorization}")
    return ("\r\n".join(lines) + "\r\nX-Request-Id: ").encode("ascii"), b"\r\nContent-Length: "


def connect_head(target: Target, secrets: Secrets) -> bytes:
    """The ``CONNECT`` request for a tunnel through a proxy."""
    lines = [
        f"CONNECT {target.server.host_and_port} HTTP/1.1",
        f"Host: {target.server.host_and_port}",
    ]
    if secrets.proxy_authorization is not None:
        lines.append(f"Proxy-Authorization: {secrets.proxy_authorization}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def environment() -> Mapping[str, str]:
    """The variables of this process."""
    return os.environ


def _header_value(value: str, *, where: str) -> str:
    if not (value.isascii() and value.isprintable()):
        raise SpecError(
            "the value has a character that headers cannot carry",
            where=where,
            allowed="printable ASCII",
        )
    return value


def _proxy_of_environment(scheme: str, host: str, variables: Mapping[str, str]) -> str | None:
    excluded = [
        name.strip().lstrip(".")
        for name in (variables.get("no_proxy") or variables.get("NO_PROXY") or "").split(",")
    ]
    if "*" in excluded or any(
        name and (host == name or host.endswith("." + name)) for name in excluded
    ):
        return None
    names = (f"{scheme}_proxy", f"{scheme.upper()}_PROXY", "all_proxy", "ALL_PROXY")
    return next((variables[name] for name in names if variables.get(name)), None)


def _refuse_endpoint(url: str, path: str) -> None:
    base, endpoint = endpoint_in(url)
    if endpoint is not None and path.endswith(_PATHS[endpoint]):
        raise SpecError(
            f"the URL names the endpoint: {_PATHS[endpoint]}",
            where="URL",
            allowed="the address before /v1",
            try_=suggestions.flags(base, "--endpoint", endpoint),
        )


def _place(url: str, where: str) -> tuple[SplitResult, Place]:
    allowed, try_ = "http://HOST[:PORT][/PREFIX] or https://…", "http://127.0.0.1:8000"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise SpecError(
            f"{shown_url(url)!r} is no URL: {error}", where=where, allowed=allowed, try_=try_
        ) from error
    if parts.scheme not in _PORTS or not parts.hostname:
        lack = "no host" if parts.scheme in _PORTS else "no http:// or https:// before its host"
        shown = shown_url(url)
        raise SpecError(
            f"{shown!r} has {lack}",
            where=where,
            allowed=allowed,
            try_=try_ if "://" in url or not url or " " in url or shown != url else f"http://{url}",
        )
    if parts.query or parts.fragment:
        raise SpecError(
            "the URL has a query or a fragment", where=where, allowed=allowed, try_=try_
        )
    if where == "URL" and parts.username is not None:
        raise SpecError(
            "the URL has credentials, which would be stored",
            where=where,
            try_="export INFEROMETER_API_KEY=…, or --header",
        )
    return parts, Place(
        host=parts.hostname, port=port or _PORTS[parts.scheme], is_tls=parts.scheme == "https"
    )


# How are secrets kept off the disk and the screen where a server says them aloud.
# In an error's words, or in where it points to?


_LEAST_CHARACTERS: Final = 8
"""Shorter values (``1``, ``true``) are words of any answer, and no secret."""


class Hider:
    """Replaces secrets in text by asterisks of the same length."""

    def __init__(self, secrets: Secrets, texts: Sequence[str] = ()) -> None:
        """``texts``: further texts that were sent and may be secret."""
        values = [value for _, value in secrets.headers] + [
            secrets.proxy_authorization or "",
            *texts,
        ]
        words = {
            word for value in values for word in value.split() if len(word) >= _LEAST_CHARACTERS
        }
        self._words = tuple(sorted(words, key=len, reverse=True))
        self._bytes = tuple(word.encode() for word in self._words)

    def data(self, data: bytes) -> bytes:
        """The bytes without secrets."""
        for word in self._bytes:
            if word in data:
                data = data.replace(word, b"*" * len(word))
        return data

    def text(self, text: str) -> str:
        """The text without secrets."""
        for word in self._words:
            text = text.replace(word, "*" * len(word))
        return text
