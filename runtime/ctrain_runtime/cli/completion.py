"""Print the shell script that completes commands, options, jobs, sites and image names.

  source <(ctrain completion bash)      # in ~/.bashrc
  source <(ctrain completion zsh)       # in ~/.zshrc, after compinit

If ctrain has no completion, the shell completes file names.
"""

from __future__ import annotations

import argparse

from ctrain_runtime.cli.main import COMPLETE

# $2: bash breaks words at `:` and `=` (COMP_WORDBREAKS) and replaces only the part after them.
_BASH = f"""\
_ctrain() {{
    mapfile -t COMPREPLY < <(ctrain {COMPLETE} "${{COMP_LINE:0:COMP_POINT}}" "$2" 2>/dev/null)
}}
complete -o default -F _ctrain ctrain
"""
# Also a function of compinit's, which reads the first line and calls the file.
_ZSH = f"""\
#compdef ctrain
_ctrain() {{
    local -a candidates
    candidates=("${{(@f)$(ctrain {COMPLETE} "${{(j: :)words[1,CURRENT-1]}} $PREFIX" "$PREFIX" 2>/dev/null)}}")
    if [[ -n $candidates ]]; then compadd -- $candidates; else _files; fi
}}
if [[ $funcstack[1] == _ctrain ]]; then _ctrain "$@"; else compdef _ctrain ctrain; fi
"""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=list(_SCRIPTS))


def execute(args: argparse.Namespace) -> int:
    print(_SCRIPTS[args.shell], end="")
    return 0
