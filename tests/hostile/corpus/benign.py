"""Programs that mean well, and must pass whatever is done against the others."""

from coordinate_eval.evaluators.sandbox.sandbox import Level
from tests.hostile.program import EVERYWHERE, Must, Program


def _means_well(name: str, text: str, needs: str = "", slow: bool = False) -> Program:
    return Program(
        name, "nothing", text, Must.PASS, EVERYWHERE, seconds=600.0, needs=needs, slow=slow
    )


PROGRAMS = [
    _means_well(
        "forks", "import os\nif os.fork() == 0: os._exit(7)\nassert os.wait()[1] == 7 << 8"
    ),
    _means_well(
        "has-threads",
        """
        import threading
        done = []
        threads = [threading.Thread(target=done.append, args=(n,)) for n in range(20)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert sorted(done) == list(range(20))
        """,
    ),
    _means_well(
        "has-pools",
        """
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
        with multiprocessing.Pool(4) as pool:
            assert pool.map(abs, range(-9, 0)) == list(range(9, 0, -1))
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(abs, (-1, -2))) == [1, 2]
        with ProcessPoolExecutor(2) as pool:
            assert list(pool.map(abs, (-1, -2))) == [1, 2]
        """,
    ),
    _means_well(
        "shares-between-processes",
        """
        import multiprocessing as mp
        from multiprocessing import shared_memory
        queue, value, lock = mp.Queue(), mp.Value("i", 0), mp.Semaphore(2)
        def add():
            with lock, value.get_lock():
                value.value += 1
                mine = value.value
            queue.put(mine)
        workers = [mp.Process(target=add) for _ in range(4)]
        for worker in workers: worker.start()
        found = {queue.get(timeout=300) for _ in workers}
        for worker in workers: worker.join()
        assert value.value == 4 and len(found) == 4
        one = shared_memory.SharedMemory(create=True, size=1 << 20)
        two = shared_memory.SharedMemory(one.name)
        one.buf[0] = 7
        assert two.buf[0] == 7
        two.close(); one.close(); one.unlink()
        """,
    ),
    _means_well(
        "runs-commands",
        """
        import subprocess, sys
        assert subprocess.run(["echo", "x"], capture_output=True).stdout == b"x\\n"
        assert subprocess.check_output("seq 3 | tail -n 1", shell=True) == b"3\\n"
        code = "import json; print(json.dumps([1]))"
        assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[1]\\n"
        """,
    ),
    _means_well(
        "waits-for-events",
        """
        import asyncio
        async def twice(n):
            await asyncio.sleep(0.01)
            return 2 * n
        async def main():
            done = await asyncio.gather(*map(twice, range(5)))
            process = await asyncio.create_subprocess_exec("true")
            return done, await process.wait()
        assert asyncio.run(main()) == ([0, 2, 4, 6, 8], 0)
        """,
    ),
    Program(
        "talks-to-itself",
        "nothing",
        """
        import socket, threading
        server = socket.create_server(("127.0.0.1", 0))
        def serve():
            stream, _ = server.accept()
            stream.sendall(stream.recv(5)[::-1])
        threading.Thread(target=serve).start()
        with socket.create_connection(server.getsockname(), timeout=300) as stream:
            stream.sendall(b"hello")
            assert stream.recv(5) == b"olleh"
        one, two = socket.socketpair()
        one.send(b"x")
        assert two.recv(1) == b"x"
        """,
        Must.PASS,
        frozenset({Level.BUBBLEWRAP, Level.LIMITS}),
        seconds=600.0,
    ),
    _means_well(
        "computes-with-numpy",
        """
        import numpy
        matrix = numpy.arange(10000.0).reshape(100, 100) + numpy.eye(100)
        assert numpy.allclose(numpy.linalg.solve(matrix, matrix @ numpy.ones(100)), 1)
        assert numpy.random.default_rng(1).normal(size=10).shape == (10,)
        assert numpy.fft.fft(numpy.ones(8))[0] == 8
        """,
        needs="numpy",
    ),
    _means_well(
        "uses-files",
        """
        import fcntl, mmap, os, pathlib, shutil, sqlite3, tempfile, zipfile
        with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile() as file:
            path = pathlib.Path(folder) / "x"
            path.write_text("x" * 100_000)
            shutil.copy(path, path.with_suffix(".y"))
            with zipfile.ZipFile(pathlib.Path(folder) / "z", "w") as archive:
                archive.write(path)
            with path.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as pages:
                pages[0:1] = b"y"
            assert path.read_text()[0] == "y"
            file.write(b"x"); file.flush(); os.fsync(file.fileno())
            fcntl.flock(file, fcntl.LOCK_EX)
        os.mkfifo("pipe"); os.symlink("pipe", "link")
        with sqlite3.connect("database") as database:
            database.execute("create table t (x)")
        """,
    ),
    _means_well(
        "recurses",
        """
        import sys
        sys.setrecursionlimit(20000)
        def depth(n): return n and 1 + depth(n - 1)
        assert depth(15000) == 15000
        """,
    ),
    _means_well(
        "asks-for-much-memory",
        "x = bytearray(3 << 30)\nassert len(x) == 3 << 30",
    ),
    _means_well(
        "uses-much-memory",
        """
        x = bytearray(b"x") * (2 << 30)
        y = [list(range(1000)) for _ in range(1000)]
        assert x[-1] == 120 and sum(map(len, y)) == 10**6
        """,
        slow=True,
    ),
    _means_well(
        "uses-signals-and-clocks",
        """
        import signal, time
        heard = []
        signal.signal(signal.SIGALRM, lambda *_: heard.append(1))
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        while not heard: time.sleep(0.01)
        assert time.perf_counter() > 0 and time.process_time() > 0 and time.thread_time() >= 0
        """,
    ),
    _means_well(
        "uses-the-library",
        """
        import bz2, collections, concurrent.futures, ctypes, datetime, decimal, doctest, fractions
        import functools, getopt, hashlib, heapq, io, itertools, json, locale, lzma, math, operator
        import os, pickle, platform, queue, random, re, secrets, select, statistics, string, struct
        import sys, textwrap, timeit, typing, unittest, uuid, xml.etree.ElementTree, zlib, zoneinfo
        assert hashlib.sha256(b"x").hexdigest().startswith("2d71")
        assert len(secrets.token_bytes(9)) == 9 and uuid.uuid4() != uuid.uuid4()
        assert zlib.decompress(zlib.compress(b"x")) == lzma.decompress(lzma.compress(b"x"))
        assert ctypes.CDLL(None).abs(-3) == 3 and platform.machine()
        assert os.cpu_count() and os.sched_getaffinity(0) and os.getloadavg()
        epoll = select.epoll(); epoll.close()
        os.close(os.eventfd(0)); os.getrandom(3)
        open("/proc/self/comm", "w").write("me"); assert open("/proc/self/maps").read()
        assert os.nice(1) >= 1 and os.times() and os.uname() and os.getpriority(0, 0) >= 0
        class Case(unittest.TestCase):
            def test(self): self.assertEqual(1, 1)
        suite = unittest.TestLoader().loadTestsFromTestCase(Case)
        assert unittest.TextTestRunner().run(suite).wasSuccessful()
        """,
    ),
    _means_well(
        "says-much",
        "import sys\nfor _ in range(10):\n    print('x' * 10**6)\n    print('y', file=sys.stderr)",
    ),
]
