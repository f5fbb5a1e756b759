"""The settings of a site that runs Slurm."""

import re
from typing import Literal, NamedTuple

from pydantic import Field, field_validator

from coordinate_eval.records import Record
from coordinate_eval.slurm.environment import ANOTHER_CLUSTER

_EXCLUDE = re.compile(r"(?:--exclude[=\s]|-x\s*)\s*(\S+)")
"""An option that names nodes which no job may use."""


class Chosen(NamedTuple):
    """The place where jobs of one kind run, and who pays for them."""

    partition: str
    account: str
    qos: str
    reservation: str


class SlurmSettings(Record):
    """Options of every batch script of a site. An empty one leaves the choice to Slurm."""

    partition: str = Field(default="", description="partition of trials and keepers")
    cpu_partition: str = Field(
        default="",
        description="partition of all other jobs, which need no GPU; if not set, `partition`",
    )
    account: str = Field(default="", description="account to charge")
    cpu_account: str = Field(
        default="", description="account of the jobs of `cpu_partition`; if not set, `account`"
    )
    qos: str = Field(default="", description="quality of service (QOS)")
    cpu_qos: str = Field(
        default="", description="QOS of the jobs of `cpu_partition`; if not set, `qos`"
    )
    reservation: str = Field(
        default="",
        pattern=r"^([A-Za-z0-9_.+@:][A-Za-z0-9_.+@:-]{0,255})?$",
        description="reservation of all jobs but those of another `cpu_partition`",
    )
    gpu_type: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9_.+-]{0,100}$",
        description="type of the GPUs for which Slurm has no type, such as h100",
    )
    constraint: str = Field(default="", description="features that nodes with GPUs must have")
    memory: Literal[True, False, "per-cpu"] = Field(
        default=True,
        description="how jobs ask for memory: true, with --mem; per-cpu, with --mem-per-cpu, "
        "where the site refuses --mem; false, not at all, where Slurm does not know the nodes' "
        "RealMemory",
    )
    supervisor: Literal["job", "login"] = Field(
        default="job",
        description="where supervisors of runs work: job, in a job of one core; login, in a "
        "process on the machine of the command, for sites whose compute nodes have no sbatch",
    )
    setup: tuple[str, ...] = Field(
        default=(), description="shell lines that run before each job, such as `module load`"
    )
    environment: tuple[str, ...] = Field(
        default=(),
        description="more variables that jobs get from the submitter: names, or beginnings and *",
    )
    extra_args: tuple[str, ...] = Field(
        default=(),
        description="more options for sbatch; with `--exclusive`, jobs with GPUs get whole nodes; "
        "with `--exclude=gpu[1-3]`, no job of a run uses these nodes",
    )

    @field_validator("extra_args")
    @classmethod
    def _of_this_cluster(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        for option in options:
            if re.match(r"\s*(--clusters?(\s|=|$)|-M)", option):
                raise ValueError(
                    f"{option!r} may submit to another cluster than the one whose nodes and jobs "
                    f"are looked at: take it out; {ANOTHER_CLUSTER}"
                )
        return options

    @property
    def exclude(self) -> str:
        """Return the nodes that no job may use, such as gpu[1-3],gpu7: the last `--exclude`."""
        found = (_EXCLUDE.fullmatch(option.strip()) for option in self.extra_args)
        return next((match[1].strip("'\"") for match in reversed([*found]) if match), "")

    def of(self, gpu_work: bool) -> Chosen:
        """Return what is chosen for jobs of the GPU partition, or for all others."""
        if gpu_work:
            return Chosen(self.partition, self.account, self.qos, self.reservation)
        partition = self.cpu_partition or self.partition
        return Chosen(
            partition,
            self.cpu_account or self.account,
            self.cpu_qos or self.qos,
            self.reservation if partition == self.partition else "",
        )
