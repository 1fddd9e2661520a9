"""Options of the server: one field of ServerSettings gives the check of its value and its flag of `serve`."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("starlette")

from satchel.cli.groups import Group, Taking
from satchel.cli.main import UsageError
from satchel.cli.serving import ServerOptions
from satchel.errors import RequestError
from satchel.runtime.option import options_of
from satchel.server.settings import ServerSettings

FLAGS = Group("server", ServerOptions, Taking())


def settings(**given: Any) -> ServerSettings:
    """The settings of what the flags were given, by names of options; the others have their defaults."""
    defaults = {p.name: p.default for p in FLAGS.parameters()}
    made: ServerOptions = FLAGS.made(defaults | {f"server_{name}": value for name, value in given.items()})
    return made.settings()


def test_every_option_is_documented_and_its_flag_has_a_parameter() -> None:
    parameters = {p.name for p in FLAGS.parameters()}
    for name, one in options_of(ServerSettings).items():
        assert one.doc.endswith(".") and f"    {name}: {one.doc}\n" in f"{ServerSettings.__doc__}\n"
        assert (f"server_{name}" in parameters) == bool(one.flags)


def test_flags_that_are_not_given_leave_the_defaults() -> None:
    assert settings() == ServerSettings()


def test_flags_become_settings() -> None:
    found = settings(pull_bytes=1.5, api_keys=["a", "b"], port=0, registries=["hub.example:8443"])
    assert (found.pull_bytes, found.api_keys, found.port) == (1_500_000_000, ("a", "b"), 0)
    assert found.registries == ("hub.example:8443",) and found.needs_key and not ServerSettings().needs_key
    assert settings(host="0.0.0.0").hosts == () and "x" in settings(host="0.0.0.0", allowed_host=["x"]).hosts


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("port", 70_000, "--port: port is 70000: expected 0 to 65535; leave it out"),
        ("header_seconds", 0.0, "--header-timeout: header_seconds is 0.0: expected more than 0"),
        ("most_connections", 0, "--max-connections: most_connections is 0: expected 1 or more"),
        ("registries", ["a.gguf/b"], "--registry: 'a.gguf/b': expected HOST or HOST:PORT"),
    ],
)
def test_a_wrong_value_is_refused_with_its_flag(name: str, value: Any, said: str) -> None:
    with pytest.raises(UsageError, match=f"^{said}"):
        settings(**{name: value})
    with pytest.raises(RequestError):
        ServerSettings(**{name: value})
