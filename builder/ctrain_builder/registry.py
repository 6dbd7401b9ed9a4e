"""The registry API of OCI, read only: what a tag points to, which tags there are, what an image says about itself.

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

from ctrain_builder import credentials
from ctrain_builder.web import Answer, Web, follow, host, is_this_machine, origin
from ctrain_runtime.errors import ConfigError, RegistryError

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
        scheme = "http" if is_this_machine(self.host) else "https"
        return f"{scheme}://{'registry-1.' if self.host == 'docker.io' else ''}{self.host}/v2/{self.repository}"

    def __str__(self) -> str:
        return f"{self.name}@{self.digest}" if self.digest else f"{self.name}:{self.tag}"


def parse(text: str) -> Reference:
    """Read HOST[:PORT]/NAME[:TAG][@DIGEST], with Docker's defaults. Raises ConfigError."""
    match = _REFERENCE.fullmatch(text)
    if not match:
        raise ConfigError(f"{text!r} is not a reference to a docker image", "Write it as HOST/NAME:TAG")
    where, name = (match["host"] or "docker.io") + (match["port"] or ""), match["name"]
    if where == "docker.io" and "/" not in name:
        name = f"library/{name}"
    return Reference(where, name, match["tag"] or "latest", match["digest"] or "")


class Registry:
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
        self._environ, self._page = environ, page
        self._web = Web(timeout, pause)
        self._authorization: dict[str, str] = {}  # of each repository: the header that it was satisfied with

    def digest(self, reference: str) -> str:
        """The digest ("sha256:...") of what a reference points to: an image, or an index of images for several CPUs."""
        return self._manifest(parse(reference))[0]

    def tags(self, repository: str) -> tuple[str, ...]:
        """All tags of a repository (HOST/NAME), in the registry's order."""
        ref = parse(repository)
        found: dict[str, None] = {}  # a set with an order
        url = f"{ref.api}/tags/list?n={self._page}"
        while True:
            answer = self._get(url, ref)
            tags = answer.data().get("tags")
            page = dict.fromkeys(map(str, tags)) if isinstance(tags, list) else {}
            links = requests.utils.parse_header_links(answer.headers.get("Link", ""))
            following = [link["url"] for link in links if link.get("rel") == "next"]
            if not following or page.keys() <= found.keys():  # or it would lead us in circles
                return tuple({**found, **page})
            found.update(page)
            there = urlsplit(follow(url, following[0]))
            url = f"{origin(url)}{there.path}?{there.query}"  # whatever host it names: our login is for this one

    def config(self, reference: str, arch: str = "amd64") -> dict[str, Any]:
        """What an image for Linux on `arch` is configured with: `Env`, `Labels` and so on."""
        ref, manifest = self._image(reference, arch)
        digest = str(manifest["config"].get("digest"))
        answer = self._get(f"{ref.api}/blobs/{digest}", ref)
        _check_digest(answer, digest, ref)
        config = answer.data().get("config")
        return config if isinstance(config, dict) else {}

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
        manifest = self._manifest(ref)[1]
        if "manifests" in manifest:
            ref = replace(ref, digest=_choose(manifest, arch, ref))
            manifest = self._manifest(ref)[1]
        if not isinstance(manifest.get("config"), dict):
            raise _damaged(ref)
        return ref, manifest

    def _manifest(self, ref: Reference) -> tuple[str, dict[str, Any]]:
        """(digest, content). The digest is computed from the content."""
        answer = self._get(f"{ref.api}/manifests/{ref.digest or ref.tag}", ref, ", ".join(_MANIFESTS))
        for claimed in (ref.digest, answer.headers.get("Docker-Content-Digest")):
            _check_digest(answer, claimed, ref)
        data = answer.data()
        if not isinstance(data.get("manifests"), list) and not isinstance(data.get("config"), dict):
            raise RegistryError(
                f"{ref} is no image in the format of OCI or Docker 2", f"{ref.host} sends something else"
            )
        return _digest(answer), data

    def _get(self, url: str, ref: Reference, accept: str = "*/*") -> Answer:
        """GET from a repository; when it asks for a login, once more with one. Raises RegistryError."""
        answer = self._web.fetch(url, {"Accept": accept, "Authorization": self._authorization.get(ref.name, "")})
        # If we were sent to another host, that is who asks, and our login is not for it.
        if answer.status == 401 and origin(answer.url) == origin(url):
            self._authorization[ref.name] = self._log_in(answer, ref)
            answer = self._web.fetch(url, {"Accept": accept, "Authorization": self._authorization[ref.name]})
        if answer.status != 200:
            raise self._refusal(answer, ref)
        return answer

    def _log_in(self, answer: Answer, ref: Reference) -> str:
        """The header Authorization that a 401 asks for: a login, or a token for it (or for nobody in particular)."""
        asked = answer.headers.get("WWW-Authenticate", "")
        challenges = {match[1].lower(): match[2] for match in _CHALLENGE.finditer(asked)}
        login = credentials.find(ref.host, self._environ)
        if "bearer" in challenges:
            return "Bearer " + self._token(dict(_FIELD.findall(challenges["bearer"])), login, ref)
        if "basic" in challenges and login:
            return login.basic
        raise self._refusal(answer, ref)

    def _token(self, asked: Mapping[str, str], login: Optional[credentials.Login], ref: Reference) -> str:
        """A token to pull from the repository, and for no more, from the service that the registry names."""
        realm = asked.get("realm", "")
        query = {"service": asked.get("service", ""), "scope": f"repository:{ref.repository}:pull"}
        if login and login.name == credentials.TOKEN:
            form = {"grant_type": "refresh_token", "refresh_token": login.secret, "client_id": "ctrain", **query}
            answer = self._web.fetch(realm, {}, form)
        else:
            url = f"{realm}{'&' if '?' in realm else '?'}{urlencode(query)}"
            answer = self._web.fetch(url, {"Authorization": login.basic if login else ""})
        if answer.status != 200:
            raise self._refusal(answer, ref)
        data = answer.data()
        return str(data.get("token") or data.get("access_token"))

    def _refusal(self, answer: Answer, ref: Reference) -> RegistryError:
        """Why there is no answer, and what to do."""
        if answer.status in (401, 403):
            hint = f"Log in with: apptainer registry login --username NAME docker://{ref.host}"
            return RegistryError(f"{ref.host} does not let us read {ref.repository} without the right login", hint)
        if answer.status != 404 or not answer.url.startswith(ref.api):
            return RegistryError(f"{host(answer.url)} answers {answer.status} {answer.reason} when asked for {ref}")
        if "/manifests/" not in answer.url:
            hint = "Look at its spelling; what needs a login may be hidden like this too"
            return RegistryError(f"{ref.host} has no repository {ref.repository}", hint)
        if ref.digest:
            return RegistryError(
                f"{ref.host} has no image {ref.digest} in {ref.repository}", "It may have been deleted"
            )
        tags = self.tags(ref.name)
        near = difflib.get_close_matches(ref.tag, tags, n=3) or tags[-3:]
        return RegistryError(f"{ref.name} has no tag {ref.tag}", f"It has {', '.join(near)}" if near else "It has none")


def _digest(answer: Answer) -> str:
    return f"sha256:{hashlib.sha256(answer.body).hexdigest()}"


def _check_digest(answer: Answer, claimed: Optional[str], ref: Reference) -> None:
    if claimed and claimed != _digest(answer):
        hint = "What it sends is damaged or forged: don't use it, and tell its keepers"
        raise RegistryError(f"{ref.host} lies about {ref}: {claimed} is in truth {_digest(answer)}", hint)


def _damaged(ref: Reference) -> RegistryError:
    return RegistryError(f"{ref} is a damaged index of images", f"Tell the keepers of {ref.host}")


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
