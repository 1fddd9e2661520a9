"""`satchel deploy`: what a fleet's file says, and what is refused of it. No cluster is asked."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from satchel.cli.deploying.plan import config_text, read_plan
from satchel.cli.main import main
from satchel.errors import RequestError
from satchel.runtime.ray.orders import EngineOrder

FILE = """
[fleet]
name = "chat"
[front]
port = 8081
[models.small]
path = "small.gguf"
context = 4096
replicas = "1..4"
ray_gpus = 2.0
[models.large]
path = "large.gguf"
ray_stages = 2
ray_cpus = 8.0
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "small.gguf").write_bytes(b"weights")
    (tmp_path / "large.gguf").write_bytes(b"more weights")
    path = tmp_path / "fleet.toml"
    path.write_text(FILE)
    return path


def test_what_each_engine_reserves(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", str(file), "--dry-run"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["fleet"], told["ray"], told["front"]) == ("chat", "auto", {"port": 8081})
    small, large = told["models"].values()
    assert small["each"] == {"bundles": [{"CPU": 1.0, "GPU": 2.0}], "strategy": "STRICT_PACK"}
    assert small["devices"] == "cuda:0+cuda:1" and small["replicas"] == "1..4"
    assert large["each"] == {"bundles": [{"CPU": 8.0}] * 2, "strategy": "STRICT_SPREAD"}
    assert large["devices"] == "cpu" and large["path"] == str(file.parent / "large.gguf")
    assert "engine by engine in its places where the cluster has no room" in small["upgrade"]
    file.write_text(FILE + '[upgrade]\nin_place = "never"')
    assert main(["deploy", str(file), "--dry-run"]) == 0
    small, large = json.loads(capsys.readouterr().out)["models"].values()
    assert small["upgrade"] == large["upgrade"] == "beside the version that serves"


def test_what_a_version_begins_with(file: Path) -> None:
    plan = read_plan(file)
    small, large = (plan.orders()[plan.versions[name]] for name in ("small", "large"))
    assert (small["count"], EngineOrder(**small["order"])) == (1, plan.models["small"].order)
    assert (large["count"], large["order"]["stages"]) == (1, 2)


def test_a_version_changes_with_its_table_and_its_file_alone(file: Path) -> None:
    first = read_plan(file).versions
    assert read_plan(file).versions == first and set(first) == {"small", "large"}
    file.write_text(FILE.replace("context = 4096", "context = 2048"))
    second = read_plan(file).versions
    assert second["small"] != first["small"] and second["large"] == first["large"]
    os.utime(file.parent / "large.gguf", (1, 1))
    third = read_plan(file).versions
    assert third["small"] == second["small"] and third["large"] != first["large"]
    file.write_text(FILE.replace("port = 8081", "port = 8082"))
    assert read_plan(file).versions["small"] == first["small"]


def test_the_servers_configuration_has_the_tables(file: Path) -> None:
    plan = read_plan(file)
    aliases = {name: {"versions": {version: 1.0}} for name, version in plan.versions.items()}
    told = tomllib.loads(config_text(plan.front, plan.tables(), aliases))
    table = told["models"][plan.versions["small"]]
    assert table["ray"] == "auto" and table["ray_gpus"] == 2.0 and told["serve"] == {"port": 8081}
    assert told["aliases"]["large"]["versions"] == {plan.versions["large"]: 1.0}


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ('name = "chat"', 'name = "a b"', r"fleet\.toml: \[fleet\] name: expected letters"),
        ('name = "chat"', 'name = "chat"\nray = "local"', r"\[fleet\] ray: a local cluster ends"),
        ('name = "chat"', 'name = "chat"\nrays = "auto"', r"fleet\.rays: no such key; did you mean ray\?"),
        ('name = "chat"', "", r"fleet\.name: it is missing"),
        ('name = "chat"', 'name = "chat"\nzzz = 1', r"fleet\.zzz: no such key: there are name, ray$"),
        ("port = 8081", 'host = "::"', r"\[front\] host: the deployment sets it"),
        ("port = 8081", "replicas = 2", r"\[front\] replicas: .* a fleet has one front"),
        ("ray_gpus = 2.0", "ray_gpus = 1.5", r"\[models\.small\] ray_gpus is 1\.5: expected a whole number"),
        ("ray_gpus = 2.0", "ray_gpu = 2", r"\[models\.small\] ray_gpu: no such key; did you mean ray_gpus\?"),
        ("ray_cpus = 8.0", "ray_cpus = 0.0", r"\[models\.large\] ray_cpus and ray_gpus are 0"),
        ('replicas = "1..4"', 'replicas = "4..1"', r"\[models\.small\] .*replicas is '4\.\.1'"),
        ('replicas = "1..4"', 'replicas = "auto"', r"\[models\.small\] replicas is 'auto': with ray"),
        (
            "[models.small]",
            "[upgrade]\nin_place = true\n[models.small]",
            r"upgrade\.in_place: Input should be .*, got True",
        ),
        ("[models.small]", "[models.'a/b']", r"\[models\.a/b\]: expected a name"),
        ("[fleet]", "[fleet", r"fleet\.toml: no TOML"),
    ],
)
def test_a_file_that_cannot_be_deployed_is_refused(file: Path, before: str, after: str, what: str) -> None:
    assert before in FILE
    file.write_text(FILE.replace(before, after))
    with pytest.raises(RequestError, match=what):
        read_plan(file)


def test_two_wishes_at_once_are_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", str(file), "--down", "--status"]) == 2
    assert "expected one of" in capsys.readouterr().err


def test_without_ray_it_says_what_is_missing(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["deploy", str(file)]) == 1
    assert "ray is missing: pip install 'satchel[ray]'" in capsys.readouterr().err
