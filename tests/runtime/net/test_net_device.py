"""A model on devices of other hosts: the same logits and texts as on devices of this one, weights that never
travel, and servers that survive what clients send.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import net_hosts
import numpy as np
import pytest
import tiny_file
import waiting
from devices import needs

from satchel.errors import DeviceError, ModelError, RequestError
from satchel.formats.gguf import open_gguf
from satchel.runtime.api.model import Model
from satchel.runtime.api.options import LoadKwargs, Options
from satchel.runtime.device.device import CONST, OUT, STATE, WEIGHT, Buffer, Exec
from satchel.runtime.device.lost import DeviceUnreachable, LinkLost
from satchel.runtime.graph import Array
from satchel.runtime.net.address import Address, read_address, read_name
from satchel.runtime.net.device import NetBackend, NetDevice
from satchel.runtime.net.key_server import PENDING
from satchel.runtime.net.link import LinkDeadlines
from satchel.runtime.net.server import DeviceServer, Lent
from satchel.runtime.net.tables import write_segment
from satchel.runtime.placement.options import read_devices
from satchel.runtime.plan import Segment
from satchel.runtime.sampling import GREEDY
from satchel.runtime.speculation import Speculation
from satchel.runtime.weights.packing import PackedWeights
from satchel.runtime.weights.there import bind_there

pytestmark = needs("cpu")
IDS = [3, 1, 4, 1, 5]
LOAD: LoadKwargs = {"threads": 1, "context": 64, "slots": 2}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts are not taken for lost because this machine is busy."""
    monkeypatch.setenv("SATCHEL_DEVICE_TIMEOUT_MS", "60000")


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return net_hosts.key_in(tmp_path_factory.mktemp("key"))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_file.write_model(tmp_path_factory.mktemp("net") / "m.gguf", "llama", "q8_0")


@pytest.fixture(scope="module")
def servers(key: Path) -> Iterator[tuple[DeviceServer, DeviceServer]]:
    with net_hosts.host(key, ("cpu", "remote")) as one, net_hosts.host(key, ("cpu", "remote")) as other:
        yield one, other


@pytest.fixture
def device(servers: tuple[DeviceServer, ...], key: Path) -> Iterator[NetDevice]:
    with opened(net_hosts.name_of(servers[0]), key) as found:
        yield found


def opened(name: str, key: Path | str) -> NetDevice:
    found = NetBackend(read_name(name), str(key)).open(threads=1)
    assert isinstance(found, NetDevice)
    return found


def answers(path: Path, **changes: Any) -> tuple[list[int], Array]:
    """The greedy tokens after a prompt, and the logits of one."""
    with Model.load(path, **{**LOAD, **changes}) as model:
        reply = model.generate(IDS, max_tokens=12, sampling=GREEDY)
        reply.read()
        return list(reply.ids), model.logits(IDS)


@pytest.fixture(scope="module")
def wanted(path: Path) -> tuple[list[int], Array]:
    return answers(path, device="cpu")


@pytest.mark.parametrize("devices", ["{0}/cpu", "cpu,{0}/cpu", "{0}/cpu,{1}/cpu"])
def test_answers_are_those_of_local_devices_bit_for_bit(
    path: Path,
    key: Path,
    servers: tuple[DeviceServer, ...],
    wanted: tuple[list[int], Array],
    devices: str,
) -> None:
    names = devices.format(*(f"{net_hosts.LOOPBACK}:{server.port}" for server in servers))
    shares = ",".join("1" * len(names.split(",")))
    ids, logits = answers(path, device=names, tensor_split=shares, device_key=str(key))
    assert ids == wanted[0]
    np.testing.assert_array_equal(logits, wanted[1])


@needs("remote")
def test_a_device_with_memory_apart_and_late_execution_gives_the_same(
    path: Path, key: Path, servers: tuple[DeviceServer, ...], wanted: tuple[list[int], Array]
) -> None:
    """Its arenas are poisoned after each run, and runs are late: what is read too early or from a wrong place
    differs.
    """
    names = ",".join(net_hosts.name_of(server, "remote") for server in servers)
    ids, logits = answers(path, device=names, tensor_split="1,1", device_key=str(key))
    assert ids == wanted[0]
    np.testing.assert_array_equal(logits, wanted[1])


@needs("remote")
def test_a_group_of_this_host_stands_beside_a_device_of_another(
    path: Path, key: Path, servers: tuple[DeviceServer, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What crosses goes from the group's first member, or to each member: the bits are those of the same
    stages on this host.
    """
    monkeypatch.setenv("SATCHEL_REMOTE_DEVICES", "2")
    found = []
    for second in ("cpu", net_hosts.name_of(servers[0])):
        how = {"device": f"remote:0+remote:1,{second}", "tensor_split": "1,1", "device_key": str(key)}
        found.append(answers(path, **how))
    assert found[0][0] == found[1][0]
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_many_requests_at_once_are_answered_as_alone(
    path: Path, key: Path, servers: tuple[DeviceServer, ...], wanted: tuple[list[int], Array]
) -> None:
    name = net_hosts.name_of(servers[0])
    with Model.load(path, device=f"cpu,{name}", tensor_split="1,1", device_key=str(key), **LOAD) as model:
        replies = [model.generate(IDS, max_tokens=12, sampling=GREEDY) for _ in range(4)]
        for reply in replies:
            reply.start()
        for reply in replies:
            reply.read()
        assert [list(reply.ids) for reply in replies] == [wanted[0]] * 4


def test_saved_states_and_the_host_cache_reach_the_blocks_of_a_host(
    path: Path, key: Path, servers: tuple[DeviceServer, ...], tmp_path: Path, wanted: tuple[list[int], Array]
) -> None:
    prompt = IDS * 9  # longer than a block of the cache
    far: dict[str, Any] = {
        "device": net_hosts.name_of(servers[0]),
        "device_key": str(key),
        "host_cache": 1 << 24,
    }
    with Model.load(path, **{**LOAD, **far}) as model:
        reply = model.generate(prompt, max_tokens=4, sampling=GREEDY)
        reply.read()
        assert model.save_state(tmp_path / "state", prompt)
    with Model.load(path, **{**LOAD, **far}) as model:
        assert model.restore_state(tmp_path / "state").tokens > 0
        again = model.generate(prompt, max_tokens=4, sampling=GREEDY)
        again.read()
        assert list(again.ids) == list(reply.ids)
        assert again.stats.cached > 0


def test_a_draft_model_reads_its_weights_on_the_host_too(
    path: Path, key: Path, servers: tuple[DeviceServer, ...], wanted: tuple[list[int], Array]
) -> None:
    drafts = Speculation(draft_model=path)
    far: dict[str, Any] = {
        "device": net_hosts.name_of(servers[0]),
        "device_key": str(key),
        "speculation": drafts,
    }
    assert answers(path, **far)[0] == wanted[0]


def test_closing_a_model_frees_what_its_hosts_hold(
    path: Path, key: Path, servers: tuple[DeviceServer, ...]
) -> None:
    answers(path, device=net_hosts.name_of(servers[0]), device_key=str(key))
    waiting.until(lambda: not servers[0].sessions, "the session ends")


def test_weights_never_travel(path: Path, key: Path, servers: tuple[DeviceServer, ...]) -> None:
    """All that a load and an answer send is far less than the weights."""
    sent = list[int]()
    with Model.load(path, device=net_hosts.name_of(servers[0]), device_key=str(key), **LOAD) as model:
        (device,) = (d for d in model.devices if isinstance(d, NetDevice))
        tell = device.tell
        device.tell = lambda do, data=b"", **values: (sent.append(len(data)), tell(do, data, **values))[1]  # type: ignore[method-assign]
        model.generate(IDS, max_tokens=4, sampling=GREEDY).read()
        with pytest.raises(RequestError, match="weights are not sent over the network"):
            device.alloc(64, WEIGHT)
        with pytest.raises(RequestError, match="weights are not sent over the network"):
            device.wrap(b"x" * 64)
    assert 0 < sum(sent) < 100_000


def test_weights_on_a_host_are_neither_read_nor_written(device: NetDevice, path: Path) -> None:
    with open_gguf(path) as gguf:
        weights = bind_there(gguf, device, PackedWeights({}))
    buffer = next(iter(weights.buffers.values()))
    with pytest.raises(RequestError, match="holds weights, which no other host reads or writes"):
        buffer.read_into(0, np.empty(16, np.uint8))
    buffer.write(0, b"x" * 16)
    with pytest.raises(RequestError, match="holds weights"):
        device.info()


# --- the model's file


def test_a_file_that_the_host_does_not_have_is_named(tmp_path: Path, path: Path, key: Path) -> None:
    missing = pytest.raises(ModelError, match=r"m\.gguf is not on this host.*copy the client's file there")
    with net_hosts.host(key, folders=[tmp_path]) as server, missing:
        answers(path, device=net_hosts.name_of(server), device_key=str(key))


def test_a_file_with_other_weights_is_refused(tmp_path: Path, path: Path, key: Path) -> None:
    tiny_file.write_model(tmp_path / "m.gguf", "llama", "q8_0", seed=1)
    other = pytest.raises(ModelError, match="has other weights: expected")
    with net_hosts.host(key, folders=[tmp_path]) as server, other:
        answers(path, device=net_hosts.name_of(server), device_key=str(key))


def test_a_copy_in_a_folder_of_the_host_serves(
    tmp_path: Path, path: Path, key: Path, wanted: tuple[list[int], Array]
) -> None:
    (tmp_path / "m.gguf").write_bytes(path.read_bytes())
    with net_hosts.host(key, folders=[tmp_path / "none", tmp_path]) as server:
        assert answers(path, device=net_hosts.name_of(server), device_key=str(key))[0] == wanted[0]


# --- names, keys and options


def test_names_of_devices_of_other_hosts() -> None:
    assert read_devices("host2/cuda:0, cpu,10.0.0.2:9000/cuda:1") == (
        "host2/cuda",
        "cpu",
        "10.0.0.2:9000/cuda:1",
    )
    assert read_devices("[::1]:9000/cpu,HOST2:8093/CPU") == ("[::1]:9000/cpu", "host2/cpu")
    assert read_address("[::1]") == Address("::1")


@pytest.mark.parametrize(
    "name", ["/cpu", "host2/", "host 2/cpu", "host2:0/cpu", "host2:70000/cpu", "a/b/cpu"]
)
def test_names_that_mean_nothing_are_refused(name: str) -> None:
    with pytest.raises(RequestError, match="expected HOST"):
        read_devices(name)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"device": "host2/cuda:0+cuda:1"},
            "host2/cuda is a device of another host, which no group can have",
        ),
        ({"device": "cuda,host2/cuda", "split_mode": "tensor"}, "split_mode='tensor': not supported beside"),
        ({"device": "host2/cuda", "prefetch_weights": "on"}, "prefetch_weights: not supported beside"),
        ({"device": "host2/cuda", "expert_cache": "4"}, "expert_cache: not supported beside"),
        ({"device": "host2/cuda", "adapters": "a.gguf"}, "adapters: not supported beside"),
    ],
)
def test_options_that_would_send_weights_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError, match=text):
        Options(**options)


def test_without_a_key_nothing_is_connected(path: Path) -> None:
    with pytest.raises(RequestError, match="no key: give the file of the key that host2 has"):
        Model.load(path, device="host2/cpu", **LOAD)


def test_another_key_is_refused(tmp_path: Path, path: Path, servers: tuple[DeviceServer, ...]) -> None:
    with pytest.raises(RequestError, match=r"it refused the key: both hosts need the same key file"):
        answers(path, device=net_hosts.name_of(servers[0]), device_key=str(net_hosts.key_in(tmp_path)))


def test_a_host_where_nobody_listens_is_named(key: Path) -> None:
    with net_hosts.host(key) as server:
        name = net_hosts.name_of(server)
    with pytest.raises(DeviceUnreachable, match="Connection refused; start `satchel device --listen` there"):
        opened(name, key)


def test_a_device_that_the_host_does_not_lend(servers: tuple[DeviceServer, ...], key: Path) -> None:
    with pytest.raises(RequestError, match="this host serves cpu, remote"):
        opened(net_hosts.name_of(servers[0], "cuda"), key)


def test_an_address_that_is_taken_or_of_another_host_cannot_be_listened_on(
    servers: tuple[DeviceServer, ...], key: Path
) -> None:
    for address in (Address(net_hosts.LOOPBACK, servers[0].port), Address("192.0.2.1", 0)):
        with pytest.raises(RequestError, match="cannot be listened on"):
            DeviceServer(address, b"k" * 32, Lent(("cpu",)))


# --- what clients send


Planned = tuple[NetDevice, Segment, Sequence[Buffer]]


@pytest.fixture
def planned(
    path: Path, key: Path, servers: tuple[DeviceServer, ...], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Planned]:
    """A device, with a plan of a model that is loaded there and the plan's buffers."""
    made: list[tuple[Segment, Sequence[Buffer]]] = []
    compile = NetDevice.compile

    def noted(self: NetDevice, segment: Segment, buffers: Sequence[Buffer], overrides: None = None) -> Exec:
        made.append((segment, buffers))
        return compile(self, segment, buffers, overrides)

    monkeypatch.setattr(NetDevice, "compile", noted)
    with Model.load(path, device=net_hosts.name_of(servers[0]), device_key=str(key), **LOAD) as model:
        model.generate(IDS, max_tokens=2, sampling=GREEDY).read()
        (device,) = (d for d in model.devices if isinstance(d, NetDevice))
        yield device, *made[0]


def compiled(planned: Planned, **changes: Any) -> None:
    """Compiles the plan, with another value of some part of its message."""
    device, segment, buffers = planned
    message, data = write_segment(segment)
    device.ask("compile", **{"data": data, **message, "handles": [b.handle for b in buffers], **changes})


def test_a_plan_that_lies_is_refused_and_the_server_goes_on(planned: Planned) -> None:
    _, segment, _ = planned
    compiled(planned)
    message, data = write_segment(segment)
    rows = message["buffers"]
    lies: list[dict[str, Any]] = [
        {"tables": [1 << 40, 0, 0, 0]},
        {"tables": [len(data)]},
        {"tables": [len(data) - 1, 0, 0, 1]},
        {"tables": ["x", 0, 0, 0]},
        {"data": data[:-8]},
        {"data": b""},
        {"handles": []},
        {"handles": [99] * len(rows)},
        {"handles": [-1] * len(rows)},
        {"buffers": [[name, usage, size + (1 << 30)] for name, usage, size in rows]},
        {"buffers": [[name, 0, size] for name, usage, size in rows]},
        {"buffers": [[name, 99, size] for name, usage, size in rows]},
        {"buffers": [["x" * 10, usage, size] for name, usage, size in rows]},
        {"buffers": "all"},
    ]
    for lie in lies:
        with pytest.raises((DeviceError, RequestError)):
            compiled(planned, **lie)
    compiled(planned)


def test_plans_with_random_bytes_are_refused_and_the_server_goes_on(planned: Planned) -> None:
    """Unless the bytes do not matter: the backend checks every number of a plan."""
    _, segment, _ = planned
    rng = np.random.default_rng(0)
    _, data = write_segment(segment)
    refused = 0
    for _ in range(200):
        changed = bytearray(data)
        for at in rng.integers(0, len(data), 3):
            changed[at] = rng.integers(0, 256)
        try:
            compiled(planned, data=bytes(changed))
        except DeviceError:
            refused += 1
    assert refused > 50
    compiled(planned)


MESSAGES: list[tuple[str, dict[str, Any]]] = [
    ("nothing", {}),
    ("open", {"device": "cpu", "index": 0, "abi": "1"}),
    ("alloc", {"size": 1 << 61, "usage": STATE}),
    ("alloc", {"size": -1, "usage": STATE}),
    ("alloc", {"size": 64, "usage": 77}),
    ("alloc", {"size": 64, "usage": WEIGHT}),
    ("alloc", {"size": True, "usage": 2}),
    ("alloc", {}),
    ("packed", {"weight": [1, 2]}),
    ("packed", {"weight": [8, 1, 1 << 62, 32]}),
    ("measure", {"what": "time", "size": 1}),
    ("measure", {"what": "read", "size": 1 << 50}),
    ("read", {"buffer": 99, "offset": 0, "size": 1}),
    ("read", {"buffer": [], "offset": 0, "size": 1}),
    ("write", {"buffer": {}, "offset": 0}),
    ("run", {"exec": 1}),
    ("wait", {"exec": None, "timeout": 1}),
    ("times", {"exec": "x"}),
    ("free", {"buffer": 0}),
    ("release", {"exec": -3}),
    ("load", {"model": 3, "names": None, "packed": {}}),
    ("load", {"model": {"path": "/dev/zero", "identity": "x"}, "names": None, "packed": {}}),
    ("load", {"model": {"path": "/etc/passwd", "identity": "x"}, "names": None, "packed": {}}),
    ("load", {"model": {"path": "a\0b", "identity": "x"}, "names": None, "packed": {}}),
    ("load", {"model": {}, "names": [1], "packed": {}}),
    ("load", {"model": {}, "names": None, "packed": {"x": [1]}}),
    ("speed", {"model": {"path": "/none", "identity": ""}, "repack": 1, "activations": 8}),
    ("compile", {"tables": None, "buffers": None}),
    ("refusal", {"tables": [0, 0, 0, 0], "buffers": []}),
]


@pytest.mark.parametrize(("do", "values"), MESSAGES, ids=[f"{do}-{i}" for i, (do, _) in enumerate(MESSAGES)])
def test_a_message_that_means_nothing_is_an_error_and_the_server_goes_on(
    device: NetDevice, do: str, values: dict[str, Any]
) -> None:
    if do != "refusal":
        with pytest.raises((DeviceError, ModelError, RequestError)):
            device.ask(do, **values)
    else:
        device.ask(do, **values)
    buffer = device.alloc(64, OUT)
    buffer.write(0, b"a" * 64)
    out = np.empty(64, np.uint8)
    buffer.read_into(0, out)
    assert bytes(out) == b"a" * 64


def test_reads_and_writes_stay_within_their_buffer(device: NetDevice) -> None:
    buffer = device.alloc(64, CONST)
    for at, size in ((0, 65), (64, 1), (1 << 62, 1), (63, 2)):
        with pytest.raises((DeviceError, RequestError)):
            buffer.read_into(at, np.empty(size, np.uint8))
        buffer.write(at, bytes(size))
        with pytest.raises((DeviceError, RequestError)):
            device.info()
        buffer.copy(at, 0, size)
        with pytest.raises((DeviceError, RequestError)):
            device.info()
    device.info()


def test_a_buffer_that_a_plan_uses_is_not_freed(planned: Planned) -> None:
    device, _, buffers = planned
    for buffer in buffers:
        device.tell("free", buffer=buffer.handle)
        with pytest.raises(RequestError, match="a plan uses it: release the plan first"):
            device.info()


def test_large_values_cross_in_parts(device: NetDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("satchel.runtime.net.device.PART", 1000)
    data = np.random.default_rng(0).integers(0, 256, 70_001).astype(np.uint8)
    buffer = device.alloc(80_000, STATE)
    buffer.write(7, data)
    buffer.copy(75_000, 7, 4000)
    out = np.empty_like(data)
    buffer.read_into(7, out)
    np.testing.assert_array_equal(out, data)
    few = np.empty(4000, np.uint8)
    buffer.read_into(75_000, few)
    np.testing.assert_array_equal(few, data[:4000])


# --- connections


def test_so_many_connections_without_a_proof_are_open_and_no_more(key: Path) -> None:
    """Whoever holds the key is served as soon as those are let go."""
    with net_hosts.host(key, deadlines=LinkDeadlines(handshake=0.5, missed=60)) as server:
        held = [socket.create_connection((net_hosts.LOOPBACK, server.port)) for _ in range(PENDING + 8)]
        for sock in held:
            assert net_hosts.closed(sock)
            sock.close()
        server._deadlines = net_hosts.PATIENT  # a busy machine may take longer than half a second
        with opened(net_hosts.name_of(server), key) as device:
            assert device.info().memory_total > 0


def test_a_server_that_closes_ends_its_sessions_with_an_error(key: Path) -> None:
    with net_hosts.host(key) as server:
        device = opened(net_hosts.name_of(server), key)
        buffer = device.alloc(64, OUT)
    with pytest.raises(LinkLost, match="was lost"):
        waiting.until(lambda: device.info() and None, "the connection ends")
    with pytest.raises(LinkLost):
        buffer.read_into(0, np.empty(1, np.uint8))
    buffer.close()
    device.close()


def test_a_silent_host_is_lost(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that gives no sign of life, as one whose host has lost its power."""
    with net_hosts.host(key, deadlines=LinkDeadlines(beat=1000.0)) as server:
        device = opened(net_hosts.name_of(server), key)
        device._link._deadlines = LinkDeadlines(beat=0.05)
        with contextlib.suppress(LinkLost):  # so soon, on a busy machine
            device.info()  # from here on the new deadlines hold
        waiting.until(lambda: device._lost, "the host is taken for lost")
        with pytest.raises(LinkLost, match=r"gave no sign of life for 0\.15 s"):
            device.info()
        device.close()
