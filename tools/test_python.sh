#!/usr/bin/env bash
# The Python package's tests: builds the wheel, installs it into a new virtual environment of each Python from 3.10 that is present, and
# runs pytest there. One of them gets the packages that blco works together with as well; the others get NumPy alone, and leave out the
# tests that are marked `slow`. Arguments go to pytest. BLCO_WHEEL names a wheel that is built already.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
with=(scipy sparse pandas polars pyarrow pyttb tensorly scikit-learn matplotlib tqdm mypy ruff mpi4py)
declare -A pythons preparing
for python in python3 python3.{10..19} "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python3; do
    version=$("$python" -c 'import sys, venv; print("%d.%d" % sys.version_info[:2] if sys.version_info >= (3, 10) else "")' 2>/dev/null) || continue
    if [ -n "$version" ] && [ -z "${pythons[$version]:-}" ]; then
        pythons[$version]=$python
        first=${first:-$version}
    fi
done
echo "Python ${!pythons[*]}, with other packages in ${first:?no Python from 3.10 is here}"
get() { # VERSION PACKAGE...: into its environment. Modules are compiled when they are imported; most never are.
    "$target/python/$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "${@:2}"
}
prepare() {
    rm -rf "$target/python/$1"
    "${pythons[$1]}" -m venv "$target/python/$1"
    get "$1" pytest
    [ "$1" = "$first" ] || return 0
    # A package that cannot be had is left out; the tests that compare with it are skipped.
    get "$1" "${with[@]}" || for package in "${with[@]}"; do get "$1" "$package" || echo "no $package" >&2; done
}
# While the wheel is built.
for version in "${!pythons[@]}"; do
    prepare "$version" &
    preparing[$version]=$!
done
wheel=${BLCO_WHEEL:-$(tools/build_wheel.sh --quick | tail -n 1)}
if command -v "${CXX:-g++}" >/dev/null; then
    BLCO_MOCK_CUDA=${BLCO_MOCK_CUDA:-$(tools/make_mock.sh)}
    export BLCO_MOCK_CUDA
fi
for version in "${!pythons[@]}"; do wait "${preparing[$version]}"; done
for version in "${!pythons[@]}"; do
    environment=$target/python/$version
    get "$version" "$wheel"
    all=(-m "not slow")
    if [ "$version" = "$first" ]; then
        all=()
        if "$environment/bin/python" -c 'import mypy, ruff' 2>/dev/null; then
            (cd python && "$environment/bin/mypy" --cache-dir "$target/python/mypy" blco)
            (cd python && "$environment/bin/ruff" check --quiet --no-cache . && "$environment/bin/ruff" format --quiet --no-cache --check .)
        fi
    fi
    # Not from python/, whose folder blco is not what was installed.
    (cd python/tests && "$environment/bin/python" -m pytest -p no:cacheprovider "${all[@]}" "$@")
done
