"""A Ray of this process's own, which no other user and no other machine can use.

It listens on the loopback device only, asks for a token, and speaks only to processes that have a
certificate of this process's. (With a token alone, one malformed call of another user ends Ray.)
These, Ray's sockets and its logs are in a folder that only the user may enter. Ray's processes send
nothing to other machines.

Ray's services trust each other and whoever has the token, so that the token is as good as a shell.
"""

import atexit
import contextlib
import datetime
import functools
import io
import ipaddress
import logging
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coordinate_eval._no_telemetry import NO_TELEMETRY
from coordinate_eval.errors import ClusterError, UserError

OBJECT_STORE_BYTES = 100 << 20
"""Shared memory of Ray's object store. Jobs pass no objects, and weights need the rest."""

STARTS = 3
"""Number of attempts to start Ray."""

OLDEST = (2, 52)
"""The first version of Ray that can ask for a token.

Source: https://docs.ray.io/en/latest/ray-security/token-auth.html
"""

_NOWHERE = "http://127.0.0.1:1"
"""A proxy that does not exist. Only root can listen on this port."""

_ENVIRONMENT = {
    # Ray then calls its node 127.0.0.1, on Linux too, and listens on the loopback device only.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_USE_TLS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # The autoscaler's metrics would be served without a token. It goes on without a valid port.
    "AUTOSCALER_METRIC_PORT": "-1",
    # Ray asks the metadata services of three clouds where it is, telemetry or not.
    **{
        name: _NOWHERE
        for lower in ("http_proxy", "https_proxy", "all_proxy")
        for name in (lower, lower.upper())
    },
    # Ray's debugger listens on a port.
    "PYTHONBREAKPOINT": "0",
    "no_proxy": "127.0.0.1,localhost",
    "NO_PROXY": "127.0.0.1,localhost",
}
"""Environment of Ray's own processes. Jobs do not get it."""

_FILES = {
    "RAY_AUTH_TOKEN_PATH": "token",
    "RAY_TLS_SERVER_KEY": "key.pem",
    "RAY_TLS_SERVER_CERT": "certificate.pem",
    "RAY_TLS_CA_CERT": "certificate.pem",
}
"""Variables of Ray, and the files of its folder that they name."""

_VALID_DAYS = 365
"""No run takes longer."""

_LONGEST_BASE = 24
"""Bytes of the path in which Ray's folder is. The path of a socket in it has up to 83 more, and
Linux allows 107 (unix(7))."""


def start(cpus: int, gpus: int) -> Any:  # noqa: ANN401 - Ray is optional
    """Start Ray and return its module, whose `shutdown` ends it.

    Raises:
        UserError: Ray is not installed, or cannot ask for a token.
        ClusterError: Ray does not start, or would be reachable from other machines.
    """
    folder = _folder()
    with _environment(folder):
        # Ray reads parts of the environment when it is imported.
        ray = _import_ray()
        if not (folder / "token").exists():
            _write_secrets(folder)
        try:
            _begin(ray, folder / "ray", cpus, gpus)
        except ClusterError:
            atexit.unregister(_remove)  # the logs stay, and the message names them
            for name in set(_FILES.values()):
                (folder / name).unlink()
            raise
    return ray


def _begin(ray: Any, folder: Path, cpus: int, gpus: int) -> None:  # noqa: ANN401
    """Start Ray, and try again if it fails.

    Ray opens the modes of all that it makes, `folder` included; the folder above protects it.
    It waits only 15 s for its own processes, which may take longer on a busy machine.
    """
    for attempt in range(STARTS):
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # notices
                ray.init(
                    address="local",
                    num_cpus=cpus,
                    num_gpus=gpus,
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE_BYTES,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    configure_logging=False,
                    namespace="coordinate-eval",
                    _temp_dir=str(folder),
                )
        except Exception as error:  # Ray raises plain exceptions
            ray.shutdown()
            if attempt == STARTS - 1:
                raise ClusterError(
                    f"Ray did not start on this machine: {error} Its logs are in "
                    f"{folder}/session_latest/logs"
                ) from error
        else:
            break
    address = ray.util.get_node_ip_address()
    if not ipaddress.ip_address(address).is_loopback:
        ray.shutdown()
        raise ClusterError(
            f"Ray {ray.__version__} listened on {address}, where other machines can "
            "reach it, and was stopped: try another version of Ray"
        )


def environment_of_jobs(inherited: dict[str, str]) -> dict[str, str]:
    """Return the environment of a worker without Ray's part of it."""
    return {name: value for name, value in inherited.items() if not _is_for_ray(name)}


def hidden_by_ray() -> dict[str, str]:
    """Return the variables of this process that Ray's workers have with other values."""
    return {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}


def _import_ray() -> Any:  # noqa: ANN401
    try:
        import cryptography  # noqa: F401 - comes with the same extra
        import ray
    except ImportError as error:
        raise UserError(
            "Ray is not installed, and there is no Slurm here: pip install 'coordinate-eval[ray]'"
        ) from error
    if tuple(int(part) for part in ray.__version__.split(".")[:2]) < OLDEST:
        raise UserError(
            f"Ray {ray.__version__} takes commands from everybody who reaches its ports: "
            f"pip install 'ray>={'.'.join(map(str, OLDEST))}'"
        )
    return ray


@functools.cache
def _folder() -> Path:
    """Return the folder of all Rays of this process, which keep to the first secrets they read.

    Only this user may enter it, and its path is short enough for sockets. It is not made where
    somebody else could rename it and put another one in its place.
    """
    base = Path(tempfile.gettempdir()).resolve()
    if len(os.fsencode(base)) > _LONGEST_BASE or not all(map(_is_safe, (base, *base.parents))):
        base = Path("/tmp")  # noqa: S108 - mkdtemp makes a folder of its own there
    made = Path(tempfile.mkdtemp(prefix="ce-ray-", dir=base))
    atexit.register(_remove, made)
    return made


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # a process of Ray may still be writing


def _is_safe(folder: Path) -> bool:
    """Return whether only the user and root can rename what the user has in a folder."""
    found = folder.stat()
    trusted = found.st_uid in (0, os.getuid())
    return trusted and (not found.st_mode & 0o022 or bool(found.st_mode & stat.S_ISVTX))


def _write_secrets(folder: Path) -> None:
    """Write a token, and a certificate by which processes of Ray know each other."""
    key, certificate = _certificate()
    token = secrets.token_hex(32).encode()
    contents = {"token": token, "key.pem": key, "certificate.pem": certificate}
    for name, content in contents.items():
        descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)


def _certificate() -> tuple[bytes, bytes]:
    """Return a new key and its certificate for 127.0.0.1, which is its own authority, as PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "coordinate-eval")])
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + _VALID_DAYS * day)
        .add_extension(here, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(pem, pkcs8, plain), certificate.public_bytes(pem)


@contextlib.contextmanager
def _environment(folder: Path) -> Iterator[None]:
    """Set the environment in which Ray starts its processes; afterwards it is as it was.

    What the caller has set for another Ray, such as its address, token or TLS, does not count.
    """
    before = {name: value for name, value in os.environ.items() if _is_for_ray(name)}
    for name in before:
        del os.environ[name]
    files = {variable: str(folder / name) for variable, name in _FILES.items()}
    os.environ.update(NO_TELEMETRY | _ENVIRONMENT | files)
    try:
        yield
    finally:
        for name in list(filter(_is_for_ray, os.environ)):
            del os.environ[name]
        os.environ.update(before)


def _is_for_ray(name: str) -> bool:
    return name.startswith("RAY_") or name in _ENVIRONMENT
