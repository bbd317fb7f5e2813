"""The token that Ray asks of those who connect to it."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from functools import cache
from pathlib import Path


def has_token() -> bool:
    """Whether the user has a token for Ray: in a variable, or in the file that Ray itself makes."""
    if {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        return True
    with suppress(RuntimeError):  # a user without a home folder
        return os.path.isfile(Path.home() / ".ray" / "auth_token")  # noqa: PTH113, false where one may not look
    return False


def use_own_token() -> None:
    """Makes Ray's job client send the user's token, if there is one, which a cluster of `ray start` may require.

    Unlike `ray.init`, the client sends it only if RAY_AUTH_MODE says so, which Ray reads once, when it is imported.
    """
    if has_token():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def provide_token() -> None:
    """Gives a private Ray a token of its own where the user has none and has not said whether Ray shall ask for one.

    Ray would write one to the home folder, which in a container or a batch job may not be writable. The variable stays
    set, as Ray's own RAY_AUTH_MODE does: the next Ray of this process needs both.
    """
    if "RAY_AUTH_MODE" not in os.environ and not has_token():
        os.environ["RAY_AUTH_TOKEN"] = _token()


@cache
def _token() -> str:
    """One for the whole process, since Ray reads it once, for all Rays that the process starts."""
    return secrets.token_hex(32)
