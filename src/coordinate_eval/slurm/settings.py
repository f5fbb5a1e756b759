"""The settings of a site that runs Slurm."""

from pydantic import Field

from coordinate_eval.records import Record


class SlurmSettings(Record):
    """Options of every batch script of a site. An empty one leaves the choice to Slurm."""

    partition: str = Field(default="", description="partition of trials and keepers")
    cpu_partition: str = Field(
        default="",
        description="partition of all other jobs, which need no GPU; if not set, `partition`",
    )
    account: str = Field(default="", description="account to charge")
    qos: str = Field(default="", description="quality of service (QOS) of all jobs")
    constraint: str = Field(default="", description="features that nodes with GPUs must have")
    setup: tuple[str, ...] = Field(
        default=(), description="shell lines that run before each job, such as `module load`"
    )
    extra_args: tuple[str, ...] = Field(default=(), description="more options for sbatch")
    timeout_seconds: float = Field(
        default=60.0, gt=0, le=1e6, description="time limit of one Slurm command"
    )
