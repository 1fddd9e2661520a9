#!/usr/bin/env bash
# packaging/packages.sh WHEELS OUT: makes images and Debian's package of the wheels in a folder, and runs each: an image in a
# chroot, the package in a bare Debian root into which dpkg installs it. Needs root's rights, mmdebstrap and uv.
set -euo pipefail

# A function, so that bash has read all of it before the first step.
main() {
    here=$(cd "$(dirname "$0")" && pwd)
    wheels=$1 out=$2
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    mkdir -p "$out"

    # The wheel for this machine, and the model's where it is one of its own.
    given=()
    for wheel in "$wheels"/satchel-*manylinux*_x86_64.whl "$wheels"/satchel-*linux_x86_64.whl "$wheels"/satchel_model_40m-*.whl; do
        [ ! -f "$wheel" ] || [[ " ${given[*]} " == *" $wheel "* ]] || given+=(--wheel "$wheel")
    done
    if ((${#given[@]} == 0)); then
        echo "packages: error: $wheels: expected a wheel of satchel for x86-64 Linux, found none: run packaging/wheels.py" >&2
        exit 1
    fi

    python3 "$here/oci.py" root "$scratch/root"
    version=$(python3 "$here/release.py" version)
    python3 "$here/oci.py" build --root "$scratch/root" "${given[@]}" -o "$scratch/image" --archive "$out/satchel-$version-oci-amd64.tar"
    python3 "$here/oci.py" try "$scratch/image"
    python3 "$here/oci.py" show "$scratch/image"
    if [ -n "$(unzip -Z1 "${given[1]}" '*/libsatchel_cuda.so' 2>/dev/null)" ]; then
        python3 "$here/oci.py" build --root "$scratch/root" "${given[@]}" --gpu cuda -o "$scratch/cuda" \
            --archive "$out/satchel-$version-oci-cuda-amd64.tar"
        python3 "$here/oci.py" try "$scratch/cuda" # on the processor: a machine without a GPU is a machine, too
    fi
    python3 "$here/deb.py" "${given[@]}" -o "$out"
    python3 "$here/deb.py" try "$out"/satchel_*_amd64.deb
}

main "$@"
