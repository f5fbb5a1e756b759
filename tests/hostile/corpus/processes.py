"""Programs that outlive their run, or harm other processes."""

from tests.hostile.program import EVERYWHERE, Must, Program

PROGRAMS = [
    Program(
        "forks-twice",
        "leave a grandchild in a session of its own",
        """
        for _ in range(3):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    linger()
                os._exit(0)
        """,
        levels=EVERYWHERE,
    ),
    Program(
        "forgets-its-environment",
        "leave children that were started with an empty environment",
        """
        for variables in ({}, {"HOME": "/nowhere", "A": "b"}):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.execve(sys.executable, [
                        "x", "-I", "-S", "-c", "import time; time.sleep(1000)"], variables)
                os._exit(0)
        time.sleep(0.3)
        """,
        levels=EVERYWHERE,
    ),
    Program(
        "hides-its-environment",
        "leave a child that nobody may look into, and that has another name",
        """
        if os.fork() == 0:
            os.setsid()
            open("/proc/self/comm", "w").write("kworker/0:1")
            call("prctl", 4, 0, 0, 0, 0)
            linger()
        time.sleep(0.2)
        """,
        levels=EVERYWHERE,
    ),
    Program(
        "becomes-a-sibling",
        "leave a child whose parent is the parent of the program",
        """
        if platform.machine() == "x86_64":
            result, _ = call("clone", 0x8000 | signal.SIGCHLD, 0, 0, 0, 0)
            if result == 0:
                os.environ.clear()
                os.setsid()
                if call("clone", 0x8000 | signal.SIGCHLD, 0, 0, 0, 0)[0] == 0:
                    os.execve(sys.executable, [
                        "x", "-I", "-S", "-c", "import time; time.sleep(1000)"], {})
                linger()
            time.sleep(0.3)
        """,
        levels=EVERYWHERE,
    ),
    Program(
        "adopts-orphans",
        "become the reaper of its orphans, and leave one that does the same",
        """
        call("prctl", 36, 1, 0, 0, 0)
        if os.fork() == 0:
            call("prctl", 36, 1, 0, 0, 0)
            os.setsid()
            if os.fork() == 0:
                os.execve(sys.executable, [
                    "x", "-I", "-S", "-c", "import time; time.sleep(1000)"], {})
            linger()
        time.sleep(0.3)
        """,
        levels=EVERYWHERE,
    ),
    Program(
        "hands-on-its-life",
        "be another process each few milliseconds, so that no list of processes is ever true",
        """
        if os.fork() == 0:
            os.setsid()
            call("prctl", 4, 0, 0, 0, 0)
            while True:
                if os.fork():
                    os._exit(0)
                time.sleep(0.0005)
        time.sleep(0.5)
        """,
        levels=EVERYWHERE,
    ),
    Program(
        "lives-as-a-zombie",
        "leave processes whose first thread has ended, which look dead",
        """
        for _ in range(3):
            if os.fork() == 0:
                os.setsid()
                threading.Thread(target=linger, daemon=True).start()
                time.sleep(0.05)
                call("exit", 0)
        time.sleep(0.4)
        """,
        levels=EVERYWHERE,
    ),
    Program(
        "ends-its-first-thread",
        "go on in a second thread after the first, which was to report, has ended",
        """
        threading.Thread(target=linger).start()
        time.sleep(0.05)
        call("exit", 0)
        """,
        Must.FAIL,
        EVERYWHERE,
        seconds=2.0,
    ),
    Program(
        "kills-everybody",
        "kill each process that it may, itself too",
        """
        os.kill(-1, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        Must.FAIL,
    ),
    Program(
        "kills-its-wrapper",
        "kill its parent and process 1 and stay",
        """
        if os.fork() == 0:
            os.setsid()
            for pid in {os.getppid(), *others()}:
                for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGHUP):
                    try:
                        os.kill(pid, number)
                    except OSError:
                        pass
            linger()
        time.sleep(1)
        """,
        Must.END,
    ),
    Program(
        "stops-everybody",
        "stop each process that it may, so that nobody can clean up",
        """
        if os.fork() == 0:
            os.setsid()
            os.kill(-1, signal.SIGSTOP)
            linger()
        time.sleep(2)
        """,
        Must.END,
        seconds=4.0,
    ),
    Program(
        "stops-itself",
        "stop, and leave stopped children",
        """
        if os.fork() == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGSTOP)
        """,
        Must.TIME_OUT,
        EVERYWHERE,
        seconds=2.0,
    ),
    Program(
        "signals-its-group",
        "signal the process groups around it: its own, its parent's, and that of everybody",
        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
            for group in (0, os.getpgid(0), os.getpgid(os.getppid())):
                try:
                    os.killpg(group, number)
                except (OSError, ValueError):
                    pass
        """,
        Must.END,
    ),
    Program(
        "bombs-by-forks",
        "fork for ever",
        """
        while True:
            try:
                os.fork()
            except OSError:
                pass
        """,
        Must.FAIL,
        EVERYWHERE,
        seconds=2.0,
        slow=True,
    ),
    Program(
        "bombs-without-a-trace",
        "fork for ever in sessions of their own, each without an environment and unseen",
        """
        call("prctl", 4, 0, 0, 0, 0)
        while True:
            try:
                if os.fork() == 0:
                    os.setsid()
            except OSError:
                time.sleep(0.001)
        """,
        Must.FAIL,
        EVERYWHERE,
        seconds=2.0,
        slow=True,
    ),
    Program(
        "counts-processes",
        "have more processes than the limit",
        """
        made = 0
        while made < 200:
            try:
                if os.fork() == 0:
                    linger()
            except OSError:
                break
            made += 1
        if made > 64:
            raise Broke(f"{made} processes")
        """,
    ),
    Program(
        "counts-threads",
        "have more threads than the limit",
        """
        made = 0
        while made < 200:
            try:
                threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
            except RuntimeError:
                break
            made += 1
        if made > 64:
            raise Broke(f"{made} threads")
        """,
    ),
    Program(
        "floods-with-zombies",
        "never wait for its children, and leave them to process 1",
        """
        for _ in range(400):
            try:
                if os.fork() == 0:
                    if os.fork() == 0:
                        os._exit(0)
                    os._exit(0)
            except OSError:
                break
        """,
        Must.END,
        EVERYWHERE,
    ),
    Program(
        "freezes-in-vfork",
        "wait for a child that shares its memory and never ends",
        """
        if platform.machine() == "x86_64":
            libc.vfork.restype = ctypes.c_int
            if call("vfork")[0] == 0:
                time.sleep(1000)
        time.sleep(1000)
        """,
        Must.TIME_OUT,
        EVERYWHERE,
        seconds=2.0,
    ),
    Program(
        "keeps-the-pipes-open",
        "leave a child that holds every descriptor open, and writes to them",
        """
        if os.fork() == 0:
            os.setsid()
            while True:
                for descriptor in range(3, 64):
                    try:
                        os.set_blocking(descriptor, False)
                        os.write(descriptor, b"x" * 4096)
                    except OSError:
                        pass
                time.sleep(0.01)
        time.sleep(0.2)
        """,
        Must.END,
        EVERYWHERE,
    ),
    Program(
        "takes-priority",
        "take real-time priority, a lower nice value, or that of others",
        """
        attempts = (
            lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)),
            lambda: os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1)),
            lambda: os.setpriority(os.PRIO_PROCESS, 0, -10),
            lambda: open("/proc/self/oom_score_adj", "wb", 0).write(b"-500"),
        )
        for number, attempt in enumerate(attempts):
            try:
                attempt()
            except OSError:
                continue
            raise Broke(f"attempt {number}")
        """,
        levels=EVERYWHERE,
    ),
    Program(
        "raises-its-limits",
        "raise the limits that were set for it",
        """
        import resource
        for name in ("AS", "CPU", "FSIZE", "NPROC", "NOFILE", "CORE"):
            kind = getattr(resource, f"RLIMIT_{name}")
            soft, hard = resource.getrlimit(kind)
            if hard == resource.RLIM_INFINITY:
                raise Broke(f"{name} has no limit")
            try:
                resource.setrlimit(kind, (hard + 1, hard + 1))
            except (OSError, ValueError):
                continue
            raise Broke(name)
        """,
        levels=EVERYWHERE,
    ),
    Program(
        "is-not-the-first-to-be-killed",
        "let the kernel choose another process when memory is short",
        """
        own = int(open("/proc/self/oom_score_adj").read())
        if own < 500:
            raise Broke(f"oom_score_adj is {own}")
        """,
        levels=EVERYWHERE,
    ),
]
