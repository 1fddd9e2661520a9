#!/bin/sh
# Builds the C test program, warnings as errors, and runs it: build.sh FOLDER [plain|address|thread]
# CI=true: repeats less, and only what the program runs on this CPU is compiled; every check of an op, a format and a set stays.
# What the build says is in FOLDER/build.log, and shown where it fails. JOBS: files to compile at a time, 2 by default.
#   address: under the address and undefined behaviour sanitizers; thread: the pool under the thread sanitizer.
set -eu
folder=$1
kind=${2:-plain}
root=$(cd "$(dirname "$0")/../.." && pwd)
run=""
target="all"
case $kind in
plain) options="" ;;
address) options="-DSATCHEL_SANITIZE=ON -DSATCHEL_TEST_BACKENDS=ON" ;; # these are compiled too
thread) options="-DSATCHEL_TSAN=ON -DSATCHEL_STRICT=OFF" run=--threads ;; # with one kernel set, some of isa.c is not used
*) echo "build.sh: $kind is none of plain, address, thread" >&2; exit 2 ;;
esac
if [ "${CI:-}" = true ] && [ "$kind" != plain ]; then
    run="$run --short" target=satchel_cext_test
    [ "$kind" = thread ] || options="-DSATCHEL_SANITIZE=ON -DSATCHEL_SETS=runnable"
fi

build() {
    cmake -S "$root" -B "$folder" -DSATCHEL_STRICT=ON -DSATCHEL_TESTS=ON -DSATCHEL_CUDA=OFF -DSATCHEL_HIP=OFF -DSATCHEL_SYCL=OFF \
        -DPython_EXECUTABLE="$(command -v python3)" $options
    cmake --build "$folder" --target "$target" --parallel "${JOBS:-2}"
}

mkdir -p "$folder"
build >"$folder/build.log" 2>&1 || { cat "$folder/build.log" >&2; exit 1; }
exec "$root/.ci/within" 900 "$folder/cext/tests/satchel_cext_test" $run
