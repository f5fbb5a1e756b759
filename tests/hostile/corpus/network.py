"""Programs that talk to somebody."""

from tests.hostile.program import Program

PROGRAMS = [
    Program(
        "connects-to-this-machine",
        "reach a server on this machine over TCP, IPv4 and IPv6",
        """
        for host, port in (("127.0.0.1", W["tcp"]), ("::1", W["tcp6"]),
                           ("0.0.0.0", W["tcp"]), ("::ffff:127.0.0.1", W["tcp"])):
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            try:
                socket.socket(family).connect((host, port))
            except OSError:
                continue
            raise Broke(host)
        """,
    ),
    Program(
        "sends-datagrams",
        "send a datagram to this machine, to the world and to everybody",
        """
        for family, address in ((socket.AF_INET, ("127.0.0.1", W["udp"])),
                                (socket.AF_INET, ("192.0.2.1", 9)),
                                (socket.AF_INET, ("224.0.0.1", 9)),
                                (socket.AF_INET, ("255.255.255.255", 9)),
                                (socket.AF_INET6, ("2001:db8::1", 9)),
                                (socket.AF_INET6, ("ff02::1", 9))):
            sender = socket.socket(family, socket.SOCK_DGRAM)
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            try:
                sender.sendto(MARK.encode(), address)
            except OSError:
                continue
            if address[0] != "127.0.0.1":  # its own loopback swallows it: seen from outside
                raise Broke(address[0])
        """,
    ),
    Program(
        "connects-to-the-world",
        "open a connection to another machine",
        """
        for address in ("192.0.2.1", "198.51.100.1", "10.0.0.1", "169.254.169.254"):
            stream = socket.socket()
            stream.settimeout(1)
            try:
                stream.connect((address, 80))
            except TimeoutError:
                raise Broke(f"a route to {address}")
            except OSError as error:
                if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EPERM):
                    continue
                raise Broke(f"{address}: {error}")
            raise Broke(address)
        """,
    ),
    Program(
        "asks-for-names",
        "resolve a name, by which data leaves too",
        """
        for name in ("example.com", MARK + ".example.org"):
            try:
                found = socket.getaddrinfo(name, 80)
            except OSError:
                continue
            raise Broke(found)
        """,
    ),
    Program(
        "lists-interfaces",
        "see another interface than the loopback",
        """
        names = {"lo"}
        try:
            names |= {name for _, name in socket.if_nameindex()}
        except OSError:
            pass
        for line in open("/proc/net/dev").readlines()[2:]:
            names.add(line.partition(":")[0].strip())
        if names != {"lo"}:
            raise Broke(names)
        """,
    ),
    Program(
        "connects-to-abstract-sockets",
        "reach a socket of this machine that has a name but no file",
        """
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
            try:
                socket.socket(socket.AF_UNIX, kind).connect(b"\\0" + W["abstract"].encode())
            except OSError:
                continue
            raise Broke(f"kind {kind}")
        """,
    ),
    Program(
        "connects-to-socket-files",
        "reach services of this machine by their socket files",
        """
        for path in (W["socket"], "/run/munge/munge.socket.2", "/var/run/docker.sock",
                     "/run/dbus/system_bus_socket", "/run/systemd/private", "/dev/log",
                     "/run/nscd/socket", "/tmp/.X11-unix/X0", "/run/user/0/bus"):
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                try:
                    socket.socket(socket.AF_UNIX, kind).connect(path)
                except OSError:
                    continue
                raise Broke(path)
        """,
    ),
    Program(
        "captures-packets",
        "open raw and packet sockets",
        """
        for family, kind, protocol in ((socket.AF_PACKET, socket.SOCK_RAW, 0x0300),
                                       (socket.AF_PACKET, socket.SOCK_DGRAM, 0x0300),
                                       (socket.AF_INET, socket.SOCK_RAW, 1),
                                       (socket.AF_INET, socket.SOCK_RAW, 255),
                                       (socket.AF_INET6, socket.SOCK_RAW, 58)):
            try:
                socket.socket(family, kind, protocol)
            except OSError:
                continue
            raise Broke(f"family {family}, kind {kind}")
        """,
    ),
    Program(
        "talks-to-the-host",
        "reach the machine below a virtual one by vsock",
        """
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
            try:
                socket.socket(40, kind)
            except OSError:
                continue
            raise Broke(f"kind {kind}")
        """,
    ),
    Program(
        "tries-all-families",
        "open a socket of each rare family, whose code in the kernel few have read",
        """
        worked = []
        for family in {*range(3, 64)} - {10, 16}:
            for kind in range(1, 7):
                try:
                    socket.socket(family, kind)
                except OSError:
                    continue
                worked.append(family)
                break
        if worked:
            raise Broke(f"families {worked}")
        """,
    ),
    Program(
        "talks-to-the-kernel",
        "open netlink sockets of other kinds than the list of interfaces, and pair them",
        """
        worked = []
        for protocol in range(1, 32):
            try:
                socket.socket(16, socket.SOCK_RAW, protocol)
            except OSError:
                continue
            worked.append(protocol)
        if worked:
            raise Broke(f"netlink {worked}")
        """,
    ),
    Program(
        "changes-interfaces",
        "make an interface by netlink",
        """
        try:
            link = socket.socket(16, socket.SOCK_RAW, 0)
        except OSError:
            sys.exit
        else:
            info = struct.pack("HH", 12, 1) + b"dummy\\0\\0\\0"
            body = struct.pack("BxHiII", 0, 0, 0, 0, 0)
            body += struct.pack("HH", 4 + len(info), 18) + info
            link.send(struct.pack("IHHII", 16 + len(body), 16, 0x605, 1, 0) + body)
            link.settimeout(5)
            error = struct.unpack_from("i", link.recv(4096), 16)[0]
            if error == 0:
                raise Broke("made an interface")
        """,
    ),
    Program(
        "sends-old-protocols",
        "use socket types whose bugs have given root: SCTP, DCCP, UDP-lite, MPTCP, ULP",
        """
        worked = []
        for kind, protocol in ((socket.SOCK_STREAM, 132), (socket.SOCK_SEQPACKET, 132),
                               (6, 33), (socket.SOCK_STREAM, 262)):
            for family in (socket.AF_INET, socket.AF_INET6):
                try:
                    socket.socket(family, kind, protocol)
                except OSError:
                    continue
                worked.append(protocol)
        if worked:
            raise Broke(f"protocols {worked}")
        """,
    ),
]
