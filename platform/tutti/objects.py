"""The objects of an object storage: whole or not there, read and written with patience."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tutti.errors import PASSWORD, Fault, StorageError, first_line

if TYPE_CHECKING:
    from pyarrow import fs

SCHEMES = ("s3", "gs", "abfs", "abfss", "hdfs")
PATIENCE = 60.0  # seconds for which a storage that has answered is waited for
FIRST_PATIENCE = 5.0  # the same of one that has not: its address may be wrong
_CHUNK = 2**25  # bytes; each read is a request
_REFUSED = re.compile(r"ACCESS_DENIED|NO_SUCH_BUCKET|INVALID_ACCESS_KEY|SIGNATURE_DOES_NOT_MATCH|UNRECOGNIZED_CLIENT")
_ADDRESS = re.compile(rf"({'|'.join(SCHEMES)})://[^/\s]+(/[^\s?#]*)?")
_T = TypeVar("_T")


def is_address(text: str) -> bool:
    """Whether a text is the address of a folder on object storage, such as ``s3://bucket/studies``.

    One with a password is none: it would be shown and stored with the study.
    """
    return _ADDRESS.fullmatch(text) is not None and not PASSWORD.search(text)


class Gone(LookupError):
    """There is no such object, or none any more."""


class Objects:
    """The objects below an address, by their paths from there. The constructor asks for nothing.

    Credentials, and of S3 the endpoint and the region, come from the environment, as ``AWS_ACCESS_KEY_ID`` and
    ``AWS_ENDPOINT_URL``. Each method tries again what fails, and raises StorageError after ``PATIENCE`` seconds.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self._opened: tuple[fs.FileSystem, str] | None = None
        self._has_answered = False

    def names(self, under: str = "") -> list[str]:
        """The paths of all objects below ``under``, sorted; none where there is nothing."""
        from pyarrow import fs

        def listed(system: fs.FileSystem, base: str) -> list[str]:
            selector = fs.FileSelector(f"{base}/{under}".rstrip("/"), recursive=True, allow_not_found=True)
            found = system.get_file_info(selector)
            return sorted(each.path[len(base) + 1 :] for each in found if each.type == fs.FileType.File)

        return self._steadily("be readable", under, listed)

    def folders(self) -> list[str]:
        """The names of the folders at the address, sorted."""
        from pyarrow import fs

        def listed(system: fs.FileSystem, base: str) -> list[str]:
            found = system.get_file_info(fs.FileSelector(base, allow_not_found=True))
            return sorted(each.base_name for each in found if each.type == fs.FileType.Directory)

        return self._steadily("be readable", "", listed)

    def read(self, name: str) -> bytes:
        """The content of an object; raises Gone where it is none."""

        def read(system: fs.FileSystem, base: str) -> bytes:
            with system.open_input_stream(f"{base}/{name}") as stream:
                return b"".join(iter(partial(stream.read, _CHUNK), b""))

        return self._steadily("be readable", name, read)

    def download(self, name: str, target: Path) -> str:
        """Writes an object to a file and returns its SHA-256; raises Gone where it is none."""

        def download(system: fs.FileSystem, base: str) -> str:
            with system.open_input_stream(f"{base}/{name}") as stream, target.open("wb") as file:
                return _copied(stream, file, size=_CHUNK)

        return self._steadily("be readable", name, download)

    def upload(self, source: Path, name: str) -> str:
        """Writes a file to an object, which is there once all of it is, and returns its SHA-256."""

        def upload(system: fs.FileSystem, base: str) -> str:
            with source.open("rb") as file, system.open_output_stream(f"{base}/{name}") as stream:
                return _copied(file, stream, size=2**20)

        return self._steadily("be written", name, upload)

    def write(self, name: str, content: bytes) -> None:
        """Writes an object as a whole."""

        def write(system: fs.FileSystem, base: str) -> None:
            with system.open_output_stream(f"{base}/{name}") as stream:
                stream.write(content)

        self._steadily("be written", name, write)

    def delete(self, name: str) -> None:
        """Deletes an object, or a folder of them; nothing where there is none."""

        def delete(system: fs.FileSystem, base: str) -> None:
            path = f"{base}/{name}"
            with suppress(FileNotFoundError):
                system.delete_dir(path.rstrip("/")) if name.endswith("/") else system.delete_file(path)

        self._steadily("be deleted", name, delete)

    def _steadily(self, rule: str, name: str, action: Callable[[Any, str], _T]) -> _T:
        began, delay = time.monotonic(), 0.2
        while True:
            try:
                self._opened = self._opened or _opened(self.address)
                result = action(*self._opened)
            except FileNotFoundError as error:
                self._has_answered = True
                raise Gone(name) from error
            except (OSError, ValueError, ImportError) as error:  # ArrowInvalid is a ValueError
                patience = PATIENCE if self._has_answered else FIRST_PATIENCE
                if _REFUSED.search(str(error)) or time.monotonic() - began + delay > patience:
                    remedy = "check whether it exists and can be reached, and the credentials in the environment"
                    shown = f"{self.address}/{name}".rstrip("/")
                    raise StorageError(Fault(shown, rule, first_line(error), remedy)) from error
            else:
                self._has_answered = True
                return result
            time.sleep(delay)
            delay = min(2 * delay, 5.0)


def _copied(source: Any, target: Any, *, size: int) -> str:
    """Copies one open file to another, ``size`` bytes at a time, and returns the SHA-256 of what it copied."""
    digest = hashlib.sha256()
    for chunk in iter(partial(source.read, size), b""):
        digest.update(chunk)
        target.write(chunk)
    return digest.hexdigest()


def _opened(address: str) -> tuple[fs.FileSystem, str]:
    """The file system of an address, and the path of the address in it."""
    from pyarrow import fs

    if not address.startswith("s3://"):
        system, path = fs.FileSystem.from_uri(address)
        return system, str(path).rstrip("/")
    environment = os.environ.get
    endpoint = environment("AWS_ENDPOINT_URL_S3") or environment("AWS_ENDPOINT_URL")  # which pyarrow does not read
    region = environment("AWS_REGION") or environment("AWS_DEFAULT_REGION") or ("us-east-1" if endpoint else None)
    system = fs.S3FileSystem(
        endpoint_override=endpoint or None,
        region=region,
        allow_delayed_open=True,  # a small object in one request
        connect_timeout=10,
        request_timeout=30,
    )
    return system, address.removeprefix("s3://")
