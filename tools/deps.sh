#!/usr/bin/env bash
# Installs what the build, the demo and the tests need and this machine lacks.
#
#   tools/deps.sh build     compiler for the BPF programs and its headers
#   tools/deps.sh run       also the servers and clients of the demo and the tests
#
# Servers whose Debian packages would start a system service are not installed: their files are
# unpacked below target/servers and run from there. So are the tests of Python.
set -euo pipefail
cd "$(dirname "$0")/.."

what=${1:-run}
sudo=()
[ "$(id -u)" = 0 ] || sudo=(sudo)

say() { printf '\033[1m==>\033[0m %s\n' "$*"; }

command -v apt-get >/dev/null || {
  echo "steadfast: this script knows apt only; install by hand: clang, llvm, libelf and zlib" >&2
  echo "  headers, pkg-config, iproute2, tcpdump, curl, wget, python3, nginx, apache2, busybox, gunicorn, gevent, openssl," >&2
  echo "  strace, redis, vsftpd, samba, smbclient, openssh, ngircd, caddy" >&2
  exit 1
}
command -v cargo >/dev/null || {
  echo "steadfast: Rust is missing; see rustup.rs, or apt-get install rustup" >&2
  exit 1
}

packages=(build-essential clang llvm libelf-dev zlib1g-dev pkg-config linux-libc-dev)
if [ "$what" = run ]; then
  packages+=(iproute2 tcpdump curl wget python3 ca-certificates apache2-bin busybox-static
    gunicorn python3-gevent openssl openssh-client redis-tools smbclient strace)
fi

updated=
update() {
  [ -n "$updated" ] || { say "updating the package lists"; "${sudo[@]}" apt-get update -qq; }
  updated=yes
}
# install PACKAGE...: those that are not there yet.
install() {
  local package status missing=()
  for package; do
    status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  update
  say "installing ${missing[*]}"
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}
install "${packages[@]}"

# unpack PACKAGE FILE: the file of a Debian package, below target/servers; the libraries that it needs are
# installed.
unpack() {
  local package=$1 file=$2 libraries
  [ -x "target/servers/$file" ] && return
  update
  mapfile -t libraries < <(apt-cache depends "$package" | sed -nE '/-tools$/d; s/^ *Depends: (lib.*|.*-libs)$/\1/p')
  install "${libraries[@]}"
  say "unpacking $package, which is not installed"
  mkdir -p target/servers
  local work
  work=$(mktemp -d)
  chmod 755 "$work"
  (cd "$work" && apt-get download -qq -o APT::Sandbox::User=root "$package" && dpkg-deb -x "$package"_*.deb root)
  cp -a "$work/root/." target/servers/
  rm -rf "$work"
  [ -x "target/servers/$file" ] || {
    echo "steadfast: package $package has no $file" >&2
    exit 1
  }
}
if [ "$what" = run ]; then
  # The server is in redis-tools, and serves if it is called so; its own package starts a service.
  mkdir -p target/servers/usr/bin
  ln -sfn /usr/bin/redis-check-rdb target/servers/usr/bin/redis-server
  unpack nginx usr/sbin/nginx
  unpack vsftpd usr/sbin/vsftpd
  unpack samba usr/sbin/smbd
  unpack openssh-server usr/sbin/sshd
  unpack ngircd usr/sbin/ngircd
  unpack caddy usr/bin/caddy
  # As the package would: sshd gives up its rights for this user's.
  id sshd >/dev/null 2>&1 ||
    "${sudo[@]}" useradd --system --no-create-home --home-dir /run/sshd --shell /usr/sbin/nologin sshd
  python=$(/usr/bin/python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
  unpack "lib$python-testsuite" "usr/lib/$python/test"
fi
