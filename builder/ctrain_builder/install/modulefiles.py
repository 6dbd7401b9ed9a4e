"""Module files of ctrain's versions, for environment-modules (Tcl) and for Lmod (Lua): `module load ctrain`.

As those of a store's images (store/views/modules.py), both kinds share a directory. The paths of prefixes need no
quotes.
"""

from __future__ import annotations

from ctrain_builder.files import atomic
from ctrain_builder.install.prefix import Prefix

_WHATIS = "Description: ctrain {}: distributed deep learning in containers"
_HELP = "Start with: ctrain doctor, ctrain run --help, ctrain help"


def write(prefix: Prefix) -> None:
    """Write those of all complete versions, and that the current one is the default."""
    directory = prefix.modulefiles / "ctrain"
    directory.mkdir(parents=True, exist_ok=True)
    for installation in prefix.installations():
        version, path = installation.version, prefix.version(installation.version) / "bin"
        whatis = _WHATIS.format(version)
        atomic.write_text(
            directory / version,
            f'#%Module1.0\nproc ModulesHelp {{ }} {{\n    puts stderr "{_HELP}"\n}}\n'
            f'module-whatis "{whatis}"\nconflict ctrain\nprepend-path PATH "{path}"\n',
        )
        atomic.write_text(
            directory / f"{version}.lua",
            f'help("{_HELP}")\nwhatis("{whatis}")\nconflict("ctrain")\nprepend_path("PATH", "{path}")\n',
        )
    name = f"ctrain/{prefix.current_version()}"
    atomic.write_text(directory / ".modulerc", f"#%Module1.0\nmodule-version {name} default\n")
    atomic.write_text(directory / ".modulerc.lua", f'module_version("{name}", "default")\n')
