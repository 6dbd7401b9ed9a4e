from __future__ import annotations

import os
from pathlib import Path

import pytest

from ctrain_runtime.errors import ConfigError, SiteError
from ctrain_runtime.site import files
from ctrain_runtime.site.layers import Level
from ctrain_runtime.site.model import Site


def write(path: Path, text: str = "partition: x\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_users_directory_follows_the_xdg_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/kim")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/conf")
    assert files.site_dirs()[Level.USER] == Path("/conf/ctrain/sites")
    for ignored in ("", "relative/conf"):
        monkeypatch.setenv("XDG_CONFIG_HOME", ignored)
        assert files.site_dirs()[Level.USER] == Path("/home/kim/.config/ctrain/sites")


def test_the_files_of_a_site_lowest_first(tmp_path: Path) -> None:
    name = "ctrain/sites/generic-slurm.yaml"
    system, user = write(tmp_path / "etc" / name), write(tmp_path / "config" / name)
    write(tmp_path / "config/ctrain/sites/.generic-slurm.yaml")
    write(tmp_path / "config/ctrain/sites/generic-slurm.yaml~")
    paths = files.site_paths()
    assert set(paths) == {path.stem for path in files.BUILT_IN_DIR.glob("*.yaml")}
    assert list(paths["generic-slurm"].values())[1:] == [system, user]


def test_a_directory_that_cannot_be_read_is_not_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(ConfigError, match=r"^cannot read .*sites: Permission denied"):
        files.site_paths()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("partition: x\nmpi: pmix\n", "s.yaml, line 2: mpi must be a list, not a string ('pmix')"),
        ("# a site\n\npartitoin: x\n", "s.yaml, line 3: unknown key 'partitoin'. Did you mean 'partition'?"),
        ("partitoin: null\n", "s.yaml, line 1: unknown key 'partitoin'. Did you mean 'partition'?"),
        ("detect: {command: [sinfo]}\n", "line 1: detect: unknown key 'command'. Did you mean 'commands'?"),
        ("env:\n  A: 1\n", "s.yaml, line 1: env.A must be a string, not an integer (1)"),
        ("site: slurm\n", "s.yaml, line 1: unknown key 'site'"),
        ("1: x\n", "s.yaml: unknown key 1"),
        ("cpus_per_gpu: 0\n", "line 1: cpus_per_gpu must be a positive integer, not 0"),
        ("partitions: {p: {nodes: -4, cpus: 8}}\n", "line 1: partitions.p.nodes must not be negative, but is -4"),
        (
            "partitions: {p: {nodes: 1, cpus: 2, threads_per_core: 0}}\n",
            "line 1: partitions.p.threads_per_core must be a positive integer, not 0",
        ),
        ("qos: {q: {max_nodes: 0}}\n", "line 1: qos.q.max_nodes must be a positive integer, not 0"),
        (
            "partitions: {p: {nodes: 1, cpus: 2, gpus: -1}}\n",
            "line 1: partitions.p.gpus must not be negative, but is -1",
        ),
        ("memory_per_gpu: true\n", "line 1: memory_per_gpu must be an integer or null, not a boolean (True)"),
        ("a: 1\na: 2\n", "s.yaml, line 2: duplicate key 'a'"),
        ("a: [\n", "s.yaml, line 2: "),
        ("- a\n", "s.yaml must be a mapping, not a list"),
        ("", "s.yaml must be a mapping, not null"),
        ("name: t\n", "s.yaml: name must be 's', the file's name, not 't'"),
    ],
)
def test_a_file_that_is_wrong_names_file_line_and_key(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        files.read_site_file(write(tmp_path / "s.yaml", text), Level.USER, Site)
    assert complaint in str(caught.value)


def test_a_file_with_some_keys(tmp_path: Path) -> None:
    path = write(tmp_path / "s.yaml", "partition: null\nenv: {A: null, B: '1'}\ncpus_per_gpu: 8\n")
    layer = files.read_site_file(path, Level.USER, Site)
    assert (layer.level, layer.source) == (Level.USER, f"{path} (user)")
    assert layer.values == {"name": "s", "partition": None, "env": {"A": None, "B": "1"}, "cpus_per_gpu": 8}


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "s.yaml")
    with pytest.raises(ConfigError, match=r"s\.yaml is not a regular file$"):
        files.read_site_file(tmp_path / "s.yaml", Level.USER, Site)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The deepest directory of a repository in a home; it is the current one."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home/repo/.git").mkdir(parents=True)
    directory = tmp_path / "home/repo/a/b"
    directory.mkdir(parents=True)
    monkeypatch.chdir(directory)
    return directory


def test_the_project_file_is_the_nearest_up_to_the_root_of_the_repository(project: Path) -> None:
    repository = project.parents[1]
    write(repository.parent / "ctrain.yaml")
    assert files.find_project_file() is None
    for directory in (repository, project.parent, project):
        write(directory / "ctrain.yaml")
        assert files.find_project_file() == directory / "ctrain.yaml"


def test_without_a_repository_the_search_ends_at_home(project: Path) -> None:
    (project.parents[1] / ".git").rmdir()
    home = project.parents[2]
    write(home.parent / "ctrain.yaml")
    assert files.find_project_file() is None
    assert write(home / "ctrain.yaml") == files.find_project_file()


def test_elsewhere_only_the_current_directory_counts(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.parents[1] / ".git").rmdir()
    monkeypatch.setenv("HOME", "/nowhere")
    write(project.parent / "ctrain.yaml")
    assert files.find_project_file() is None
    assert write(project / "ctrain.yaml") == files.find_project_file()


def test_parents_that_everyone_can_write_to_are_not_searched(project: Path) -> None:
    file = write(project.parents[1] / "ctrain.yaml")
    file.parent.chmod(0o1777)
    assert files.find_project_file() is None


def test_a_file_that_another_user_left_where_everyone_can_write(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(project / "ctrain.yaml")
    project.chmod(0o1777)
    assert files.find_project_file() == file
    if os.getuid() == 0:
        try:
            os.chown(file, 12345, -1)
        except OSError as error:
            pytest.skip(f"this user namespace has no other user: {error.strerror}")
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    with pytest.raises(SiteError, match=r"ctrain\.yaml belongs to another user, in a world-writable"):
        files.find_project_file()


def test_a_current_directory_that_was_deleted(project: Path) -> None:
    project.rmdir()
    assert files.find_project_file() is None


@pytest.mark.usefixtures("project")
def test_a_project_file() -> None:
    assert files.read_project_file(Site) is None
    path = write(Path("ctrain.yaml").absolute(), "site: neuron\npartition: x\nenv: {A: '1'}\n")
    file = files.read_project_file(Site)
    assert file
    assert (file.path, file.site) == (path, "neuron")
    assert (file.layer.level, file.layer.source) == (Level.PROJECT, f"{path} (project)")
    assert file.layer.values == {"partition": "x", "env": {"A": "1"}}


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("partition: x\nrequire_signature: false\n", "line 2: require_signature cannot be set by a project. Remove"),
        ("require_signature: null\n", "line 1: require_signature cannot be set by a project"),
        ("trusted_keys: [/tmp/mine.pub]\n", "line 1: trusted_keys cannot be set by a project"),
        ("scheduler: local\n", "line 1: scheduler cannot be set by a project"),
        ("engine: {path: ./x}\n", "line 1: engine cannot be set by a project"),
        ("extends: local\n", "line 1: extends cannot be set by a project"),
        ("detect: {}\n", "line 1: detect cannot be set by a project"),
        ("name: x\n", "line 1: name cannot be set by a project"),
        ("site: ./evil.yaml\n", "line 1: site must be the name of a site, not './evil.yaml'"),
        ("site: [a]\n", "line 1: site must be the name of a site, not ['a']"),
        ("sites: a\n", "line 1: unknown key 'sites'"),
        ("env: " + "[\n" * 2000, "nested too deeply"),
        ("env: &a {A: *a}\n", "line 1: found unconstructable recursive node"),
        ("runs: !!python/object/apply:os.getcwd []\n", "line 1: could not determine a constructor for the tag"),
        ("partition: 1\n", "line 1: partition must be a string"),
    ],
)
def test_a_project_file_that_is_wrong_or_hostile(text: str, complaint: str) -> None:
    path = write(Path("ctrain.yaml").absolute(), text)
    with pytest.raises(ConfigError) as caught:
        files.read_project_file(Site)
    assert str(caught.value).startswith(str(path))
    assert complaint in str(caught.value)


OLD = """\
# mine
expected_bandwidth:
  nccl: 90  # measured in May
  gloo: 1

# the partition
partition: x
"""


def test_a_saved_key_leaves_the_rest_of_a_file_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "config/ctrain/sites/generic-slurm.yaml", OLD)
    assert files.save_key("generic-slurm", "expected_bandwidth", {"gloo": 1.25}) == path
    new = "# mine\nexpected_bandwidth: {nccl: 90, gloo: 1.25}\n# the partition\npartition: x\n"
    assert path.read_text() == new
    files.save_key("generic-slurm", "expected_bandwidth", {"nccl": 96})
    assert path.read_text() == new.replace("90", "96")
    layer = files.read_site_file(path, Level.USER, Site)
    assert layer.values["expected_bandwidth"] == {"nccl": 96, "gloo": 1.25}


def test_a_saved_key_of_a_new_file_and_of_a_link(tmp_path: Path) -> None:
    path = tmp_path / "config/ctrain/sites/generic-slurm.yaml"
    files.save_key("generic-slurm", "expected_bandwidth", {"gloo": 1.25})
    assert path.read_text() == "expected_bandwidth: {gloo: 1.25}\n"
    path.rename(tmp_path / "real.yaml")
    path.symlink_to(tmp_path / "real.yaml")
    files.save_key("generic-slurm", "expected_bandwidth", {"gloo": 2})
    assert path.is_symlink()
    assert (tmp_path / "real.yaml").read_text() == "expected_bandwidth: {gloo: 2}\n"
    assert [file.name for file in tmp_path.glob("*.yaml")] == ["real.yaml"]
