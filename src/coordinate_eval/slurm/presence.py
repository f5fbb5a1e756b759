"""Whether this machine belongs to a Slurm cluster."""

import os
import shutil
from pathlib import Path

from coordinate_eval.errors import ClusterError
from coordinate_eval.slurm.client import SlurmClient

_CONFIGURATIONS = (Path("/etc/slurm/slurm.conf"), Path("/run/slurm/conf/slurm.conf"))
_PROBE_SECONDS = 15.0


def slurm_configured() -> bool:
    """Return whether this machine belongs to a Slurm cluster, reachable or not.

    The answer is yes even if the configuration is missing or the controller is silent. The user
    should then see that error, and not get a run on another scheduler.
    """
    if os.environ.get("SLURM_CONF") or os.environ.get("SLURM_CONF_SERVER"):
        return True
    if any(path.exists() for path in _CONFIGURATIONS):
        return True
    if shutil.which("scontrol") is None:
        return False
    # The configuration may have another path, or be found through DNS: scontrol knows.
    try:
        SlurmClient(_PROBE_SECONDS).run("scontrol", "ping")
    except ClusterError as error:
        return "configuration source" not in str(error)
    return True
