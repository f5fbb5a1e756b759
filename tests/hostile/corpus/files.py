"""Programs that read, change or fill what is not theirs on disk."""

from tests.hostile.program import EVERYWHERE, Must, Program

PROGRAMS = [
    Program(
        "reads-the-home",
        "read keys, tokens and histories in the home of the submitter",
        """
        for path in W["secrets"]:
            if opens(path) is not None:
                raise Broke(path)
        for folder in (W["home"], "/root", "/home"):
            if os.path.isdir(folder) and set(os.listdir(folder)) - {W["python"]}:
                raise Broke(f"{folder}: {os.listdir(folder)}")
        """,
    ),
    Program(
        "reads-the-system",
        "read passwords, host keys, tokens of services and logs of the machine",
        """
        for path in ("/etc/shadow", "/etc/passwd", "/etc/gshadow", "/etc/sudoers", "/etc/hosts",
                     "/etc/munge/munge.key", "/etc/ssh/ssh_host_ed25519_key", "/etc/machine-id",
                     "/etc/slurm/slurmdbd.conf", "/etc/resolv.conf", "/proc/kcore", "/proc/kmsg",
                     "/var/log", "/run", "/var/run", "/sys/kernel", "/boot", "/mnt", "/srv", "/opt",
                     "/proc/sysrq-trigger", "/proc/1/auxv", "/proc/1/stack"):
            descriptor = opens(path)
            if descriptor is None:
                continue
            try:
                found = os.listdir(path) if os.path.isdir(path) else os.read(descriptor, 1)
            except OSError:
                continue
            if found:
                raise Broke(path)
        """,
    ),
    Program(
        "reads-run-directories",
        "read prompts, answers and scores of runs, weights in memory and temporary files",
        """
        for path in (*W["files"], "/dev/shm/coordinate-eval-" + str(os.getuid())):
            if opens(path) is not None:
                raise Broke(path)
        """,
    ),
    Program(
        "enters-roots-of-processes",
        "find the machine's files through /proc/PID/root, cwd, map_files and fd",
        """
        for pid in [*others(), "self"]:
            for way in ("root", "cwd"):
                for path in W["secrets"]:
                    if opens(f"/proc/{pid}/{way}{path}") is not None:
                        raise Broke(f"/proc/{pid}/{way}{path}")
        """,
    ),
    Program(
        "climbs-from-descriptors",
        "climb out of a folder that a descriptor left open shows",
        """
        import stat
        for pid in [*others(), "self"]:
            try:
                names = os.listdir(f"/proc/{pid}/fd")
            except OSError:
                continue
            for name in names:
                descriptor = opens(f"/proc/{pid}/fd/{name}")
                if descriptor is None:
                    continue
                if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                    for path in W["secrets"]:
                        try:
                            os.open("../" * 12 + path.lstrip("/"), os.O_RDONLY, dir_fd=descriptor)
                        except OSError:
                            continue
                        raise Broke(f"{path} from descriptor {name} of {pid}")
        """,
    ),
    Program(
        "inherits-descriptors",
        "use files that were left open by whoever started it",
        """
        mine = ("/dev/null", "pipe:", "socket:", "/tmp", "/proc")
        for name in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{name}")
            except OSError:
                continue
            if not target.startswith(mine) and "anon_inode" not in target:
                raise Broke(f"descriptor {name} is {target}")
        """,
    ),
    Program(
        "reads-environments",
        "find a token in the environment or the memory map of another process",
        """
        for pid in [*others(), "self"]:
            descriptor = opens(f"/proc/{pid}/environ")
            if descriptor is None:
                continue
            try:
                text = os.read(descriptor, 1 << 20)
            except OSError:
                continue
            if W["token_name"].encode() in text:
                raise Broke(f"the environment of {pid}")
        if W["token_name"] in os.environ:
            raise Broke("its own environment")
        """,
    ),
    Program(
        "opens-memory-of-processes",
        "open the memory of process 1 and of every other one",
        """
        for pid in others():
            for flags in (os.O_RDWR, os.O_RDONLY):
                descriptor = opens(f"/proc/{pid}/mem", flags)
                if descriptor is None:
                    continue
                for line in open(f"/proc/{pid}/maps"):
                    start = int(line.partition("-")[0], 16)
                    try:
                        os.pread(descriptor, 8, start)
                    except OSError:
                        continue
                    raise Broke(f"the memory of {pid}")
        """,
    ),
    Program(
        "writes-everywhere",
        "create a file in every folder there is",
        """
        own = ("/tmp", "/dev/shm", "/proc", "/dev/pts")
        for folder, folders, files in os.walk("/"):
            if folder.startswith(own):
                folders.clear()
                continue
            for path in (folder, *(os.path.join(folder, name) for name in files)):
                if os.path.islink(path) or not os.access(path, os.W_OK):
                    continue
                if path.startswith("/dev/") and not os.path.isdir(path):
                    continue
                raise Broke(path)
        """,
        seconds=60.0,
    ),
    Program(
        "writes-settings-of-the-kernel",
        "open settings under /proc/sys, and its own limits, for writing",
        """
        for path in ("kernel/core_pattern", "kernel/hostname", "kernel/modprobe", "vm/drop_caches",
                     "kernel/randomize_va_space", "fs/binfmt_misc/register", "vm/overcommit_memory",
                     "user/max_user_namespaces", "net/ipv4/ip_forward", "kernel/ns_last_pid"):
            try:
                was = open("/proc/sys/" + path, "rb").read()
                open("/proc/sys/" + path, "wb", 0).write(was)
            except OSError:
                continue
            raise Broke(path)
        for path, text in (("/proc/sysrq-trigger", b"h"), ("/proc/self/uid_map", b"0 0 1"),
                           ("/proc/1/oom_score_adj", b"-1000")):
            try:
                open(path, "wb", 0).write(text)
            except OSError:
                continue
            raise Broke(path)
        """,
    ),
    Program(
        "opens-files-of-the-kernel",
        "open each file of /proc that is no process's for writing: settings, and watches on load",
        """
        for folder, folders, names in os.walk("/proc"):
            if folder == "/proc":
                folders[:] = [name for name in folders if not name.isdecimal()]
            for name in names:
                found = opens(os.path.join(folder, name), os.O_WRONLY)
                if found is not None and os.fstat(found).st_rdev != os.makedev(1, 3):
                    raise Broke(os.path.join(folder, name))
        """,
    ),
    Program(
        "writes-to-others",
        "write to a file that everybody may write, and to files in memory",
        """
        for path in W["writable"]:
            if opens(path, os.O_WRONLY) is not None:
                raise Broke(path)
        """,
    ),
    Program(
        "mounts",
        "mount, remount and unmount, by the old calls and the new ones",
        """
        refused("mount", b"x", b"/tmp", b"tmpfs", 0, None)
        refused("mount", None, b"/usr", None, 32 | 4096, None)
        refused("umount2", b"/usr", 2)
        refused("pivot_root", b"/tmp", b"/tmp")
        refused("chroot", b"/tmp")
        refused("fsopen", b"tmpfs", 0)
        refused("open_tree", -100, b"/", 1)
        refused("open_tree_attr", -100, b"/", 1, None, 0)
        refused("mount_setattr", -100, b"/usr", 0, struct.pack("4Q", 0, 1, 0, 0), 32)
        """,
    ),
    Program(
        "follows-links",
        "reach a secret through symbolic and hard links of its own",
        """
        for n, path in enumerate(W["secrets"]):
            os.symlink(path, f"link{n}")
            os.symlink("/proc/1/root" + path, f"root{n}")
            os.symlink("../" * 30 + path.lstrip("/"), f"up{n}")
            for name in (f"link{n}", f"root{n}", f"up{n}"):
                if opens(name) is not None:
                    raise Broke(path)
            try:
                os.link(path, f"hard{n}")
            except OSError:
                continue
            raise Broke(path)
        """,
    ),
    Program(
        "opens-by-handle",
        "open the root of the machine by the number of its inode",
        """
        handle = struct.pack("=IiQI", 8, 1, 2, 0)
        for path in (b"/usr", b"/etc/ld.so.cache", b"/tmp"):
            at = os.open(path, os.O_RDONLY)
            result, _ = call("open_by_handle_at", at, ctypes.create_string_buffer(handle), 0)
            if result != -1:
                raise Broke(os.listdir(result))
        """,
    ),
    Program(
        "makes-devices",
        "make the machine's disk and memory as device files, and open those that are there",
        """
        import stat
        for kind, major, minor in ((stat.S_IFBLK, 8, 0), (stat.S_IFBLK, 254, 0),
                                   (stat.S_IFBLK, 259, 0), (stat.S_IFCHR, 1, 1)):
            try:
                os.mknod("device", kind | 0o666, os.makedev(major, minor))
            except OSError:
                continue
            raise Broke(f"device {major}:{minor}")
        for name in ("vda", "sda", "nvme0n1", "mem", "kmsg", "kvm", "fuse", "net/tun", "vhost-net",
                     "loop-control", "mapper/control", "tty", "console", "nvidiactl", "vsock"):
            if opens("/dev/" + name, os.O_RDWR) is not None and name != "console":
                raise Broke(name)
        """,
    ),
    Program(
        "gains-privileges",
        "become root through set-user-id programs, capabilities or another user id",
        """
        lines = [line.partition(":") for line in open("/proc/self/status")]
        status = {name: value.strip() for name, _, value in lines}
        for kind in ("CapPrm", "CapEff", "CapAmb", "CapInh"):
            if int(status[kind], 16):
                raise Broke(f"{kind} is {status[kind]}")
        if status["NoNewPrivs"] != "1":
            raise Broke("it may gain privileges")
        for attempt in (lambda: os.setuid(0), lambda: os.setresuid(0, 0, 0),
                        lambda: os.setgroups([0]), lambda: os.setgid(0)):
            if os.getuid() == 0 and W["root"]:
                raise Broke("it is root")
            before = os.getresuid(), os.getresgid(), os.getgroups()
            try:
                attempt()
            except OSError:
                continue
            if before != (os.getresuid(), os.getresgid(), os.getgroups()):
                raise Broke("another id")
        """,
    ),
    Program(
        "fills-its-files",
        "write more bytes into all the places it may write than the limit",
        """
        total, block = 0, b"x" * (1 << 20)
        for folder in ("/tmp", "/dev/shm", "/dev", "/", "/run", "/var/tmp", os.getcwd()):
            try:
                for n in range(200):
                    with open(f"{folder}/{MARK}{n}", "wb", buffering=0) as file:
                        for _ in range(16):
                            total += file.write(block)
            except OSError:
                continue
        if total > 130 << 20:
            raise Broke(f"{total >> 20} MiB")
        """,
    ),
    Program(
        "makes-huge-files",
        "make one file larger than the limit: by writing, by a hole, by allocation",
        """
        for name, grow in {
            "hole": lambda file: file.truncate(1 << 40),
            "far": lambda file: (file.seek(1 << 30), file.write(b"x")),
            "allocated": lambda file: os.posix_fallocate(file.fileno(), 0, 1 << 30),
        }.items():
            with open(name, "wb", buffering=0) as file:
                try:
                    grow(file)
                except OSError:
                    continue
                if os.fstat(file.fileno()).st_size > 16 << 20:
                    raise Broke(name)
        """,
        levels=EVERYWHERE,
    ),
    Program(
        "floods-inodes",
        "make empty files until its time is over",
        """
        n = 0
        while True:
            try:
                os.close(os.open(f"{n}", os.O_CREAT))
            except OSError:
                pass
            n += 1
        """,
        Must.TIME_OUT,
        EVERYWHERE,
        seconds=3.0,
        slow=True,
    ),
    Program(
        "nests-folders",
        "leave a folder so deep that removing it fails",
        """
        for _ in range(5000):
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
        """,
        Must.END,
        EVERYWHERE,
    ),
    Program(
        "leaves-folders-that-refuse",
        "leave folders without permissions, links to elsewhere, pipes and names that no text has",
        """
        for n in range(3):
            os.makedirs(f"{n}/inner")
            open(f"{n}/inner/file", "w").close()
            os.chmod(f"{n}/inner", 0)
            os.chmod(str(n), 0)
        os.symlink("/", "all")
        os.mkfifo("pipe")
        open(b"\\xff\\xfe\\n\\x1b[2J", "w").close()
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("socket")
        os.chmod(".", 0)
        """,
        Must.END,
        EVERYWHERE,
    ),
    Program(
        "moves-its-folder-away",
        "put a link to the home in the place of its own folder, to have that removed instead",
        """
        own = os.getcwd()
        try:
            os.rename(own, own + MARK)
            os.symlink(W["home"], own)
        except OSError:
            pass
        """,
        Must.END,
    ),
]
