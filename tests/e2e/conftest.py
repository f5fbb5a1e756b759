"""One user of this machine, for whole runs on it."""

import pytest
from tests.runs import Workspace


@pytest.fixture(scope="session")
def user(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Requests are built once for all of its runs. Two GPUs are made up."""
    made = Workspace(tmp_path_factory.mktemp("user"))
    made.environ |= {"COORDINATE_EVAL_CLUSTER": "local", "COORDINATE_EVAL_LOCAL_GPUS": "2"}
    return made
