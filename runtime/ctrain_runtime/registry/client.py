"""The registry API of OCI: what a tag points to, which tags there are, what an image says about itself.

Manifests and configurations are checked against their digests, whatever the registry claims.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Optional
from urllib.parse import urlencode, urlsplit

import requests

from ctrain_runtime.errors import ConfigError, RegistryError
from ctrain_runtime.registry import credentials
from ctrain_runtime.registry.http_client import (
    GET,
    HttpClient,
    Request,
    Response,
    follow,
    host,
    origin,
    server,
)

PULL, PUSH = "pull", "pull,push"  # what a token is for
_STRANGE = "Check for a proxy or login page, or report it to its administrators"
_FORM = {"Content-Type": "application/x-www-form-urlencoded"}
_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    r"(?:docker://)?"
    r"(?:(?P<host>localhost|\[[0-9a-f:]+\]|[\w-]+(?=:\d)|[\w-]+(?:\.[\w-]+)+)(?P<port>:\d+)?/)?"
    rf"(?P<name>{_PART}(?:/{_PART})*)(?::(?P<tag>\w[\w.-]{{0,127}}))?(?:@(?P<digest>sha256:[0-9a-f]{{64}}))?",
    re.ASCII,
)
_CHALLENGE = re.compile(r'(bearer|basic)((?:[\s,]+\w+\s*=\s*(?:"[^"]*"|[^\s,"]+))*)', re.IGNORECASE)
_FIELD = re.compile(r'(\w+)\s*=\s*"?((?<=")[^"]*|[^\s,"]+)')


@dataclass(frozen=True)
class Reference:
    """What a docker reference names. `digest` is "" where it has only a tag."""

    host: str
    repository: str
    tag: str
    digest: str

    @property
    def name(self) -> str:
        """Without tag and digest."""
        return f"{self.host}/{self.repository}"

    @property
    def api(self) -> str:
        return f"{server(f'registry-1.{self.host}' if self.host == 'docker.io' else self.host)}/v2/{self.repository}"

    def __str__(self) -> str:
        return f"{self.name}@{self.digest}" if self.digest else f"{self.name}:{self.tag}"


def parse(text: str) -> Reference:
    """Read HOST[:PORT]/NAME[:TAG][@DIGEST], with Docker's defaults. Raises ConfigError."""
    match = _REFERENCE.fullmatch(text)
    if not match:
        raise ConfigError(f"{text!r} is not a reference to an image of a registry", "Write it as HOST/NAME:TAG")
    where, name = (match["host"] or "docker.io") + (match["port"] or ""), match["name"]
    if where == "docker.io" and "/" not in name:
        name = f"library/{name}"
    return Reference(where, name, match["tag"] or "latest", match["digest"] or "")


class RegistryClient:
    """A client of all registries; it keeps connections and tokens for as long as it lives.

    `timeout` is how many seconds an answer may take in all, `page` how many tags are asked for at a time.
    """

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        timeout: float = 30,
        page: int = 1000,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._environ, self._page, self.pause = environ, page, pause
        self._web = HttpClient(timeout, pause)
        self._authorization: dict[tuple[str, str], str] = {}  # what a repository was satisfied with, for which actions

    def digest(self, reference: str) -> str:
        """The digest ("sha256:...") of what a reference points to: an image, or an index of images for several CPUs."""
        return self.manifest(parse(reference))[0]

    def tags(self, repository: str) -> tuple[str, ...]:
        """All tags of a repository (HOST/NAME), in the registry's order."""
        ref = parse(repository)
        return self._pages(f"{ref.api}/tags/list", ref, "tags")

    def repositories(self, where: str) -> tuple[str, ...]:
        """All repositories of a host. Not every registry tells them."""
        ref = Reference(where, "", "", "")
        return self._pages(f"{ref.api}_catalog", ref, "repositories")

    def _pages(self, url: str, ref: Reference, key: str) -> tuple[str, ...]:
        collected: dict[str, None] = {}  # a set with an order
        url = f"{url}?n={self._page}"
        while True:
            answer = self._get(url, ref)
            names = answer.data().get(key)
            page = dict.fromkeys(map(str, names)) if isinstance(names, list) else {}
            links = requests.utils.parse_header_links(answer.headers.get("Link", ""))
            following = [link["url"] for link in links if link.get("rel") == "next"]
            if not following or page.keys() <= collected.keys():  # or it would lead us in circles
                return tuple({**collected, **page})
            collected.update(page)
            page_url = urlsplit(follow(url, following[0]))
            url = f"{origin(url)}{page_url.path}?{page_url.query}"  # whatever host it names: our login is for this one

    def config(self, reference: str, arch: str = "amd64") -> dict[str, Any]:
        """What an image for Linux on `arch` is configured with: `Env`, `Labels` and so on."""
        ref, manifest = self._image(reference, arch)
        config = self.blob(manifest["config"], ref).data().get("config")
        return config if isinstance(config, dict) else {}

    def blob(self, descriptor: Mapping[str, Any], ref: Reference) -> Response:
        """A small blob that a manifest names, as its configuration."""
        digest = str(descriptor.get("digest"))
        answer = self._get(f"{ref.api}/blobs/{digest}", ref)
        _check_digest(answer, digest, ref)
        return answer

    def size(self, reference: str, arch: str = "amd64") -> int:
        """Bytes of the layers of an image for Linux on `arch`, as they are stored: compressed."""
        ref, manifest = self._image(reference, arch)
        try:
            return sum(int(layer["size"]) for layer in manifest["layers"])
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(ref) from error

    def _image(self, reference: str, arch: str) -> tuple[Reference, dict[str, Any]]:
        """The manifest of one image, and what names it: of an index the part for `arch`."""
        ref = parse(reference)
        manifest = self.manifest(ref)[1]
        if "manifests" in manifest:
            ref = replace(ref, digest=_choose(manifest, arch, ref))
            manifest = self.manifest(ref)[1]
        if not isinstance(manifest.get("config"), dict):
            raise _damaged(ref)
        return ref, manifest

    def has(self, ref: Reference) -> bool:
        """Whether a repository that we may write to has such a tag."""
        url = f"{ref.api}/manifests/{ref.tag}"
        answer = self.ask(url, ref, {"Accept": ", ".join(_MANIFESTS)}, Request("HEAD"), PUSH)
        if answer.status not in (200, 404):
            raise self.refusal(answer, ref, PUSH)
        return answer.status == 200

    def manifest(self, ref: Reference) -> tuple[str, dict[str, Any]]:
        """(digest, content). The digest is computed from the content."""
        return self._content(self._ask_manifest(ref), ref)

    def find(self, ref: Reference, actions: str = PULL) -> Optional[tuple[str, dict[str, Any]]]:
        """The same; None where there is no such tag, or no such repository."""
        answer = self._ask_manifest(ref, actions)
        return None if answer.status == 404 else self._content(answer, ref, actions)

    def _ask_manifest(self, ref: Reference, actions: str = PULL) -> Response:
        url = f"{ref.api}/manifests/{ref.digest or ref.tag}"
        return self.ask(url, ref, {"Accept": ", ".join(_MANIFESTS)}, actions=actions)

    def _content(self, answer: Response, ref: Reference, actions: str = PULL) -> tuple[str, dict[str, Any]]:
        """What is in the answer to such a question. Raises RegistryError."""
        if answer.status != 200:
            raise self.refusal(answer, ref, actions)
        for claimed in (ref.digest, answer.headers.get("Docker-Content-Digest")):
            _check_digest(answer, claimed, ref)
        data = answer.data()
        if not isinstance(data.get("manifests"), list) and not isinstance(data.get("config"), dict):
            raise RegistryError(
                f"{ref} is no image in the format of OCI or Docker 2", f"{ref.host} sends something else"
            )
        return digest_of(answer.body), data

    def _get(self, url: str, ref: Reference) -> Response:
        """GET from a repository: what it has. Raises RegistryError."""
        answer = self.ask(url, ref, {"Accept": "*/*"})
        if answer.status != 200:
            raise self.refusal(answer, ref)
        return answer

    def ask(
        self, url: str, ref: Reference, headers: Mapping[str, str], call: Request = GET, actions: str = PULL
    ) -> Response:
        """Ask for something of a repository; when it asks for a login, once more with one. Raises RegistryError."""
        if origin(url) != origin(ref.api):  # an upload may be sent elsewhere, and our login is not for there
            return self._web.fetch(url, headers, call)
        before = self._authorization.get((ref.name, actions), "")
        answer = self._web.fetch(url, {**headers, "Authorization": before}, call)
        if _asks_for_login(answer, url) and before and not call.body:
            # It has run out. Who still shows it may be sent to a service that serves only users with a name: nvcr.io
            # names authn.nvidia.com then (NVIDIA/nvidia-container-toolkit#1945), and its own service without a token.
            self._authorization.pop((ref.name, actions), None)
            answer = self._web.fetch(url, headers, call)
        if _asks_for_login(answer, url):
            self._authorization[ref.name, actions] = self._log_in(answer, ref, actions)
            answer = self._web.fetch(url, {**headers, "Authorization": self._authorization[ref.name, actions]}, call)
        return answer

    def _log_in(self, answer: Response, ref: Reference, actions: str) -> str:
        """The header Authorization that a 401 asks for: a login, or a token for it (or for nobody in particular)."""
        header = answer.headers.get("WWW-Authenticate", "")
        challenges = {match[1].lower(): match[2] for match in _CHALLENGE.finditer(header)}
        login = credentials.find(ref.host, self._environ)
        if "bearer" in challenges:
            return "Bearer " + self._token(dict(_FIELD.findall(challenges["bearer"])), login, ref, actions)
        if "basic" in challenges and login:
            return login.basic
        raise self.refusal(answer, ref, actions)

    def _token(
        self, fields: Mapping[str, str], login: Optional[credentials.Login], ref: Reference, actions: str
    ) -> str:
        """A token for these actions in the repository, and for no more, from the service that the registry names."""
        realm = fields.get("realm", "")
        if not realm.startswith(("https://", "http://")):
            raise RegistryError(f"{ref.host} names no address where tokens are to be had", _STRANGE)
        scope = f"repository:{ref.repository}:{actions}" if ref.repository else "registry:catalog:*"
        service = fields.get("service", "")  # Docker's client names none, rather than an empty one
        query = {**({"service": service} if service else {}), "scope": scope}
        if login and login.name == credentials.TOKEN:
            form = {"grant_type": "refresh_token", "refresh_token": login.secret, "client_id": "ctrain", **query}
            answer = self._web.fetch(realm, _FORM, Request("POST", urlencode(form).encode()))
        else:
            url = f"{realm}{'&' if '?' in realm else '?'}{urlencode(query)}"
            answer = self._web.fetch(url, {"Authorization": login.basic if login else ""})
        if answer.status != 200:
            raise self.refusal(answer, ref, actions)
        data = answer.data()
        token = data.get("token") or data.get("access_token")
        if not isinstance(token, str) or not (token.isascii() and token.isprintable()):  # or no header could hold it
            raise RegistryError(f"{host(answer.url)} did not return a token for {ref.host}", _STRANGE)
        return token

    def refusal(self, answer: Response, ref: Reference, actions: str = PULL) -> RegistryError:
        """Why there is no answer, and what to do."""
        if answer.status in (401, 403):
            hint = f"Log in with: apptainer registry login --username NAME docker://{ref.host}"
            access = f"{'write' if actions == PUSH else 'read'} access"
            return RegistryError(f"{ref.host} denies {access} to {ref.repository or 'its list of repositories'}", hint)
        if not ref.repository:
            return RegistryError(f"{ref.host} does not list its repositories", "Name the images")
        if answer.status != 404 or not answer.url.startswith(ref.api):
            return RegistryError(f"{host(answer.url)} answers {answer.status} {answer.reason} when asked for {ref}")
        if "/manifests/" not in answer.url:
            hint = "Check the spelling; a registry may also hide what needs a login"
            return RegistryError(f"{ref.host} has no repository {ref.repository}", hint)
        if ref.digest:
            return RegistryError(
                f"{ref.host} has no image {ref.digest} in {ref.repository}", "It may have been deleted"
            )
        tags = self.tags(ref.name)
        near = difflib.get_close_matches(ref.tag, tags, n=3) or tags[-3:]
        return RegistryError(f"{ref.name} has no tag {ref.tag}", f"It has {', '.join(near)}" if near else "It has none")


def _asks_for_login(answer: Response, url: str) -> bool:
    """Whether it is the host of `url` that does: another one, to which we were sent, gets no login of ours."""
    return answer.status == 401 and origin(answer.url) == origin(url)


def digest_of(content: bytes) -> str:
    """As in sha256:9f2c..."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _check_digest(answer: Response, claimed: Optional[str], ref: Reference) -> None:
    if claimed and claimed != digest_of(answer.body):
        hint = "Do not use it; report it to the registry's administrators"
        problem = f"digest mismatch from {ref.host} for {ref}: announced {claimed}, received {digest_of(answer.body)}"
        raise RegistryError(problem, hint)


def _damaged(ref: Reference) -> RegistryError:
    return RegistryError(f"{ref} is a damaged index of images", f"Report it to the administrators of {ref.host}")


def _choose(index: Mapping[str, Any], arch: str, ref: Reference) -> str:
    """The digest of the image for Linux on `arch`."""
    try:
        digests = {
            f"{part['platform']['os']}/{part['platform']['architecture']}": str(part["digest"])
            for part in index["manifests"]
        }
    except (KeyError, TypeError):
        digests = {}
    if f"linux/{arch}" not in digests:
        raise RegistryError(f"{ref} has no image for linux/{arch}", f"It has {', '.join(sorted(digests)) or 'none'}")
    return digests[f"linux/{arch}"]
