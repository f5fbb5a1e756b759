"""Nodes that Slurm shows only to administrators, and answers that tell nothing."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinate_eval.errors import ClusterSilent, UserError
from coordinate_eval.slurm.cluster import SlurmCluster
from coordinate_eval.slurm.settings import SlurmSettings

TESTS = Path(__file__).parents[1]
NOTHING = {"errors": [{"error": "Unspecified error", "errno": -1}], "nodes": []}
DENIED = "slurm_load_node error: Access/permission denied"
SILENT = "slurm_load_node error: Unable to contact slurm controller (connect failure)"

Says = Callable[[str, str], None]


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Says:
    """Installs Slurm of a version that prints no node as JSON and answers the text form so."""
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "nothing.json").write_text(json.dumps(NOTHING))

    def say(version: str, text: str) -> None:
        sinfo = f"#!/bin/sh\n[ $1 = -V ] && echo slurm {version} || cat {tmp_path}/nothing.json\n"
        scontrol = (
            "#!/bin/sh\n"
            'case "$*" in\n'
            "*partition) echo 'PartitionName=low Default=YES State=UP' ;;\n"
            f"*nodes*) {text} ;;\n"
            "*) exit 0 ;;\n"
            "esac\n"
        )
        for name, script in (("sinfo", sinfo), ("scontrol", scontrol)):
            (tmp_path / name).write_text(script)
            (tmp_path / name).chmod(0o755)

    return say


@pytest.mark.parametrize("version", ["22.05.8", "24.11.5"])
def test_hidden_nodes_are_the_administrators_to_show(says: Says, version: str) -> None:
    """22.05 prints an error that tells nothing, and later versions fail as the text form does."""
    says(version, f"echo '{DENIED}' >&2; exit 1")
    for _ in range(2):
        with pytest.raises(
            UserError, match=r"shows you no nodes \(PrivateData=nodes\).*ask"
        ) as hit:
            SlurmCluster(SlurmSettings()).nodes()
        assert "\n" not in str(hit.value)


def test_an_error_that_tells_nothing_of_a_silent_controller_is_silence(says: Says) -> None:
    says("22.05.8", f"echo '{SILENT}' >&2; exit 1")
    cluster = SlurmCluster(SlurmSettings())
    with pytest.raises(ClusterSilent, match="Unable to contact"):
        cluster.nodes()
    says("22.05.8", f"cat {TESTS}/fixtures/slurm/nodes-22.05.txt")
    assert [node.name for node in cluster.nodes()[0]] == ["node1"]
    assert cluster.about()["reader"] == "Slurm's commands"
