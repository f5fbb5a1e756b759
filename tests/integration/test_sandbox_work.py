"""What honest programs do works at every level, whatever is denied to others."""

import textwrap
from collections.abc import Iterator

import pytest
from tests.sandboxes import EVERY, Runner, ask, opened

pytestmark = pytest.mark.hostile


@pytest.fixture(scope="module", params=EVERY)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Runner]:
    with opened(request.param) as runner:
        yield runner


WORK = {
    "threads": """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(abs, range(-9, 0))) == 45
    """,
    "processes": """
        import multiprocessing
        with multiprocessing.Pool(3) as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]
    """,
    "queues and locks": """
        import multiprocessing
        queue, lock = multiprocessing.Queue(), multiprocessing.Lock()
        def work():
            with lock:
                queue.put(multiprocessing.Value("i", 7).value)
        worker = multiprocessing.Process(target=work)
        worker.start()
        assert queue.get() == 7
        worker.join()
        assert worker.exitcode == 0
    """,
    "shared memory": """
        from multiprocessing.shared_memory import SharedMemory
        area = SharedMemory(create=True, size=1 << 20)
        area.buf[0] = 5
        again = SharedMemory(area.name)
        assert again.buf[0] == 5
        again.close()
        area.unlink()
    """,
    "commands": """
        import subprocess
        done = subprocess.run("echo a | tr a b", shell=True, capture_output=True)
        assert done.stdout == b"b\\n"
    """,
    "asyncio": """
        import asyncio
        async def echo(reader, writer):
            writer.write(await reader.readline())
            writer.close()
        async def main():
            done = await asyncio.create_subprocess_exec("true")
            assert await done.wait() == 0
            server = await asyncio.start_server(echo, "127.0.0.1", 0)
            address = server.sockets[0].getsockname()
            reader, writer = await asyncio.open_connection(*address[:2])
            writer.write(b"x\\n")
            assert await reader.readline() == b"x\\n"
        asyncio.run(main())
    """,
    "sockets": """
        import socket
        with socket.create_server(("127.0.0.1", 0)) as server:
            peer = socket.create_connection(server.getsockname())
            server.accept()[0].send(b"x")
            assert peer.recv(1) == b"x"
        one, two = socket.socketpair()
        one.send(b"y")
        assert two.recv(1) == b"y"
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.bind(("127.0.0.1", 0))
        datagrams.sendto(b"z", datagrams.getsockname())
        assert datagrams.recv(1) == b"z"
    """,
    "signals": """
        import os, signal
        seen = []
        for number in (signal.SIGALRM, signal.SIGUSR1):
            signal.signal(number, lambda number, frame: seen.append(number))
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)  # again: the first may come too early
        signal.pause()
        signal.setitimer(signal.ITIMER_REAL, 0)
        del seen[1:]
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(0, 0)
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            seen.append("interrupt")
        assert seen == [signal.SIGALRM, signal.SIGUSR1, "interrupt"]
    """,
    "files": """
        import fcntl, mmap, os, tempfile
        file = tempfile.TemporaryFile()
        file.write(b"x" * 4096)
        file.flush()
        mmap.mmap(file.fileno(), 4096)[0] = 1
        fcntl.flock(file, fcntl.LOCK_EX)
        os.mkfifo("pipe")
        os.symlink("pipe", "link")
        reader, writer = os.pipe()
        fcntl.fcntl(reader, fcntl.F_SETFL, os.O_NONBLOCK)
    """,
    "itself": """
        import ctypes, os, resource
        open("/proc/self/comm", "w").write("me")
        assert os.listdir("/proc/self/fd")
        assert open("/proc/self/maps").read()
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        assert ctypes.CDLL(None).getpid() == os.getpid()
    """,
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_ordinary_work_goes_on(sandbox: Runner, work: str) -> None:
    assert sandbox.run(ask(textwrap.dedent(work))).result == "passed"
