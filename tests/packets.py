"""Runs a command in a network that leads nowhere, and records what it tries to send there.

`unshare --net --mount python packets.py RECORD COMMAND …` gives the command a loopback device, a
default route, and a name server behind it. Nobody answers. RECORD gets a line for each TCP or UDP
packet that left, from whichever process and library; it is empty if nobody tried.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

_TCP, _UDP, _DNS_PORT = 6, 17, 53
_IPV4, _IPV6 = 0x0800, 0x86DD
_LINKS = (
    "link set lo up",
    # A pair of devices: what is sent to one arrives at the other.
    "link add out type veth peer name seen",
    "link set out arp off up",
    "link set seen arp off up",
    # RFC 5737 and RFC 3849: addresses that belong to nobody.
    "addr add 198.51.100.2/24 dev out",
    "route add default via 198.51.100.1 dev out",
    "-6 addr add 2001:db8::2/64 dev out nodad",
    "-6 route add default dev out",
)
_FILES = {
    "/etc/resolv.conf": "nameserver 203.0.113.53\noptions timeout:1 attempts:1\n",
    "/etc/nsswitch.conf": "hosts: files dns\n",
}


def possible() -> bool:
    """Return whether this user may make such a network here."""
    if not (shutil.which("unshare") and shutil.which("ip")):
        return False
    record = Path(os.devnull)
    return subprocess.run(alone(record, "true"), capture_output=True, check=False).returncode == 0


def alone(record: Path, *command: str) -> list[str]:
    """The argv that runs a command alone with the recorder."""
    return ["unshare", "--net", "--mount", sys.executable, __file__, str(record), *command]


def without_hints(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what a careful user sets against telemetry, and without proxies."""
    prefixes = ("HF_", "TRANSFORMERS_", "VLLM_NO_", "VLLM_DO_")
    words = ("TRACK", "TELEMETRY", "PROXY", "USAGE")
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(prefixes) and not any(word in name.upper() for word in words)
    }


def _main(record: str, *command: str) -> int:
    for line in _LINKS:
        subprocess.run(["ip", *line.split()], check=True)
    for path, text in _FILES.items():
        with tempfile.NamedTemporaryFile("w", delete=False) as file:
            file.write(text)
        subprocess.run(["mount", "--bind", file.name, path], check=True)
        Path(file.name).unlink()
    with Path(record).open("w") as out, _listening(out):
        return subprocess.run(command, check=False).returncode


@contextlib.contextmanager
def _listening(out: object) -> Iterator[None]:
    """Write a line for each packet that arrives, until all that came before the end are read."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003)) as packets:
        packets.bind(("seen", 0))
        reader = threading.Thread(target=_read, args=(packets, out))
        reader.start()
        try:
            yield
        finally:
            # The last packet, after which nothing that the command sent can come.
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(_END, ("203.0.113.1", 9))
            reader.join()


_END = b"the command has ended"


def _read(packets: socket.socket, out: object) -> None:
    while True:
        frame = packets.recv(65536)
        if frame.endswith(_END):
            return
        if line := _described(frame):
            print(line, file=out, flush=True)  # type: ignore[call-overload]


def _described(frame: bytes) -> str:
    """Return protocol, address, port and asked name of a packet; "" of what the kernel sends."""
    kind, packet = int.from_bytes(frame[12:14]), frame[14:]
    if kind == _IPV4:
        protocol, body = packet[9], packet[(packet[0] & 15) * 4 :]
        address = socket.inet_ntop(socket.AF_INET, packet[16:20])
    elif kind == _IPV6:
        protocol, body = packet[6], packet[40:]
        address = socket.inet_ntop(socket.AF_INET6, packet[24:40])
    else:
        return ""
    if protocol not in (_TCP, _UDP):
        return ""
    port = int.from_bytes(body[2:4])
    name = f" {body[20:]!r}" if port == _DNS_PORT else ""
    return f"{'tcp' if protocol == _TCP else 'udp'} {address} {port}{name}"


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
