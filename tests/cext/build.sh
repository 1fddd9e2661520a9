#!/bin/sh
# Builds the C test program and runs it: build.sh FOLDER [plain|address|thread]
#   address: under the address and undefined behaviour sanitizers; thread: the pool under the thread sanitizer.
set -eu
folder=$1
kind=${2:-plain}
root=$(cd "$(dirname "$0")/../.." && pwd)
case $kind in
plain) options="" ;;
address) options="-DSATCHEL_SANITIZE=ON" ;;
thread) options="-DSATCHEL_TSAN=ON -DSATCHEL_STRICT=OFF" ;; # with one kernel set, some of isa.c is not used
*) echo "build.sh: $kind is none of plain, address, thread" >&2; exit 2 ;;
esac
cmake -S "$root" -B "$folder" -DSATCHEL_STRICT=ON -DSATCHEL_TESTS=ON \
    -DPython_EXECUTABLE="$(command -v python3)" $options
cmake --build "$folder" --target satchel_cext_test --parallel 2
if [ "$kind" = thread ]; then
    exec "$folder/cext/tests/satchel_cext_test" --threads
fi
exec "$folder/cext/tests/satchel_cext_test"
