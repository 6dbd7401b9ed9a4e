from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from ctrain_runtime.base import strict_yaml
from ctrain_runtime.errors import ConfigError, SiteError
from ctrain_runtime.site import files, model, select
from ctrain_runtime.site.select import load_site, select_site
from samples.programs import answer

SYSTEM = Path("etc/ctrain/sites")
USER = Path("config/ctrain/sites")
BUILT_IN = files.BUILT_IN_DIR


def write(path: Path, text: str) -> Path:
    """A file below the current directory, which conftest makes the home of all layers but the built-in one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path.absolute()


@pytest.fixture
def slurm(programs: Path) -> None:
    for name in ("sinfo", "sbatch", "srun"):
        answer(programs, name)


@pytest.mark.usefixtures("programs")
def test_a_machine_without_a_scheduler_is_local() -> None:
    selected = select_site()
    assert (selected.site.name, selected.site.scheduler) == ("local", "local")
    assert (selected.reason, selected.explicit) == ("detected: no scheduler here", False)


@pytest.mark.usefixtures("slurm")
def test_a_machine_with_slurm() -> None:
    selected = select_site()
    assert (selected.site.name, selected.reason) == ("generic-slurm", "detected: sinfo, sbatch, srun")
    assert not selected.explicit


@pytest.mark.usefixtures("slurm")
def test_the_site_with_the_most_criteria_wins(tmp_path: Path) -> None:
    write(SYSTEM / "aaa.yaml", "scheduler: slurm\ndetect: {commands: [sinfo, sbatch, srun]}\n")
    assert select_site().site.name == "generic-slurm"  # on a tie, the lowest
    detect = f"{{commands: [sinfo, sbatch, srun], paths: [{tmp_path}]}}"
    write(SYSTEM / "ours.yaml", f"scheduler: slurm\ndetect: {detect}\n")
    selected = select_site()
    assert (selected.site.name, selected.reason) == ("ours", f"detected: sinfo, sbatch, srun, {tmp_path}")


@pytest.mark.usefixtures("slurm")
def test_a_site_inherits_criteria_only_if_it_adds_some(tmp_path: Path) -> None:
    write(SYSTEM / "debug.yaml", "extends: generic-slurm\npartition: debug\n")
    assert select_site().site.name == "generic-slurm"
    write(SYSTEM / "ours.yaml", f"extends: generic-slurm\ndetect: {{paths: [{tmp_path}]}}\n")
    assert select_site().reason == f"detected: sinfo, sbatch, srun, {tmp_path}"
    write(SYSTEM / "ours.yaml", "extends: generic-slurm\ndetect: {paths: [/not/there]}\n")
    assert select_site().site.name == "generic-slurm"


@pytest.mark.usefixtures("slurm")
def test_only_sites_that_may_apply_are_read_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command asks all sites, and YAML is slow to read; a user's file may change the criteria."""
    write(USER / "polaris.yaml", "partition: mine\n")
    whole, read = [], files.read_site_file
    monkeypatch.setattr(files, "read_site_file", lambda path, *more: whole.append(path.stem) or read(path, *more))
    assert select_site().site.name == "generic-slurm"
    assert sorted(whole) == ["generic-slurm", "polaris", "polaris"]


@pytest.mark.usefixtures("slurm")
def test_the_files_of_an_installation_lie_below_those_of_the_machine(installed: Path) -> None:
    write(installed / "sites/generic-slurm.yaml", "partition: gpu\ncomment: all\n")
    write(SYSTEM / "generic-slurm.yaml", "comment: this machine\n")
    selected = select_site()
    assert (selected.site.partition, selected.site.comment) == ("gpu", "this machine")
    assert selected.sources["partition"] == f"{installed}/sites/generic-slurm.yaml (installation)"
    write(installed / "sites/ours.yaml", f"scheduler: slurm\ndetect: {{paths: [{installed}, /, /usr, /etc]}}\n")
    assert select_site().site.name == "ours"


def test_the_store_of_an_installation_is_the_default(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    selected = select_site("local")
    assert selected.store_dirs() == (f"{installed}/store",)
    assert selected.sources["stores"] == f"{installed} (installation)"
    assert select_site("neuron").store_dirs() == ("/apps/applications/singularity_images/ctrain",)
    write(USER / "local.yaml", "stores: [/ours]\n")
    assert select_site("local").store_dirs() == ("/ours",)
    monkeypatch.setenv("CTRAIN_STORE", "/mine")
    assert select_site("local").store_dirs() == ("/mine",)


def test_administrators_of_an_installation_can_demand_signatures(installed: Path) -> None:
    write(installed / "sites/local.yaml", "require_signature: true\n")
    write(USER / "local.yaml", "require_signature: false\n")
    with pytest.raises(SiteError, match="require_signature cannot be changed"):
        select_site("local")


@pytest.mark.parametrize("path", sorted(BUILT_IN.glob("*.yaml")), ids=lambda path: path.stem)
def test_criteria_are_read_without_the_rest_of_a_file(path: Path) -> None:
    assert strict_yaml.read_key(path, "detect") == strict_yaml.read(path).get("detect")


@pytest.mark.usefixtures("programs")
def test_a_site_whose_own_criteria_do_not_match_is_not_read_further() -> None:
    """Configuration that is shared between clusters names sites that only some of them have."""
    write(USER / "elsewhere.yaml", "extends: nowhere\ndetect: {paths: [/not/there]}\n")
    write(USER / "titan.yaml", "partition: mine\n")
    assert select_site().site.name == "local"


def test_layers_from_the_lowest_to_the_highest(monkeypatch: pytest.MonkeyPatch) -> None:
    system = write(
        SYSTEM / "generic-slurm.yaml", "partition: etc\ncomment: etc\nruns: /etc\nstores: [/etc]\nmounts: [/etc]\n"
    )
    user = write(USER / "generic-slurm.yaml", "partition: user\ncomment: user\nruns: /user\nstores: [/user]\n")
    project = write(Path("ctrain.yaml"), "partition: project\ncomment: project\nruns: /project\n")
    monkeypatch.setenv("CTRAIN_RUNS", "/variable")
    selected = select_site("generic-slurm", {"partition": "option", "comment": "", "store": None, "name": "x"})
    found = selected.site
    assert (found.partition, selected.sources["partition"]) == ("option", "--partition")
    assert (found.runs, selected.sources["runs"]) == ("/variable", "CTRAIN_RUNS")
    assert (found.comment, selected.sources["comment"]) == ("project", f"{project} (project)")
    assert (found.stores, selected.sources["stores"]) == (("/user",), f"{user} (user)")
    assert (found.mounts, selected.sources["mounts"]) == (("/etc",), f"{system} (system)")
    assert (found.scheduler, selected.sources["scheduler"]) == (
        "slurm",
        f"{BUILT_IN / 'generic-slurm.yaml'} (built-in)",
    )
    assert (found.mpi, selected.sources["mpi"]) == (("pmix", "pmi2"), "default")


def test_one_store_stands_for_all_that_are_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    write(USER / "local.yaml", "stores: [/a, /b]\n")
    assert select_site("local").site.stores == ("/a", "/b")
    monkeypatch.setenv("CTRAIN_STORE", "/c")
    assert select_site("local").site.stores == ("/c",)
    selected = select_site("local", {"store": "/d", "runs": "/r"})
    assert (selected.site.stores, selected.sources["stores"]) == (("/d",), "--store")
    assert selected.site.runs == "/r"


def test_mappings_merge_and_keep_their_sources() -> None:
    write(SYSTEM / "generic-slurm.yaml", "env: {A: '1', B: '1', C: '1'}\ndatasets: {imagenet: /data}\n")
    user = write(USER / "generic-slurm.yaml", "env: {B: '2', C: null}\n")
    selected = select_site("generic-slurm")
    assert selected.site.env == {"A": "1", "B": "2"}
    assert selected.site.datasets == {"imagenet": "/data"}
    assert selected.sources["env.B"] == f"{user} (user)"
    assert "env.C" not in selected.sources


def test_null_gives_the_default_back() -> None:
    write(SYSTEM / "generic-slurm.yaml", "runs: /scratch\nmpi: [pmi2]\n")
    write(USER / "generic-slurm.yaml", "runs: null\nmpi: null\n")
    site = load_site("generic-slurm")[0]
    assert (site.runs, site.mpi) == ("~/ctrain-runs", ("pmix", "pmi2"))


def test_a_site_extends_another() -> None:
    write(SYSTEM / "base.yaml", "extends: generic-slurm\ndescription: base\npartition: a\nenv: {A: '1'}\n")
    write(USER / "mine.yaml", "extends: base\nenv: {B: '2'}\n")
    write(USER / "base.yaml", "partition: b\n")
    mine, sources = load_site("mine")
    assert (mine.name, mine.scheduler, mine.partition, mine.env) == ("mine", "slurm", "b", {"A": "1", "B": "2"})
    assert (mine.extends, mine.description, mine.detect) == ("base", "", model.Detect())
    assert sources["env.A"] == f"{(SYSTEM / 'base.yaml').absolute()} (system)"


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"a": "extends: b\n", "b": "extends: a\n"}, r"b\.yaml \(user\): extends is a cycle: a -> b -> a"),
        ({"a": "extends: a\n"}, r"a\.yaml \(user\): extends is a cycle: a -> a"),
        (
            {"a": "extends: generic-slrum\n"},
            r"a\.yaml \(user\): extends: unknown site 'generic-slrum'. Did you mean 'generic-slurm'\?",
        ),
        ({"a": "extends: ./b.yaml\n"}, r"a\.yaml \(user\): extends: unknown site './b.yaml'"),
        ({"a": "partition: x\n"}, r"a\.yaml \(user\): site a has no scheduler. Set `scheduler`, or `extends: SITE`"),
    ],
)
def test_sites_that_do_not_resolve(files: dict[str, str], complaint: str) -> None:
    for name, text in files.items():
        write(USER / f"{name}.yaml", text)
    with pytest.raises(SiteError, match=complaint):
        select_site("a")


def test_a_site_by_name_or_by_file() -> None:
    write(Path("mine.yaml"), "scheduler: local\npartition: x\n")
    write(Path("other.yaml"), "name: generic-slurm\nextends: generic-slurm\n")
    assert (select_site("neuron").reason, select_site("neuron").explicit) == ("requested", True)
    mine = select_site("./mine.yaml")
    assert (mine.site.name, mine.sources["partition"]) == ("mine", "mine.yaml")
    assert select_site("./other.yaml").site.name == "generic-slurm"


def test_who_requested_a_site(monkeypatch: pytest.MonkeyPatch) -> None:
    project = write(Path("ctrain.yaml"), "site: neuron\n")
    selected = select_site()
    assert (selected.site.name, selected.reason, selected.explicit) == ("neuron", f"requested by {project}", True)
    monkeypatch.setenv("CTRAIN_SITE", "generic-slurm")
    selected = select_site()
    assert (selected.site.name, selected.reason, selected.explicit) == (
        "generic-slurm",
        "requested by CTRAIN_SITE",
        True,
    )
    assert select_site("local").site.name == "local"


def test_an_unknown_site(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SiteError, match=r"^unknown site 'generic-slrum'. Did you mean 'generic-slurm'\?$"):
        select_site("generic-slrum")
    with pytest.raises(
        SiteError, match=r"^unknown site 'nowhere'. Sites: .*generic-slurm, .*local, .*; or the path of a site"
    ):
        select_site("nowhere")
    with pytest.raises(SiteError, match=r"^site file not found: titan/x.yaml$"):
        select_site("titan/x.yaml")
    write(Path("ctrain.yaml"), "site: generic-slrum\n")
    with pytest.raises(
        SiteError, match=r"^/.*/ctrain.yaml: site: unknown site 'generic-slrum'. Did you mean 'generic-slurm'"
    ):
        select_site()
    monkeypatch.setenv("CTRAIN_SITE", "titan/x.yaml")
    with pytest.raises(SiteError, match=r"^CTRAIN_SITE: site file not found: titan/x.yaml$"):
        select_site()


STRICT = "scheduler: slurm\nrequire_signature: true\ntrusted_keys: [/etc/k.pub]\n"


@pytest.mark.usefixtures("programs")
def test_a_project_cannot_lead_past_required_signatures(tmp_path: Path) -> None:
    write(SYSTEM / "ours.yaml", f"{STRICT}detect: {{paths: [{tmp_path}]}}\n")
    write(SYSTEM / "child.yaml", "extends: ours\n")
    write(SYSTEM / "other-key.yaml", "extends: ours\ntrusted_keys: [/etc/other.pub]\n")
    assert select_site().site.require_signature
    for weaker in ("local", "other-key"):
        write(Path("ctrain.yaml"), f"site: {weaker}\n")
        with pytest.raises(SiteError, match=rf"site {weaker} does not require the signatures that site ours requires"):
            select_site()
        assert select_site(weaker).site.name == weaker  # who asks for it, gets it
    write(Path("ctrain.yaml"), "site: child\npartition: x\n")
    assert (select_site().site.name, select_site().site.require_signature) == ("child", True)


def test_a_user_cannot_weaken_signatures_by_accident() -> None:
    write(SYSTEM / "ours.yaml", STRICT)
    write(USER / "ours.yaml", "require_signature: false\n")
    write(USER / "mine.yaml", "extends: ours\ntrusted_keys: []\n")
    write(Path("file.yaml"), "extends: ours\nrequire_signature: null\n")
    for name in ("ours", "mine", "./file.yaml"):
        with pytest.raises(SiteError, match=r"cannot be changed: .*ours.yaml \(system\) requires signatures"):
            select_site(name)


def test_nor_can_they_beneath_a_site_that_requires_them() -> None:
    write(SYSTEM / "base.yaml", "scheduler: slurm\ntrusted_keys: [/etc/k.pub]\n")
    write(SYSTEM / "ours.yaml", "extends: base\nrequire_signature: true\n")
    write(USER / "base.yaml", "trusted_keys: [/home/mine.pub]\n")
    assert load_site("base")[0].trusted_keys == ("/home/mine.pub",)
    with pytest.raises(SiteError, match=r"base.yaml \(user\): trusted_keys cannot be changed: .*ours.yaml"):
        load_site("ours")


def test_a_user_can_require_signatures() -> None:
    write(USER / "strict.yaml", f"extends: generic-slurm\n{STRICT}")
    assert select_site("strict").site.trusted_keys == ("/etc/k.pub",)


def test_the_comment_of_neuron_has_the_form_that_it_demands() -> None:
    """Since 2026-08-12: field=...;appl=..."""
    assert load_site("neuron")[0].comment == "field=efficientai;appl=pytorch"


@pytest.mark.parametrize("name", sorted(path.stem for path in BUILT_IN.glob("*.yaml")))
def test_the_sites_that_ship(name: str) -> None:
    shipped, sources = load_site(name)
    assert shipped.name == name
    assert shipped.description
    assert set(sources) >= set(shipped.__dataclass_fields__)


def test_a_named_site_reads_only_its_own_files() -> None:
    write(USER / "broken.yaml", "{")
    assert select_site("local").site.name == "local"
    assert "broken" in select.site_names()
    with pytest.raises(ConfigError, match=r"broken\.yaml, line 1"):
        select_site()


def test_expand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "kim")
    monkeypatch.setenv("HOME", "/home/kim")
    assert select.expand("/scratch/$USER/ctrain", "x") == "/scratch/kim/ctrain"
    assert select.expand("~/runs", "x") == "/home/kim/runs"
    assert select.expand("/a/${USER}s", "x") == "/a/kims"


@pytest.mark.parametrize("text", ["/scratch/$NOBODY_SET_THIS", "/cost/$5"])
def test_expand_never_leaves_a_hole(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^site neuron: runs: variable not set in '.*': "):
        select.expand(text, "site neuron: runs")


def test_the_home_of_nobody() -> None:
    with pytest.raises(ConfigError, match=r"^x: home directory not found: '~nobody-of-this-name/runs'$"):
        select.expand("~nobody-of-this-name/runs", "x")


def test_the_user_of_a_path_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """/scratch//ctrain is nobody's directory, or everybody's."""
    me = pwd.getpwuid(os.getuid()).pw_name
    for change in (lambda: monkeypatch.delenv("USER", raising=False), lambda: monkeypatch.setenv("USER", "")):
        change()
        assert select.expand("/scratch/$USER/ctrain", "x") == f"/scratch/{me}/ctrain"
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    with pytest.raises(ConfigError, match=r"^neuron\.yaml: runs: variable not set in '/scratch/\$USER/ctrain': 'USER'"):
        select.expand("/scratch/$USER/ctrain", "neuron.yaml: runs")
    monkeypatch.setenv("SCRATCH", "")
    with pytest.raises(ConfigError, match=r"^x: variable not set in"):
        select.expand("$SCRATCH/runs", "x")
