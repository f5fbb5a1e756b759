"""The environment in which libraries report nothing to anybody.

Libraries read these variables when they are imported. The program sets them before anything else;
its jobs inherit them, and set them again.
"""

import os

NO_TELEMETRY = {
    # huggingface_hub and vLLM read the first of these, as other libraries do.
    "DO_NOT_TRACK": "1",
    "DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    # datasets and evaluate ask a server for each loader and metric, local ones too, to be counted.
    "HF_UPDATE_DOWNLOAD_COUNTS": "0",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Variables and values. They replace what the caller has set."""


def switch_off_telemetry() -> None:
    """Set these variables for libraries that are imported from now on, and for child processes."""
    os.environ.update(NO_TELEMETRY)
