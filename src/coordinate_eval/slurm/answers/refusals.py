"""The meaning of sbatch's words when it refuses a job. Nothing here runs a command.

Slurm's words are those of `slurm_errno.c` and of the reasons of pending jobs, 20.11 to 26.05. A
site's own submission plugin (job_submit, cli_filter) may use any others: the settings that its
words speak of are named.
"""

import re

from coordinate_eval.errors import ArrayRefused, SettingsRefused, SubmitLater, SubmitRefused

# Slurm is full now, or this user's or account's jobs are. Limits on what a single job may ask for
# are not among them.
_LATER = re.compile(
    r"maxsubmit|grpsubmit|maxjobcount|job queue full|resource temporarily unavailable"
    r"|unable to create job record|job creation temporarily disabled|temporarily unable to accept"
    r"|rate limit exceeded|i/o error writing script|error generating job credential"
    r"|operation is presently disabled|system submissions disabled|required partition not available"
    r"|try again (in a bit|later)"
)

# Before 20.11 nothing else is said of a limit. Only one on the number of jobs refuses a job by
# default; others leave it pending.
_POLICY = "job violates accounting/qos policy"
_REASON = re.compile(r"error: ((qos|assoc)\w+)")

# The highest index is below MaxArraySize, which may be too small for any array.
_ARRAY = "invalid job array specification"

# Slurm's words for a job that a plugin of the site refused. The plugin's own are on other lines.
_BY_A_PLUGIN = re.compile(
    r"unspecified error|cli_filter plugin terminated|access/permission denied|\(gres\)"
    r"|missing size specification"
)
_OF_SLURM = re.compile(r"job submission failed:|cli_filter plugin terminated|^(qos|assoc)\w+$")

# A site that takes no more jobs now, in its own words.
_SITE_LATER = re.compile(
    r"too many (jobs|submi)|(maximum|max\.?) (number )?of (\w+ ){0,2}jobs|submit jobs? now"
    r"|(currently|temporarily) (disabled|closed|suspended|unavailable|not accepting)"
    r"|under(going)? maintenance|in maintenance"
)

_PARTITION = "[slurm] partition, or cpu_partition for jobs without GPUs"
_ACCOUNT = "[slurm] account, or cpu_account for jobs without GPUs"
_QOS = "[slurm] qos, or cpu_qos for jobs without GPUs"
_TIME = "[trial] max_minutes"
_HOW_MEMORY = (
    '[slurm] memory ("per-cpu" asks with --mem-per-cpu, true with --mem, false not at all)'
)
_CPUS = "[trial] cpus, or [metrics] cpus for jobs without GPUs"
_MEMORY = "[trial] memory_gib, or that of [harness]"
_OPTIONS = "[slurm] extra_args"

# Nothing else that is asked for makes a job acceptable: the setting has to change.
_NEVER = (
    (r"invalid account", f"correct {_ACCOUNT}"),
    (r"invalid partition|no partition specified|multiple partition job", f"correct {_PARTITION}"),
    (r"group not permitted", f"choose a partition that takes this user's jobs: {_PARTITION}"),
    (r"invalid qos", f"correct {_QOS}"),
    (r"time limit is invalid|maxwall|invalid time-?min", f"lower {_TIME} to what is allowed"),
    (r"invalid feature|invalid constraint", "correct [slurm] constraint"),
    (
        r"to requested reservation|reservation is invalid|reservation has expired",
        "correct [slurm] reservation, or ask who made it to let you in",
    ),
    (
        r"invalid (license|wckey|mcs_label|--nice)|--batch option is invalid"
        r"|unrecognized option|invalid option|unknown option",
        f"correct {_OPTIONS}",
    ),
    (r"usage threshold", "choose another [slurm] account or qos"),
)

# What a site's own words speak of, and the setting. Of each setting the first line that is true
# counts. Sites' words: https://slurm.schedmd.com/job_submit_plugins.html has how they are printed.
# Letters of other alphabets may follow without a blank.
_SHORT = r"(?<![\w-])-"
_SPEAKS_OF = (
    (rf"\bpartitions?\b|\bqueues?\b|{_SHORT}p\b", _PARTITION),
    (rf"\bqos\b|quality of service|{_SHORT}q\b", _QOS),
    (
        r"\baccounts?\b|\bprojects?\b|\ballocations?\b|\bbudgets?\b|\bcredits?\b|\bbalance\b"
        rf"|service units|{_SHORT}a\b",
        _ACCOUNT,
    ),
    (
        r"\btime\b|time ?-?limit|\d:\d\d\b|too long|wall.?(clock|time)|run.?time"
        rf"|\b(minutes|days|hours?)\b|{_SHORT}t\b",
        _TIME,
    ),
    (
        r"(?<!per-)(?<!per )\b(cpus?|cores?)\b(?! ?-?(partition|queue|node|job))|threads?\b"
        rf"|{_SHORT}c\b",
        _CPUS,
    ),
    (r"\bconstraints?\b|\bfeatures?\b", "[slurm] constraint"),
    (r"\breservations?\b", "[slurm] reservation"),
)
# What an account has of a cluster, and no setting of a job.
_BUDGET = re.compile(
    r"\b(core|cpu|gpu|node)s?[ -](hours?|minutes|time(?! limit)|quota)\b", re.ASCII
)
# The user has too many files.
_FILES = re.compile(r"(?=.*\bquota)(?=.*\b(disk|file ?systems?|storage|home|scratch|inodes?)\b)")
# GPUs themselves, and not what is named after them.
_GPUS = re.compile(
    r"\bgres\b|\bgpus?\b(?![ -](jobs?|partitions?|queues?|nodes?|accounts?|projects?|allocations?"
    r"|qos|hours?|time|quota)\b)",
    re.ASCII,
)
_AMOUNT_OF_MEMORY = (
    r"\d ?([kmgt]i?b?)\b|exceed|more|less|too (much|large|high|low|little)|m(in|ax)imum"
)
_KNOWN_OPTIONS = {
    *("-p", "--partition", "-q", "--qos", "-a", "--account", "-t", "--time", "-c"),
    *("--cpus-per-task", "--cpus-per-gpu", "--mem", "--mem-per-cpu", "--constraint", "--gres"),
    *("--gpus", "-g", "--gpus-per-node", "--gpus-per-task", "--reservation", "--nodes", "--ntasks"),
}
# This user may not use something that has no name.
_RIGHTS = re.compile(
    r"(not|n't) (allowed|authori[sz]ed|permitted) to|access denied|not (in|a member of)\b"
    r"|no (access|permission)|not have (access|permission)"
)
_NAMED = re.compile(r"\b(partition|queue|qos|account|project|group)s?\b *[:=]? *['\"]?[\w.-]+")
_OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]+|-[a-z])(?![\w-])", re.ASCII)


def refusal(words: str, command: str, *, gpus: bool, bare: bool = False) -> SubmitRefused:
    """Return the error for a job that sbatch has refused with these `words`.

    Args:
        command: the one that submitted the job, for the second line of the message.
        gpus: the job asks for the partition of GPUs.
        bare: it asks for none of these GPUs. A job with some of them can do its work.
    """
    said = words.lower()
    text = f"Slurm refused the job: {_on_one_line(words)}"
    submitted = f"\n(submitted with {command})"
    own = _own_words(said)
    cures = _cures(own)
    policy = _POLICY in said and not _REASON.search(said)
    if _LATER.search(said) or (policy and not cures):
        return SubmitLater(text + submitted)
    if _ARRAY in said:
        return ArrayRefused(text + submitted)
    for pattern, cure in _NEVER:
        if re.search(pattern, said):
            # A plugin may give one of Slurm's reasons beside its own.
            more = "".join(f"; or set {each}" for each in cures if each not in cure)
            return SettingsRefused(f"{text}: {cure}{more}{submitted}")
    if not policy and not _BY_A_PLUGIN.search(said):
        own, cures = "", []
    if _SITE_LATER.search(own):
        return SubmitLater(text + submitted)
    if _FILES.search(own):
        return SettingsRefused(f"{text}: delete files where the quota is used up{submitted}")
    if _GPUS.search(_NAMED.sub("", own)) and (bare or not {*cures} - {_PARTITION}):
        if gpus:
            more = (
                "trials ask for GPUs with --gres; add what else is asked for to [slurm] extra_args"
            )
            return SubmitRefused(f"{text}; {more}{submitted}")
        where = "set [slurm] cpu_partition to a partition that takes jobs without GPUs"
        return SettingsRefused(f"{text}: {where}, and cpu_account or cpu_qos{submitted}")
    if cures:
        # Without a keeper its work is done by a job with other cores and memory.
        kind = SubmitRefused if bare and {_CPUS, _MEMORY} & {*cures} else SettingsRefused
        return kind(f"{text}: set what this speaks of: {'; '.join(cures)}{submitted}")
    if "access/permission denied" in said:
        return SettingsRefused(f"{text}: ask who administers the cluster{submitted}")
    if own:
        text += ". If the site asks for an option of sbatch, add it to [slurm] extra_args"
    elif not gpus:
        text += (
            ". If jobs without GPUs are not taken there, set [slurm] cpu_partition, cpu_account or "
            "cpu_qos"
        )
    return SubmitRefused(text + submitted)


def _cures(own: str) -> list[str]:
    """Return the settings that a site's own words speak of; none if there are no such words."""
    options = {*_OPTION.findall(own)}
    is_long = any(option.startswith("--") for option in options)
    if is_long and options.isdisjoint(_KNOWN_OPTIONS):
        return [_OPTIONS]
    own = _BUDGET.sub("budget", own)
    cures = [setting for pattern, setting in _SPEAKS_OF if re.search(pattern, own, re.ASCII)]
    if re.search(r"mem-per-cpu|\bmem(ory)?\b|\bram\b", own, re.ASCII):
        amount = "mem-per-cpu" not in own and re.search(_AMOUNT_OF_MEMORY, own)
        cures.append(_MEMORY if amount else _HOW_MEMORY)
    return cures or [_PARTITION, _ACCOUNT, _QOS] * bool(_RIGHTS.search(own))


def _own_words(said: str) -> str:
    """Return what a site's plugin says, without Slurm's own lines."""
    lines = (_without_prefix(line) for line in said.splitlines())
    own = "\n".join(line for line in lines if not _OF_SLURM.search(line))
    return re.sub(r"(https?://|www\.)\S+", "", own).strip()


def _on_one_line(words: str) -> str:
    lines = map(_without_prefix, words.splitlines())
    return "; ".join(line for line in lines if re.search(r"\w", line))


def _without_prefix(line: str) -> str:
    line = re.sub(r"\x1b\[[\d;]*m", "", line)  # a site's colors
    return re.sub(r"^sbatch: (error: )?", "", line.strip()).strip()
