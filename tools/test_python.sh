#!/usr/bin/env bash
# The Python package's tests: builds the wheel, installs it into a new virtual environment of each Python from 3.10 that is present, and
# runs pytest there. One of them gets the packages that blco works together with as well; the others get NumPy alone, and leave out the
# tests that are marked `slow`. Arguments go to pytest. BLCO_WHEEL names a wheel that is built already.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
wheel=${BLCO_WHEEL:-$(tools/build_wheel.sh --quick | tail -n 1)}
with=(scipy sparse pandas polars pyarrow pyttb tensorly scikit-learn matplotlib tqdm mypy ruff)
if command -v "${CXX:-g++}" >/dev/null; then
    BLCO_MOCK_CUDA=${BLCO_MOCK_CUDA:-$(tools/make_mock.sh)}
    export BLCO_MOCK_CUDA
fi
declare -A pythons
for python in python3 python3.{10..19} "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python3; do
    version=$("$python" -c 'import sys, venv; print("%d.%d" % sys.version_info[:2] if sys.version_info >= (3, 10) else "")' 2>/dev/null) || continue
    if [ -n "$version" ] && [ -z "${pythons[$version]:-}" ]; then
        pythons[$version]=$python
        first=${first:-$version}
    fi
done
echo "Python ${!pythons[*]}, with other packages in ${first:?no Python from 3.10 is here}"
for version in "${!pythons[@]}"; do
    environment=$target/python/$version
    rm -rf "$environment"
    "${pythons[$version]}" -m venv "$environment"
    pip=("$environment/bin/python" -m pip install --quiet --disable-pip-version-check)
    "${pip[@]}" "$wheel" pytest
    all=(-m "not slow")
    if [ "$version" = "$first" ]; then
        all=()
        # A package that cannot be had is left out; the tests that compare with it are skipped.
        "${pip[@]}" "${with[@]}" || for package in "${with[@]}"; do "${pip[@]}" "$package" || echo "no $package" >&2; done
        if "$environment/bin/python" -c 'import mypy, ruff' 2>/dev/null; then
            (cd python && "$environment/bin/mypy" --cache-dir "$target/python/mypy" blco)
            (cd python && "$environment/bin/ruff" check --quiet --no-cache . && "$environment/bin/ruff" format --quiet --no-cache --check .)
        fi
    fi
    # Not from python/, whose folder blco is not what was installed.
    (cd python/tests && "$environment/bin/python" -m pytest -p no:cacheprovider "${all[@]}" "$@")
done
