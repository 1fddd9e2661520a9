"""Images of the server without a daemon or a base image: an OCI layout, written file by file.

    python packaging/oci.py root FOLDER       a minimal Debian root with Python (debian_root.py)
    python packaging/oci.py build --root FOLDER --wheel W -o IMAGE [--gpu cuda] [--archive FILE.tar]
    python packaging/oci.py try IMAGE         unpacks it, serves in a chroot, asks one question
    python packaging/oci.py show IMAGE        the sizes of its layers

An image has four layers: Debian with Python, the packages, satchel, the model; so an update of satchel is a
few megabytes. There is no compiler, no shell and no package manager in it. The same root and the same wheels
give the same bytes: entries are sorted, belong to root, and have the time of SOURCE_DATE_EPOCH or 0.

`podman load -i FILE.tar` or `skopeo copy oci:IMAGE ...` takes it. `build` and `try` enter a root filesystem,
which takes root's rights.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import re
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import debian_root
import tree

COMPILERS = re.compile(r"(.*-)?(gcc|g\+\+|cc|clang|ld|as|nvcc|ptxas|make|cmake|zig|tcc)(-[\d.]+)?")
LAYER, CONFIG = "application/vnd.oci.image.layer.v1.tar+gzip", "application/vnd.oci.image.config.v1+json"
MANIFEST, INDEX = "application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.index.v1+json"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LARGEST = 200_000_000  # bytes of an image without a GPU's kernels, compressed and unpacked


@dataclass(frozen=True)
class Layer:
    """A layer of an image, as it is stored."""

    name: str
    content: bytes  # gzip
    diff_id: str  # of the tar inside
    unpacked: int  # bytes of its files


# --- layers


def layer(name: str, root: Path, paths: Iterable[Path], epoch: int) -> Layer:
    """A layer of these files and folders of a root."""
    out, total = BytesIO(), 0
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in paths:
            info = archive.gettarinfo(path, path.relative_to(root).as_posix())
            if info.islnk():  # the second name of a file: layers are cut through, so each has its own content
                info.type, info.linkname, info.size = tarfile.REGTYPE, "", path.stat().st_size
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mtime = epoch
            if info.isreg():
                total += info.size
                with path.open("rb") as file:
                    archive.addfile(info, file)
            else:
                archive.addfile(info)
    content = out.getvalue()
    return Layer(name, packed(content), f"sha256:{hashlib.sha256(content).hexdigest()}", total)


def packed(content: bytes) -> bytes:
    """gzip without a name and a time."""
    out = BytesIO()
    with gzip.GzipFile("", "wb", 9, out, mtime=0) as file:
        file.write(content)
    return out.getvalue()


def entries(root: Path) -> Iterator[Path]:
    """Every file, link and folder below a root, folders before what they hold, in a fixed order."""
    for base, folders, names in os.walk(root):
        folders.sort()
        if base != str(root):
            yield Path(base)
        links = [name for name in folders if Path(base, name).is_symlink()]
        yield from (Path(base, name) for name in sorted([*names, *links]))


def layers(root: Path, epoch: int) -> list[Layer]:
    """The layers of an image, what changes least first."""
    groups: dict[str, list[Path]] = {"debian": [], "packages": [], "satchel": [], "model": []}
    for path in entries(root):
        groups[group_of(path.relative_to(root))].append(path)
    return [layer(name, root, paths, epoch) for name, paths in groups.items() if paths]


def group_of(path: Path) -> str:
    """The layer of a path."""
    if not path.is_relative_to(tree.VENV.parts[0]):
        return "debian"
    inside = path.relative_to(tree.VENV.parts[0]).parts
    name = inside[5] if len(inside) > 5 else ""  # satchel/venv/lib/python3.N/site-packages/NAME
    if path.suffix == ".gguf" or name.startswith("satchel_model"):
        return "model"
    return "satchel" if re.match(r"satchel(-.*)?$", name) or inside[2:3] == ("bin",) else "packages"


# --- the image


def config(gpu: str, made: Sequence[Layer], machine: str, version: str, epoch: int) -> dict[str, Any]:
    """How the image is run."""
    variables = {
        "PATH": f"/{tree.VENV.as_posix()}/bin:/usr/bin",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SATCHEL_MODELS": "/models",
        "XDG_CACHE_HOME": "/tmp",  # measured speeds, which are lost with the container
    }
    if gpu == "cuda":  # NVIDIA's container toolkit mounts the driver where these say so
        variables |= {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    ask = "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/healthz', timeout=5)"
    when = datetime.fromtimestamp(epoch, UTC).isoformat().replace("+00:00", "Z")
    labels = {"title": "satchel", "version": version, "licenses": "MIT AND CC-BY-SA-4.0"}
    return {
        "created": when,
        "architecture": ARCHITECTURES[machine],
        "os": "linux",
        "config": {
            "User": f"{debian_root.USER}:{debian_root.USER}",
            "Env": [f"{name}={value}" for name, value in variables.items()],
            # All interfaces of the container: so the server needs a key (SATCHEL_API_KEY, or --api-key-file).
            "Entrypoint": ["satchel", "serve", "--host", "0.0.0.0"],
            "ExposedPorts": {"8080/tcp": {}},
            "WorkingDir": "/",
            "StopSignal": "SIGTERM",
            "Healthcheck": {"Test": ["CMD", "python3", "-c", ask], "Interval": 30_000_000_000},
            "Labels": {f"org.opencontainers.image.{key}": value for key, value in labels.items()},
        },
        "rootfs": {"type": "layers", "diff_ids": [one.diff_id for one in made]},
        "history": [{"created": when, "created_by": f"packaging/oci.py: {one.name}"} for one in made],
    }


def write(image: Path, made: Sequence[Layer], settings: Mapping[str, Any], tag: str) -> None:
    """Writes the layout: blobs by their digests, and the index that names the manifest."""
    blobs = image / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(content: bytes, kind: str) -> dict[str, Any]:
        name = hashlib.sha256(content).hexdigest()
        (blobs / name).write_bytes(content)
        return {"mediaType": kind, "digest": f"sha256:{name}", "size": len(content)}

    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": put(as_json(settings), CONFIG),
        "layers": [put(one.content, LAYER) | {"annotations": {"satchel.layer": one.name}} for one in made],
    }
    entry = put(as_json(manifest), MANIFEST)
    entry |= {
        "annotations": {"org.opencontainers.image.ref.name": tag},
        "platform": {"architecture": settings["architecture"], "os": "linux"},
    }
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}
    (image / "index.json").write_bytes(as_json(index))
    (image / "oci-layout").write_bytes(as_json({"imageLayoutVersion": "1.0.0"}))


def as_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def archive(image: Path, target: Path, epoch: int) -> None:
    """The layout as one file, which podman and docker load."""
    with tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as out:
        for path in entries(image):
            info = out.gettarinfo(path, path.relative_to(image).as_posix())
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mtime, info.mode = epoch, 0o755 if path.is_dir() else 0o644
            if path.is_file():
                with path.open("rb") as file:
                    out.addfile(info, file)
            else:
                out.addfile(info)


def build(
    root: Path,
    wheels: Sequence[Path],
    image: Path,
    gpu: str = "",
    machine: str = "x86_64",
    packages: str | None = None,
    bytecode: bool = True,
) -> list[Layer]:
    """Makes an image of a root and wheels. The root is left as it is: a copy gets the packages."""
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch, "root")
        shutil.copytree(root, whole, symlinks=True)
        python = tree.python_of(whole)
        tree.environment(whole, wheels, python, gpu, packages, machine)
        if bytecode:
            debian_root.compile_python(whole, tree.VENV.as_posix())
        if found := [p.name for p in tree.files(whole) if COMPILERS.fullmatch(p.name) and "bin" in p.parts]:
            raise tree.TreeError(f"{root}: expected no compiler in an image, found {', '.join(found)}")
        made = layers(whole, epoch)
    version = version_of(wheels)
    settings = config(gpu, made, machine, version, epoch)
    write(image, made, settings, f"{version}-{gpu}" if gpu else version)
    return made


def version_of(wheels: Iterable[Path]) -> str:
    """The version in the name of satchel's wheel."""
    return next(wheel.name.split("-")[1] for wheel in wheels if wheel.name.startswith("satchel-"))


# --- reading an image


def blob(image: Path, entry: Mapping[str, Any]) -> bytes:
    """A blob of an image. TreeError where its bytes are not those of its digest."""
    kind, _, name = str(entry["digest"]).partition(":")
    content = (image / "blobs" / kind / name).read_bytes()
    if (got := hashlib.sha256(content).hexdigest()) != name or len(content) != entry["size"]:
        raise tree.TreeError(
            f"{image}: blob {name}: expected {entry['size']} bytes of that digest, got {got}"
        )
    return content


def read(image: Path) -> tuple[dict[str, Any], list[tuple[dict[str, Any], bytes]]]:
    """An image's configuration, and its layers: each entry of the manifest with its tar."""
    index = json.loads((image / "index.json").read_bytes())
    manifest = json.loads(blob(image, index["manifests"][0]))
    settings = json.loads(blob(image, manifest["config"]))
    found = []
    for entry, wanted in zip(manifest["layers"], settings["rootfs"]["diff_ids"], strict=True):
        content = zlib.decompress(blob(image, entry), wbits=31)
        if (got := f"sha256:{hashlib.sha256(content).hexdigest()}") != wanted:
            raise tree.TreeError(f"{image}: layer {entry['digest']}: expected {wanted} unpacked, got {got}")
        found.append((entry, content))
    return settings, found


def unpack(image: Path, folder: Path) -> dict[str, Any]:
    """Unpacks the layers, one over the other, and returns the configuration."""
    settings, found = read(image)
    for _, content in found:
        with tarfile.open(fileobj=BytesIO(content)) as members:
            members.extractall(folder, filter="fully_trusted")  # links to /usr/bin are right in a root
    return settings


def show(image: Path) -> dict[str, tuple[int, int]]:
    """By layer: bytes compressed, and of the files unpacked."""
    _, found = read(image)
    sizes = {}
    for entry, content in found:
        with tarfile.open(fileobj=BytesIO(content)) as members:
            unpacked = sum(member.size for member in members if member.isreg())
        sizes[entry["annotations"]["satchel.layer"]] = (entry["size"], unpacked)
    return sizes


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(dest="step", required=True)
    making = steps.add_parser("root")
    making.add_argument("folder", type=Path)
    making.add_argument("--suite", default=debian_root.SUITE)
    making.add_argument("--mirror", default="", help="such as a snapshot of Debian, for the same bytes later")
    building = steps.add_parser("build")
    building.add_argument("--root", type=Path, required=True)
    building.add_argument("--wheel", type=Path, action="append", required=True)
    building.add_argument("--gpu", default="", choices=["", "cuda"])
    building.add_argument("-o", "--output", type=Path, required=True)
    building.add_argument("--archive", type=Path)
    for step in ("try", "show"):
        steps.add_parser(step).add_argument("image", type=Path)
    given = parser.parse_args(words)
    try:
        return run(given)
    except tree.TreeError as error:
        print(f"oci: error: {error}", file=sys.stderr)
        return 1


def run(given: argparse.Namespace) -> int:
    if given.step == "root":
        debian_root.make(given.folder, given.suite, given.mirror)
        print(
            f"{given.folder}: {tree.size(given.folder) / 1e6:.1f} MB, Python {tree.python_of(given.folder)}"
        )
    elif given.step == "build":
        made = build(given.root, given.wheel, given.output, given.gpu)
        if given.archive:
            archive(given.output, given.archive, int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
        stored, unpacked = sum(len(one.content) for one in made), sum(one.unpacked for one in made)
        print(f"{given.output}: {stored / 1e6:.1f} MB, {unpacked / 1e6:.1f} MB unpacked")
        if not given.gpu and unpacked > LARGEST:
            raise tree.TreeError(f"{given.output}: expected at most {LARGEST / 1e6:.0f} MB unpacked")
    elif given.step == "show":
        for name, (stored, unpacked) in show(given.image).items():
            print(f"{name:<10} {stored / 1e6:7.1f} MB {unpacked / 1e6:7.1f} MB unpacked")
    else:
        import trial

        with tempfile.TemporaryDirectory() as scratch:
            root = Path(scratch, "root")  # for the image's user, which a folder of tempfile's is not
            root.mkdir(mode=0o755)
            settings = unpack(given.image, root)
            Path(scratch).chmod(0o755)
            print(trial.asked(root, settings["config"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
