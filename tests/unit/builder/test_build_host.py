from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ctrain_builder.build_host import settings
from ctrain_builder.build_host.secrets import BuildSecret
from ctrain_runtime.errors import ConfigError


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    """An /etc of a Debian machine with the deb822 format."""
    folder = tmp_path / "etc"
    (folder / "apt/sources.list.d").mkdir(parents=True)
    (folder / "os-release").write_text('ID=debian\nVERSION_CODENAME="bookworm"\n')
    return folder


DEB822 = """\
Types: deb
URIs: https://other.example/apt
Suites: stable
Components: main

Types: deb deb-src
# an older one
URIs: http://mirror.example/debian/
Suites: bookworm
 bookworm-updates
Components: main contrib

Types: deb
URIs: http://mirror.example/security
Suites: bookworm-security
Components: main
"""


def test_the_mirror_from_deb822(etc: Path) -> None:
    (etc / "apt/sources.list.d/debian.sources").write_text(DEB822)
    assert settings.debian_mirror(etc) == "http://mirror.example/debian"


def test_the_mirror_from_a_list(etc: Path) -> None:
    (etc / "apt/sources.list").write_text(
        "# deb http://old.example/debian bookworm main\n"
        "deb http://s.example/debian-security bookworm-security main\n"
        "deb [arch=amd64 signed-by=/x] http://m.example/debian bookworm main # the one\n"
    )
    assert settings.debian_mirror(etc) == "http://m.example/debian"


def test_a_disabled_source_or_another_system_gives_none(etc: Path) -> None:
    (etc / "apt/sources.list.d/debian.sources").write_text(DEB822.replace("Types: deb ", "Enabled: no\nTypes: deb "))
    assert settings.debian_mirror(etc) == ""
    (etc / "apt/sources.list.d/debian.sources").write_text(DEB822)
    (etc / "os-release").write_text("ID=ubuntu\nVERSION_CODENAME=bookworm\n")
    assert settings.debian_mirror(etc) == ""


def test_local_package_directories_are_bound_and_renamed(etc: Path, tmp_path: Path) -> None:
    wheels, index = tmp_path / "wheels", tmp_path / "py pi" / "simple"
    wheels.mkdir()
    index.mkdir(parents=True)
    encoded = str(index).replace(" ", "%20")
    (etc / "pip.conf").write_text(f"[global]\nextra_index_url = file://{encoded} https://i.example/simple\n")
    (etc / "xdg/pip").mkdir(parents=True)
    (etc / "xdg/pip/pip.conf").write_text("[install]\nuser = yes\n")
    found = settings.detect({"HOME": str(tmp_path), "PIP_FIND_LINKS": f"{wheels} /not/there"}, etc)
    assert found.pip == {
        "extra-index-url": "file:///mnt/local/0/simple https://i.example/simple",
        "find-links": "file:///mnt/local/1 /not/there",
    }
    # Pages of an index link to ../../files, so the folder above is lent.
    assert found.package_dirs == (index.parent, wheels)
    assert found.binds[1] == f"{wheels}:/mnt/local/1:ro"


def test_user_files_and_variables_win_over_system_files(etc: Path, tmp_path: Path) -> None:
    (etc / "pip.conf").write_text("[global]\nindex-url = https://etc.example\ntimeout = 1\nretries = 1\n")
    (tmp_path / ".config/pip").mkdir(parents=True)
    (tmp_path / ".config/pip/pip.conf").write_text("[global]\ntimeout = 2\nretries = 2\n")
    found = settings.detect({"HOME": str(tmp_path), "PIP_RETRIES": "3"}, etc)
    assert found.pip == {"index-url": "https://etc.example", "timeout": "2", "retries": "3"}


def test_a_damaged_pip_conf_is_one_line(etc: Path, tmp_path: Path) -> None:
    (etc / "pip.conf").write_text("index-url\n")
    with pytest.raises(ConfigError, match=r"pip's configuration is damaged: .*pip\.conf"):
        settings.detect({"HOME": str(tmp_path)}, etc)


def test_certificates_are_those_of_pip_or_else_the_systems(etc: Path, tmp_path: Path) -> None:
    system, own = etc / "ssl/certs/ca-certificates.crt", tmp_path / "own.crt"
    system.parent.mkdir(parents=True)
    system.write_text("system")
    own.write_text("own")
    assert settings.detect({"HOME": str(tmp_path)}, etc).bundle == system
    assert settings.detect({"HOME": str(tmp_path), "PIP_CERT": str(own)}, etc).bundle == own


def test_the_bound_directory_can_be_sourced(etc: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.crt"
    own.write_text("own")
    environ = {"HOME": str(tmp_path), "SSL_CERT_FILE": str(own), "HTTPS_PROXY": "http://p.example:1/?a=b c"}
    lent = tmp_path / "lent"
    lent.mkdir()
    settings.write(settings.detect(environ, etc), lent)
    script = f'. {lent}/build-env.sh; echo "$https_proxy|$HTTPS_PROXY|$PIP_CERT"'
    said = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True).stdout
    proxy = "http://p.example:1/?a=b c"
    assert said == f"{proxy}|{proxy}|/mnt/ca-bundle.crt\n"
    assert (lent / "ca-bundle.crt").read_text() == "own"


def test_pip_in_a_build_has_the_machines_settings_alone(tmp_path: Path) -> None:
    """The image of this test names an index that is gone: for all users, for root, and by variables."""
    (tmp_path / "lent").mkdir()
    pip = {"index-url": "https://i.example/simple", "find-links": "/wheels /more", "timeout": "7"}
    settings.write(settings.BuildHost(pip, (), None, {}), tmp_path / "lent")
    for folder in ("xdg/pip", ".config/pip", ".pip"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "pip.conf").write_text("[global]\nextra-index-url = https://gone.invalid/\n")
    image = {
        "HOME": str(tmp_path),
        "XDG_CONFIG_DIRS": str(tmp_path / "xdg"),
        "PIP_EXTRA_INDEX_URL": "https://gone.invalid/",
    }
    script = f". {tmp_path}/lent/build-env.sh; {sys.executable} -m pip config list"
    done = subprocess.run(["/bin/sh", "-euc", script], env=image, capture_output=True, text=True, check=True)
    shown = [line for line in done.stdout.splitlines() if "config-file" not in line]
    assert sorted(shown) == [
        ":env:.find-links='/wheels /more'",
        ":env:.index-url='https://i.example/simple'",
        ":env:.timeout='7'",
    ]


SECRET = settings.BuildHost(
    {"index-url": "https://token:p%40ss@pypi.example/simple"},
    (),
    None,
    {"https_proxy": "http://kim:it's s3cret@proxy.example:3128"},
    "http://apt:aptpass@mirror.example/debian",
)


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_settings_are_sourced_untraced(tmp_path: Path, shell: str) -> None:
    settings.write(SECRET, tmp_path)
    script = f". {tmp_path}/build-env.sh\nprintenv HTTPS_PROXY > {tmp_path}/seen\nset > {tmp_path}/set\n"
    (tmp_path / "post").write_text(script)
    traced = subprocess.run([shell, "-eux", tmp_path / "post"], capture_output=True, text=True, check=True)
    assert (tmp_path / "seen").read_text() == "http://kim:it's s3cret@proxy.example:3128\n"
    assert "ctrain_trace" not in (tmp_path / "set").read_text()
    assert traced.stderr.splitlines() == [f"+ . {tmp_path}/build-env.sh", "+ printenv HTTPS_PROXY", "+ set"]
    silent = subprocess.run([shell, "-eu", tmp_path / "post"], capture_output=True, text=True, check=True)
    assert silent.stderr == silent.stdout == ""


def test_the_secrets_of_settings() -> None:
    assert set(SECRET.secrets) == {
        *("it's s3cret", "kim:it's s3cret@", "p%40ss", "p@ss", "token:p%40ss@", "token:p@ss@"),
        *("aptpass", "apt:aptpass@"),
    }


def test_build_secrets_are_mounted_for_post_and_kept_out_of_logs_and_layers(tmp_path: Path) -> None:
    secret = BuildSecret("hub", tmp_path / "token", ("correct-horse",))
    host = settings.BuildHost({}, (), None, {"http_proxy": "http://kim:s3cret@proxy"}, build_secrets=(secret,))
    assert host.binds == [f"{tmp_path}/token:/mnt/secrets/hub:ro"]
    assert host.secrets == ("correct-horse", "kim:s3cret@", "s3cret")
    settings.write(host, tmp_path)
    assert (tmp_path / "secrets/hub").read_text() == "", "where it is mounted"
    assert "correct-horse" not in (tmp_path / settings.ENVIRONMENT).read_text()
