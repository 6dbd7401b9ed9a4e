from __future__ import annotations

import json
from pathlib import Path

import pytest

from ctrain_builder.definitions.definition import Definition, parse
from ctrain_builder.layers import metadata
from ctrain_runtime.errors import BuildError

BUILT = 1795236725  # 2026-11-21 04:52:05 UTC
PARENT = {
    "Singularity": "old definition",
    "bootstrap_history/Apptainer0": "older",
    "env/90-environment.sh": "#!/bin/sh\nexport A=1\n",
    "labels.json": '{"org.x": "parent", "org.label-schema.usage.singularity.deffile.from": "old"}',
    "runscript": "#!/bin/sh\n",
}


def _definition(sections: str) -> Definition:
    return parse("x", Path("x.def"), f"Bootstrap: localimage\nFrom: parent\n{sections}")


def test_the_old_definition_moves_to_the_history_and_the_marker_is_the_key() -> None:
    files = metadata.for_layer(PARENT, _definition(""), "key1", BUILT)
    assert files["bootstrap_history/Apptainer1"] == "old definition"
    assert files["Singularity"].startswith("Bootstrap: localimage")
    assert files["ctrain-layer"] == "key1\n"
    assert set(files) == {"bootstrap_history/Apptainer1", "Singularity", "ctrain-layer", "labels.json"}


def test_environment_is_appended_and_scripts_replace() -> None:
    text = "%environment\n    export B=2\n%test -e\n    #!/bin/bash\n    true\n%runscript\n    run\n"
    files = metadata.for_layer(PARENT, _definition(text), "k", BUILT)
    assert files["env/90-environment.sh"] == "#!/bin/sh\nexport A=1\n\n    export B=2\n\n"
    assert files["test"] == "#!/bin/bash -e\n\n    true\n\n"
    assert files["runscript"] == "#!/bin/sh\n\n    run\n\n"
    assert metadata.mode("test") == 0o755
    assert metadata.mode("labels.json") == 0o644


def test_labels_add_but_do_not_replace_and_the_build_knows_better() -> None:
    parent = {**PARENT, metadata.BUILD_LABELS: "org.post from post\n\norg.flag\n"}
    files = metadata.for_layer(parent, _definition("%labels\n    org.x mine\n    org.y mine\n"), "k", BUILT)
    labels = json.loads(files["labels.json"])
    assert labels["org.x"] == "parent"
    assert labels["org.y"] == "mine"
    assert (labels["org.post"], labels["org.flag"]) == ("from post", "")
    assert labels["org.label-schema.usage.singularity.deffile.from"] == "parent"
    assert labels["org.label-schema.build-date"] == "Saturday_21_November_2026_4:52:5_UTC"


def test_dates_are_those_of_the_build_and_none_is_added() -> None:
    created = "org.opencontainers.image.created"

    def labels(parent: dict[str, str]) -> dict[str, str]:
        texts = metadata.for_layer({"labels.json": json.dumps(parent)}, _definition(""), "k", BUILT)
        return {name: value for name, value in json.loads(texts["labels.json"]).items() if "deffile" not in name}

    assert labels({"a": "b", created: "now"}) == {
        "a": "b",
        created: "2026-11-21T04:52:05Z",
        "org.label-schema.build-date": "Saturday_21_November_2026_4:52:5_UTC",
        "org.label-schema.schema-version": "1.0",
    }
    assert created not in labels({})


def test_the_first_help_of_a_chain_stays() -> None:
    help_text = _definition("%help\n    Help.\n")
    assert metadata.for_layer(PARENT, help_text, "k", BUILT)["runscript.help"] == "    Help.\n\n"
    assert "runscript.help" not in metadata.for_layer({**PARENT, "runscript.help": "first"}, help_text, "k", BUILT)


def test_inspection_has_what_the_engine_looks_for() -> None:
    told = metadata.inspection({**PARENT, "test": "t", "runscript.help": "h"}, {"org.y": "image"})
    attributes = told["data"]["attributes"]
    assert told["type"] == "container"
    assert (attributes["labels"]["org.x"], attributes["labels"]["org.y"]) == ("parent", "image")
    assert attributes["environment"] == {"/.singularity.d/env/90-environment.sh": "#!/bin/sh\nexport A=1"}
    assert (attributes["deffile"], attributes["test"], attributes["helpfile"]) == ("old definition", "t", "h")


@pytest.mark.parametrize("damaged", ["", "text", "[]", '{"a": 1}', "[" * 100_000])
def test_labels_that_post_has_damaged_are_an_error_in_one_line(damaged: str) -> None:
    with pytest.raises(BuildError, match=r"/.singularity.d/labels.json of the image is damaged"):
        metadata.for_layer({**PARENT, "labels.json": damaged}, _definition(""), "k", BUILT)
