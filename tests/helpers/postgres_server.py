"""A PostgreSQL server for tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest


@dataclass
class Postgres:
    """A PostgreSQL server of the tests' own, on 127.0.0.1, which asks for its password.

    It refuses to be root's: there it is nobody's.
    """

    programs: Path
    folder: Path
    port: int
    password: str = "p@ss:w/rd"
    made: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        import psycopg

        command = [self.programs / "postgres", "-D", self.folder / "data", "-p", str(self.port), "-F"]
        command += ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, **self._user)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with suppress(psycopg.OperationalError), self._connected():
                return
            assert self.process.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.05)
        raise AssertionError("PostgreSQL does not answer")

    def stop(self) -> None:
        """As a server goes away that is shut down at once: its clients' connections break."""
        assert self.process is not None
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(60)

    def initialise(self) -> None:
        self.folder.chmod(0o777)
        secret = self.folder / "secret"
        secret.write_text(self.password)
        options = ["-U", "tutti", "-A", "scram-sha-256", "--pwfile", secret, "-E", "UTF8", "--no-locale", "-N"]
        command = [self.programs / "initdb", "-D", self.folder / "data", *options]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder, **self._user)

    def new_database(self, *, like: str = "template1") -> str:
        """The address of a new, empty database, with the password; or of a copy of one that nobody is connected to.

        Args:
            like: the address or the name of what is copied.
        """
        self.made += 1
        with self._connected() as connection:
            connection.execute(f"CREATE DATABASE d{self.made} TEMPLATE {like.rpartition('/')[2]}")
        return f"postgresql://tutti:{quote(self.password, safe='')}@127.0.0.1:{self.port}/d{self.made}"

    def drop(self, address: str) -> None:
        """Removes a database, whoever is connected to it."""
        with self._connected() as connection:
            connection.execute(f"DROP DATABASE {address.rpartition('/')[2]} WITH (FORCE)")

    def _connected(self) -> Any:
        import psycopg

        given = {"host": "127.0.0.1", "port": self.port, "user": "tutti", "password": self.password}
        return psycopg.connect(dbname="postgres", autocommit=True, **given)

    @property
    def _user(self) -> dict[str, Any]:
        return {"user": "nobody", "extra_groups": []} if os.geteuid() == 0 else {}


def postgres_programs(folder: Path) -> Path:
    """PostgreSQL's programs as they are installed here, otherwise as the package pgserver brings them, copied there."""
    debian = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")))  # its package puts none of them on the path
    if found := shutil.which("postgres", path=os.pathsep.join([os.environ["PATH"], *debian])):
        return Path(found).resolve().parent
    # The user nobody, who runs it where root runs the tests, may not look into the folder of the package.
    brought = Path(pytest.importorskip("pgserver").__file__).parent / "pginstall"
    return Path(shutil.copytree(brought, folder / "installed")) / "bin"
