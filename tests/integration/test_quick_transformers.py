"""What transformers looks up while it is imported is the same with less work."""

import subprocess
import sys

from tests.tiny import need

SCRIPT = """
import importlib.metadata
from pathlib import Path
from coordinate_eval.evaluators.quick_transformers import quicken

as_it_was = importlib.metadata.packages_distributions
quicken()
import transformers
from transformers.utils import import_utils

assert importlib.metadata.packages_distributions is as_it_was
of_packages = import_utils.PACKAGE_DISTRIBUTION_MAPPING
assert of_packages["transformers"] == ["transformers"]
# This version of transformers is one whose import is made quicker.
assert import_utils.create_import_structure_from_path.cache_info().maxsize is None
fetch = import_utils.fetch__all__
names = 0
for file in Path(transformers.__file__).parent.rglob("*.py"):
    text = file.read_text()
    assert fetch(text) == fetch.__wrapped__(text), file
    names += len(fetch(text))
assert names > 1000, names
for text in ("__all__ = ['a']", "x\\n__all__ = ['a']\\n__all__ = [\\n'b'\\n]\\n", "", "x __all__"):
    assert fetch(text) == fetch.__wrapped__(text), text
"""


def test_it_finds_the_same_names() -> None:
    need("transformers", "transformers")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
