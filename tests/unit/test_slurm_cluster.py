"""What a Slurm cluster says of itself, and of nodes that it does not show."""

from pathlib import Path

import pytest

from coordinate_eval.errors import ClusterSilent, UserError
from coordinate_eval.slurm.cluster import SlurmCluster
from coordinate_eval.slurm.settings import SlurmSettings

TESTS = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Has Slurm's commands on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    fakes = TESTS / "fakes" / "slurm-24.11"
    (folder / "scontrol").write_text(f'#!/bin/sh\n[ "$*" = ping ] || exec {fakes}/scontrol "$@"\n')
    (folder / "sinfo").write_text("#!/bin/sh\necho 'slurm-wlm 24.11.5'\n")
    for command in folder.iterdir():
        command.chmod(0o755)
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder


DENIED = "slurm_load_node error: Access/permission denied"
SILENT = "slurm_load_node error: Unable to contact slurm controller (connect failure)"


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        (DENIED, UserError, r"shows you no nodes \(PrivateData=nodes\).*ask"),
        (SILENT, ClusterSilent, "Unable to contact"),
    ],
)
def test_nodes_that_slurm_does_not_tell(
    commands: Path, words: str, kind: type[Exception], message: str
) -> None:
    script = commands / "scontrol"
    told = script.read_text()
    script.write_text(
        told.replace("exec", f'case "$*" in *nodes) echo "{words}" >&2; exit 1;; esac; exec')
    )
    for _ in range(2):
        with pytest.raises(kind, match=message) as caught:
            SlurmCluster(SlurmSettings()).nodes()
        assert "\n" not in str(caught.value)
    script.write_text(told)
    assert [node.name for node in SlurmCluster(SlurmSettings()).nodes()[0]] == ["a1"]


def test_a_cluster_describes_itself(commands: Path) -> None:
    script = commands / "scontrol"
    script.write_text(
        script.read_text().replace("] ||", "] && echo 'Slurmctld(primary) at a is UP' ||")
    )
    assert SlurmCluster(SlurmSettings()).about() == {
        "controller": "Slurm 24.11.5: Slurmctld(primary) at a is UP",
        "partition low (default)": "state UP, jobs of any length",
    }
