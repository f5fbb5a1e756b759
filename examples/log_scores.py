"""Log the scores of a run that has ended, such as to the tracker that has the training loss.

In `config.toml`, with the full path of this file:

    after_run = ["python3", "/shared/evals/log_scores.py"]

Each run calls it with its directory when it ends. The lines that are yours replace the print.
"""

import json
import subprocess
import sys


def main(run: str) -> None:
    """Log the main score of each dataset of a run, and the run's training step."""
    asked = ["coordinate-eval", "scores", run, "--output-format", "json"]
    answer = subprocess.run(asked, stdout=subprocess.PIPE, check=True)
    (row,) = json.loads(answer.stdout)["rows"]
    scores = {f"eval/{name}": score["value"] for name, score in row["scores"].items()}
    # Yours, for example:
    #   wandb.init(project="pretraining", id="run-7", resume="allow").log(
    #       scores | {"eval/step": row["step"]})
    print(json.dumps({"step": row["step"], "complete": row["complete"]} | scores))


if __name__ == "__main__":
    main(sys.argv[1])
