#!/usr/bin/env bash
# Runs once, as root, when Gradescope (or the Dockerfile) builds the image. It installs Python 3.12,
# since the base image has an older one, and then the course as `make setup` does for a student.
#
# PHASE=03 bash setup.sh     the phase to grade; or put it into the file `phase` beside this script
set -euo pipefail

base="${AUTOGRADER_BASE:-/autograder}"
course="$base/source/course"

if [ -n "${PHASE:-}" ]; then
    echo "$PHASE" >"$base/source/phase"
fi
if ! [ -s "$base/source/phase" ]; then
    echo "setup.sh: say which phase is graded: PHASE=03, or a file 'phase' that holds 03" >&2
    exit 1
fi

apt-get update
# No bubblewrap: this Ubuntu's is too old for the grader, which makes its own namespaces instead.
apt-get install -y --no-install-recommends python3-pip python3-venv
python3 -m venv "$base/uv"
"$base/uv/bin/pip" install uv

# Not below /root: the student's code runs under another uid and must be able to start Python.
export UV_PYTHON_INSTALL_DIR="$base/python"
"$base/uv/bin/uv" python install 3.12
python="$("$base/uv/bin/uv" python find 3.12)"
cd "$course"
"$python" -m labkit setup

# Every submission starts from this image, so what is not compiled now is compiled again for each.
"$course/.venv/bin/python" -m labkit demo

# All of it is root's: hidden suites, solutions and the reference of every exercise lie in it. A user
# who may start Python and import its packages, and may read nothing else, is who the student's code
# runs as where the machine allows no namespaces.
chmod -R go-rwx "$base/source"
chmod go+x "$base/source" "$course"
chmod -R go+rX "$course/.venv" "$base/python"

# An image that does not give the reference all points must not be built.
LAB=reference "$course/.venv/bin/python" -m labkit grade "$(cat "$base/source/phase")"
