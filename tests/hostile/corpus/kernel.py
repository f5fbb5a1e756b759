"""Programs that look for a way through the kernel."""

from tests.hostile.program import CONFINED, EVERYWHERE, Program


def _calls(name: str, tries: str, text: str) -> Program:
    """Return a program of calls that a filter refuses at each level: it needs no namespaces."""
    return Program(name, tries, text, levels=EVERYWHERE)


PROGRAMS = [
    Program(
        "nests-by-unshare",
        "have capabilities in a user namespace of its own, alone and with each other kind",
        """
        for name, flag in NAMESPACES.items():
            for flags in (flag, flag | NEW_USER):
                child = os.fork()
                if child == 0:
                    os._exit(0 if call("unshare", flags)[0] == 0 else 1)
                if os.waitpid(child, 0)[1] == 0:
                    raise Broke(f"{name} by {flags:#x}")
        """,
    ),
    Program(
        "nests-by-clone",
        "have a child in a user namespace of its own",
        """
        for flag in NAMESPACES.values():
            for flags in (flag, flag | NEW_USER):
                if platform.machine() == "x86_64" and flags != 0x80:  # the signal of clone
                    result, _ = call("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)
                    if result == 0:
                        os._exit(0)
                    if result > 0:
                        raise Broke(f"clone {flags:#x}")
        """,
    ),
    Program(
        "nests-by-clone3",
        "hide the flags of a clone in a structure, where a filter cannot look",
        """
        for flag in NAMESPACES.values():
            for flags in (flag, flag | NEW_USER):
                arguments = struct.pack("8Q", flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
                result, _ = call("clone3", arguments, len(arguments))
                if result == 0:
                    os._exit(0)
                if result > 0:
                    raise Broke(f"clone3 {flags:#x}")
        """,
    ),
    Program(
        "enters-namespaces",
        "enter the namespaces of process 1 and of its own children",
        """
        for pid in [*others(), "self"]:
            for kind in ("user", "mnt", "net", "pid", "ipc", "uts", "cgroup"):
                descriptor = opens(f"/proc/{pid}/ns/{kind}")
                if descriptor is not None and call("setns", descriptor, 0)[0] == 0:
                    raise Broke(f"{kind} of {pid}")
            number, _ = call("pidfd_open", pid, 0) if pid != "self" else (-1, 0)
            if number >= 0 and call("setns", number, 0x7E020000)[0] == 0:
                raise Broke(f"all of {pid}")
        """,
    ),
    Program(
        "nests-by-commands",
        "use the commands of the machine to get capabilities and a larger disk in memory",
        """
        import subprocess
        for command in ("unshare -Ur true", "unshare -Urn true", "unshare -Urm true",
                        "unshare -Urm mount -t tmpfs -o size=1g x /tmp",
                        "bwrap --ro-bind / / --unshare-all true", "nsenter -t 1 -U true"):
            done = subprocess.run(command, shell=True, capture_output=True)
            if done.returncode == 0:
                raise Broke(command)
        """,
    ),
    Program(
        "has-a-larger-disk",
        "mount a larger disk in memory inside a namespace of its own, and fill it",
        """
        if call("unshare", NEW_USER | NEW_MOUNTS)[0] == 0:
            call("mount", b"x", b"/tmp", b"tmpfs", 0, b"size=1g")
            total = 0
            try:
                for n in range(20):
                    with open(f"/tmp/{n}", "wb", buffering=0) as file:
                        for _ in range(16):
                            total += file.write(b"x" * (1 << 20))
            except OSError:
                pass
            raise Broke(f"{total >> 20} MiB")
        """,
    ),
    _calls(
        "uses-io-uring",
        "do by io_uring what a filter of calls forbids",
        """
        refused("io_uring_setup", 8, ctypes.create_string_buffer(120))
        refused(426, -1, 0, 0, 0, None, 0)
        refused(427, -1, 0, None, 0)
        """,
    ),
    _calls(
        "loads-programs-into-the-kernel",
        "use bpf, perf events, userfaultfd and fanotify",
        """
        refused("bpf", 0, struct.pack("IIII", 2, 4, 8, 1) + bytes(112), 128)
        refused("perf_event_open", struct.pack("IIQ", 1, 128, 0) + bytes(112), 0, -1, -1, 0)
        refused("userfaultfd", 1)
        refused("userfaultfd", 0)
        if opens("/dev/userfaultfd", os.O_RDWR) is not None:
            raise Broke("/dev/userfaultfd")
        refused("fanotify_init", 0x200, 0)
        """,
    ),
    _calls(
        "administers-the-machine",
        "load modules, reboot, set the clock and the name, swap, account, reach ports",
        """
        refused("init_module", b"x", 1, b"")
        refused("kexec_load", 0, 0, None, 0)
        refused("reboot", 0, 0, 0, None)
        refused("sethostname", b"x", 1)
        refused("clock_settime", 0, struct.pack("qq", 0, 0))
        refused("swapon", b"/tmp/x", 0)
        refused("acct", b"/tmp/x")
        refused("syslog", 3, ctypes.create_string_buffer(64), 64)
        if platform.machine() == "x86_64":
            refused("iopl", 3)
            refused("ioperm", 0, 8, 1)
        """,
    ),
    _calls(
        "looks-into-the-kernel",
        "compare, move and name what belongs to the kernel",
        """
        refused("kcmp", os.getpid(), os.getppid(), 0, 0, 0)
        refused("name_to_handle_at", -100, b"/usr", ctypes.create_string_buffer(136),
                ctypes.create_string_buffer(8), 0)
        refused("migrate_pages", 0, 64, ctypes.create_string_buffer(8),
                ctypes.create_string_buffer(8))
        refused("memfd_secret", 0)
        refused("lsm_set_self_attr", 100, None, 0, 0)
        if platform.machine() == "x86_64":
            refused("modify_ldt", 1, ctypes.create_string_buffer(16), 16)
        """,
    ),
    _calls(
        "tries-numbers-to-come",
        "find a call that is newer than the filter and works without arguments",
        """
        for number in (*range(463, 600), 1000, 4095, 2**31 - 1):
            result, _ = call(number, 0, 0, 0, 0, 0, 0)
            if result != -1:
                raise Broke(f"{number}: {result}")
        """,
    ),
    _calls(
        "calls-as-32-bits",
        "make calls with the numbers of another architecture, which a filter reads wrongly",
        """
        if platform.machine() == "x86_64":
            import mmap
            # push rbx; mov eax, edi; mov ebx, esi; mov ecx, edx; xor edx, edx; xor esi, esi;
            # int 0x80; pop rbx; ret
            code = bytes.fromhex("5389f889f389d131d231f6cd805bc3")
            page = mmap.mmap(-1, 4096, prot=7)
            page.write(code)
            address = ctypes.addressof(ctypes.c_char.from_buffer(page))
            old = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint] * 3)(address)
            for number, first, second, name in (
                (310, NEW_USER, 0, "unshare"), (26, 0, 0, "ptrace"), (20, 0, 0, "getpid"),
                (425, 8, 0, "io_uring_setup"), (288, 0, 0xfffffffd, "keyctl"),
            ):
                child = os.fork()
                if child == 0:
                    os._exit(0 if old(number, first, second) >= 0 else 1)
                if os.waitpid(child, 0)[1] == 0:
                    raise Broke(f"{name} by int 0x80")
        """,
    ),
    _calls(
        "calls-as-x32",
        "make calls with the bit of the x32 numbers, which a filter may not know",
        """
        if platform.machine() == "x86_64":
            for name in ("getpid", "unshare", "keyctl", "ptrace"):
                result, error = call(NUMBERS[name][0] | 0x40000000, 0, 0, 0)
                if error not in (errno.ENOSYS, errno.EPERM):
                    raise Broke(f"{name} as x32: {result}, {error}")
            result, error = call((1 << 32) | NUMBERS["shmget"][0], 0, 4096, 0o1600)
            if result >= 0:
                raise Broke("a number of 33 bits")
        """,
    ),
    _calls(
        "filters-itself",
        "overrule the filter by one of its own that allows all, or asks somebody",
        """
        if platform.machine() == "x86_64":
            for action, flags in ((0x7fff0000, 0), (0x7ff00000, 0), (0x7fc00000, 8)):
                child = os.fork()
                if child == 0:
                    code = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, action))
                    program = struct.pack("HxxxxxxQ", 1, ctypes.addressof(code))
                    call("prctl", 38, 1, 0, 0, 0)
                    call("seccomp", 1, flags, program)
                    signal.alarm(2)
                    os._exit(0 if call("io_uring_setup", 8, bytes(120))[0] >= 0 else 1)
                if os.waitpid(child, 0)[1] == 0:
                    raise Broke(f"action {action:#x}")
        """,
    ),
    _calls(
        "reads-keys",
        "read a key of the submitter from the session's and the user's keyrings",
        """
        buffer = ctypes.create_string_buffer(4096)
        for ring in (-3, -4, -5, -1, -2):
            result, _ = call("keyctl", 10, ring, b"user", W["key_name"].encode(), 0)
            if result > 0 and call("keyctl", 11, result, buffer, 4096)[0] > 0:
                raise Broke(f"the keyring {ring}")
        found, _ = call("request_key", b"user", W["key_name"].encode(), None, 0)
        for key in (found, *W["keys"]):
            if key > 0 and call("keyctl", 11, key, buffer, 4096)[0] > 0:
                raise Broke(f"key {key}")
        """,
    ),
    _calls(
        "destroys-keys",
        "clear, revoke, link and invalidate the keys of the submitter",
        """
        for ring in (-3, -4, -5):
            for operation in (7, 3, 21):
                call("keyctl", operation, ring, 0, 0, 0)
        for key in W["keys"]:
            for operation in (3, 21, 8, 9):
                call("keyctl", operation, key, -3, 0, 0)
            call("keyctl", 5, key, 0x3F3F3F3F, 0, 0)
            call("keyctl", 15, key, 1, 0, 0)
        """,
    ),
    _calls(
        "fills-keyrings",
        "spend the submitter's share of keys, or leave data in them",
        """
        for ring in (-3, -4, -5, -2, -1):
            result, _ = call("add_key", b"user", (MARK + str(ring)).encode(), b"x" * 64, 64, ring)
            if result > 0:
                raise Broke(f"a key in {ring}")
        refused("keyctl", 1, 0, 0, 0, 0)
        """,
    ),
    _calls(
        "uses-shared-memory-of-system-v",
        "read the submitter's shared memory, and leave its own behind",
        """
        result, _ = call("shmget", W["shm_key"], 0, 0)
        if result >= 0 or call("shmat", W["shm"], None, 0o10000)[0] != -1:
            raise Broke("a segment of the submitter")
        for name, arguments in (("shmget", (0, 1 << 20, 0o1600)), ("semget", (0, 1, 0o1600)),
                                ("msgget", (0, 0o1600))):
            result, _ = call(name, *arguments)
            if result >= 0:
                raise Broke(name)
        """,
    ),
    Program(
        "takes-the-terminal",
        "type into the submitter's terminal, or write to it",
        """
        import fcntl
        for path in ("/dev/tty", W["tty"], "/dev/console", "/proc/1/fd/0", "/proc/self/fd/0"):
            for flags in (os.O_RDWR, os.O_RDONLY):
                descriptor = opens(path, flags)
                if descriptor is None:
                    continue
                for request in (0x5412, 0x541C, 0x540E):  # TIOCSTI, TIOCLINUX, TIOCSCTTY
                    for byte in b"id" + bytes([10]):
                        try:
                            fcntl.ioctl(descriptor, request, bytes([byte]))
                        except OSError:
                            continue
                        raise Broke(f"{request:#x} on {path}")
        for descriptor in range(64):
            try:
                fcntl.ioctl(descriptor, 0x5412, b"x")
            except OSError:
                continue
            raise Broke(f"descriptor {descriptor}")
        """,
        levels=CONFINED,
    ),
    Program(
        "sees-the-terminal",
        "open the terminal from which the run was started",
        """
        for path in ("/dev/tty", W["tty"]):
            if opens(path, os.O_RDWR | os.O_NOCTTY) is not None:
                raise Broke(path)
        """,
    ),
    _calls(
        "leases-files",
        "have a lease on files that others open, who then wait until it is broken",
        """
        import fcntl, statistics
        with open("mine", "w"):
            pass
        for path in ("mine", sys.executable, os.__file__, statistics.__file__, "/bin/sh"):
            descriptor = opens(path)
            for lease in (fcntl.F_RDLCK, fcntl.F_WRLCK):
                try:
                    fcntl.fcntl(descriptor, 1024, lease)  # F_SETLEASE
                except OSError:
                    continue
                raise Broke(path)
        """,
    ),
    _calls(
        "locks-files",
        "lock files that others may want to lock",
        """
        import fcntl
        for path in (os.__file__, sys.executable, "/etc/ld.so.cache"):
            first, second = opens(path), opens(path)
            if first is None:
                continue
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Broke(path)
        """,
    ),
    _calls(
        "locks-parts-of-files",
        "lock a part of a file that others may want to lock, for a process or an open file",
        """
        import fcntl
        def locks(descriptor, command, kind):
            try:
                fcntl.fcntl(descriptor, command, struct.pack("hhqqi", kind, 0, 0, 1, 0))
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    raise Broke(f"{command}")
        mine = os.open("mine", os.O_RDWR | os.O_CREAT)
        for descriptor, kind in ((mine, fcntl.F_WRLCK), (opens(os.__file__), fcntl.F_RDLCK)):
            for command in (fcntl.F_SETLK, fcntl.F_SETLKW, 37, 38):
                locks(descriptor, command, kind)
        again = os.open("mine", os.O_RDWR)
        locks(again, 37, fcntl.F_WRLCK)
        if os.fork() == 0:
            try:
                locks(again, fcntl.F_SETLK, fcntl.F_WRLCK)
            except Broke:
                os._exit(1)
            os._exit(0)
        if os.wait()[1]:
            raise Broke("of a process")
        """,
    ),
    Program(
        "takes-terminals",
        "open the terminals of which all containers of the machine share a number",
        """
        kept = []
        try:
            while True:
                kept.append(os.openpty())
        except OSError:
            pass
        if kept:
            raise Broke(f"{len(kept)} terminals")
        """,
    ),
    _calls(
        "takes-pending-signals",
        "spend the user's share of pending signals, without which no other process gets a timer",
        """
        made = 0
        identity = struct.pack("i", 0)
        while call({"x86_64": 222, "aarch64": 107}[platform.machine()], 1, None, identity)[0] == 0:
            made += 1
            if made > 2000:
                raise Broke(f"{made} timers")
        """,
    ),
    _calls(
        "watches-files",
        "spend the submitter's share of watches on files",
        """
        import fcntl
        refused("inotify_init1", 0)
        try:
            fcntl.fcntl(opens("/usr"), 1026, 1)  # F_NOTIFY
        except OSError:
            pass
        else:
            raise Broke("F_NOTIFY")
        """,
    ),
    _calls(
        "slows-its-warden",
        "give the processes that judge it, or all of the submitter's, the lowest priority",
        """
        parent, mask = os.getppid() or 1, struct.pack("Q", 1)
        for who in (parent, 1):
            for name, arguments in (
                ("setpriority", (0, who, 19)), ("sched_setscheduler", (who, 5, bytes(4))),
                ("sched_setaffinity", (who, 8, mask)), ("ioprio_set", (1, who, 3 << 13)),
            ):
                if call(name, *arguments)[0] >= 0:
                    raise Broke(f"{name} of {who}")
        for which in (1, 2):
            if call("setpriority", which, 0, 19)[0] >= 0:
                raise Broke(f"all of {which}")
        """,
    ),
    _calls(
        "keeps-data-in-attributes",
        "keep data in attributes of files, which count as nobody's memory",
        """
        with open("mine", "w"):
            pass
        os.mkdir("folder")
        for path in ("mine", "folder", "/dev/shm"):
            try:
                os.setxattr(path, "user.x", b"x" * 4000)
            except OSError:
                continue
            raise Broke(path)
        """,
    ),
]
