"""docs/ray.md: its files can be deployed, and its manifests have fields that their kinds have, and name each
other's parts rightly.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")
jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("fastapi")

from satchel.cli.deploying.plan import Deployment, read_plan  # noqa: E402

PAGE = Path(__file__).parents[1] / "docs" / "ray.md"
Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
NAME: Schema = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
WHOLE: Schema = {"type": "integer", "minimum": 0}
TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}
QUANTITIES: Schema = {
    "type": "object", "additionalProperties": {"type": "string", "pattern": r"^\d+(Gi|Mi|m)?$"}
}  # fmt: skip


def made(required: str, **properties: Schema) -> Schema:
    """The schema of an object with these properties alone."""
    closed = {"type": "object", "additionalProperties": False}
    return {**closed, "properties": properties, "required": required.split()}


def listed(schema: Schema) -> Schema:
    return {"type": "array", "items": schema, "minItems": 1}


# The parts of the schemas of Kubernetes and of KubeRay's ray.io/v1 that the page may use.
CONTAINER = made(
    "name image resources",
    name=NAME,
    image=TEXT,
    ports=listed(made("containerPort", containerPort=WHOLE, name=NAME)),
    resources=made("requests limits", requests=QUANTITIES, limits=QUANTITIES),
    volumeMounts=listed(made("name mountPath", name=NAME, mountPath=TEXT, readOnly={"type": "boolean"})),
)
VOLUME = made(
    "name",
    name=NAME,
    persistentVolumeClaim=made("claimName", claimName=NAME),
    configMap=made("name", name=NAME),
    secret=made("secretName", secretName=NAME, defaultMode=WHOLE),
)
POD = made("spec", spec=made("containers", containers=listed(CONTAINER), volumes=listed(VOLUME)))
GROUP = made(
    "groupName replicas minReplicas maxReplicas rayStartParams template",
    groupName=NAME, replicas=WHOLE, minReplicas=WHOLE, maxReplicas=WHOLE, rayStartParams=TEXTS, template=POD,
)  # fmt: skip
CLUSTER = made(
    "rayVersion headGroupSpec workerGroupSpecs",
    rayVersion=TEXT,
    enableInTreeAutoscaling={"type": "boolean"},
    gcsFaultToleranceOptions=made("redisAddress", redisAddress=TEXT),
    headGroupSpec=made("rayStartParams template", rayStartParams=TEXTS, template=POD),
    workerGroupSpecs=listed(GROUP),
)
PORTS = listed(made("port targetPort", name=NAME, port=WHOLE, targetPort=WHOLE))
OBJECT = {"apiVersion": TEXT, "kind": TEXT, "metadata": made("name", name=NAME)}
SCHEMAS = {
    ("v1", "ConfigMap"): made("data", data=TEXTS, **OBJECT),
    ("ray.io/v1", "RayCluster"): made("spec", spec=CLUSTER, **OBJECT),
    ("v1", "Service"): made("spec", spec=made("selector ports", selector=TEXTS, ports=PORTS), **OBJECT),
}


def block(kind: str) -> str:
    """The page's one block of that kind."""
    found: list[str] = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert len(found) == 1
    return found[0]


def plan_of(text: str, folder: Path) -> Deployment:
    file = folder / "fleet.toml"
    file.write_text(text)
    return read_plan(file)


def manifests() -> dict[str, Any]:
    """By kind."""
    return {one["kind"]: one for one in yaml.safe_load_all(block("yaml"))}


def test_the_file_can_be_deployed(tmp_path: Path) -> None:
    assert plan_of(block("toml"), tmp_path).models["chat"].order.bundles == [{"CPU": 1.0, "GPU": 2.0}]


def test_the_manifests_have_fields_that_their_kinds_have() -> None:
    for one in manifests().values():
        jsonschema.validate(one, SCHEMAS[one["apiVersion"], one["kind"]])
    assert len(manifests()) == len(SCHEMAS)


def test_what_the_manifests_name_is_there(tmp_path: Path) -> None:
    found = manifests()
    plan = plan_of(found["ConfigMap"]["data"]["fleet.toml"], tmp_path)
    cluster, service = found["RayCluster"], found["Service"]["spec"]
    head = cluster["spec"]["headGroupSpec"]["template"]["spec"]
    (group,) = cluster["spec"]["workerGroupSpecs"]
    assert service["selector"]["ray.io/cluster"] == cluster["metadata"]["name"]
    (container,) = head["containers"]
    ports = {container["ports"][0]["containerPort"], service["ports"][0]["targetPort"], plan.front["port"]}
    assert len(ports) == 1
    for spec in (head, group["template"]["spec"]):
        mounted = {mount["name"] for one in spec["containers"] for mount in one["volumeMounts"]}
        assert mounted == {volume["name"] for volume in spec["volumes"]}
    volumes = {volume["name"]: volume for volume in head["volumes"]}
    assert volumes["fleet"]["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(Path(str(plan.front["api-key-file"])).parent) == mounts["keys"]
    assert str(Path(str(plan.models["chat"].table["path"])).parent) == mounts["models"]


def test_an_engine_fits_a_node_and_the_nodes_hold_all_engines(tmp_path: Path) -> None:
    found = manifests()
    chat = plan_of(found["ConfigMap"]["data"]["fleet.toml"], tmp_path).models["chat"]
    (group,) = found["RayCluster"]["spec"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    requests = container["resources"]["requests"]
    assert requests == container["resources"]["limits"]
    assert chat.order.bundles == [{"CPU": float(requests["cpu"]), "GPU": float(requests["nvidia.com/gpu"])}]
    assert chat.replicas == f"{group['minReplicas']}..{group['maxReplicas']}"
    assert found["RayCluster"]["spec"]["rayVersion"] in container["image"]
