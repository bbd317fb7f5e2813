"""Addresses that contain a password are shown, stored and compared without it."""

from __future__ import annotations

import pytest

from tutti.config.address import same_database, with_password, without_password
from tutti.errors import Fault, masked


@pytest.mark.parametrize(
    ("address", "plain", "shown"),
    [
        ("postgresql://me:pw@db/x", "postgresql://me@db/x", "postgresql://me:***@db/x"),
        ("postgresql://me:p@w/d@db:5433/x", "postgresql://me@db:5433/x", "postgresql://me:***@db:5433/x"),
        (
            "postgresql:///x?user=m&password=pw&a=1",
            "postgresql:///x?user=m&a=1",
            "postgresql:///x?user=m&password=***&a=1",
        ),
        ("postgresql://me@db/x?password=pw", "postgresql://me@db/x", "postgresql://me@db/x?password=***"),
        ("https://me:pw@mlflow:5000/a", "https://me@mlflow:5000/a", "https://me:***@mlflow:5000/a"),
        ("http://mlflow:5000/a", "http://mlflow:5000/a", "http://mlflow:5000/a"),
        ("sqlite:////a/b.db", "sqlite:////a/b.db", "sqlite:////a/b.db"),
        ("databricks", "databricks", "databricks"),
    ],
)
def test_a_password_is_taken_out_of_an_address_and_hidden_in_a_message(address, plain, shown):
    assert without_password(address) == plain
    assert masked(address) == shown
    assert str(Fault("x", "be up", f"{address} away", "start it")) == f"x must be up; got {shown} away; start it."


def test_an_address_gets_the_password_of_the_same_address_alone():
    stored, known = "postgresql://me@db/x", "postgresql://me:pw@db/x"
    assert with_password(stored, known) == known
    assert with_password("postgresql://me@db/y", known) == "postgresql://me@db/y"
    assert with_password(stored, None) == stored


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ("postgresql+psycopg2://you:pw@DB:5432/x?a=1", True),
        ("postgresql://me@db/y", False),
        ("postgresql://me@db:5433/x", False),
        ("postgresql://me@other/x", False),
        ("http://db:5432/x", False),
        ("", False),
    ],
)
def test_two_addresses_of_one_database_are_known_as_such(other, same):
    assert same_database("postgresql://me@db/x", other) is same
