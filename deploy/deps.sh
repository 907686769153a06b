#!/bin/bash
# Installs what EQVPS needs from the system: QEMU to run machines, mke2fs for
# their disks, the rest to build the image and to run the tests. It looks first,
# so where nothing is missing it takes no time and no network.
set -euo pipefail

missing=()
need() { # program package
	command -v "$1" >/dev/null || missing+=("$2")
}
need qemu-system-x86_64 qemu-system-x86
need mkfs.ext4 e2fsprogs
need mmdebstrap mmdebstrap
need xz xz-utils
need dpkg-deb dpkg
need npm npm
need git git
need python3 python3
[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || missing+=(debian-archive-keyring)
[ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
# The tests install the published Python client in an environment of its own.
python3 -SIc 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)

if ! command -v go >/dev/null; then
	echo "Go is not on the PATH; install the version that go.mod names, or later, and try again." >&2
	exit 1
fi
[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
	echo "Missing: ${missing[*]} (names of Debian's packages); install them with this system's package manager and try again." >&2
	exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
	echo "Missing: ${missing[*]}; run \`sudo make deps\` once, or install them." >&2
	exit 1
fi
echo "Installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -y -q --no-install-recommends "${missing[@]}"
