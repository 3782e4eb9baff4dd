#!/usr/bin/env bash
# Runs a command where it cannot disturb the machine: in namespaces of its own, with no devices but the
# harmless ones, kernel parameters that cannot be written, and without the rights to mount, to set the
# clock, to start anew, or to get ahead of others. Needs root.
set -euo pipefail

if [ "${1:-}" != --inside ]; then
  exec unshare --mount --uts --ipc --net --pid --fork --kill-child --mount-proc "$0" --inside "$@"
fi
shift
mount --make-rprivate /
ip link set lo up
dev=$(mktemp -d)
mount -t tmpfs -o size=64m,mode=755 devices "$dev"
mknod -m 666 "$dev/null" c 1 3
mknod -m 666 "$dev/zero" c 1 5
mknod -m 666 "$dev/full" c 1 7
mknod -m 666 "$dev/random" c 1 8
mknod -m 666 "$dev/urandom" c 1 9
mknod -m 666 "$dev/tty" c 5 0
ln -s /proc/self/fd "$dev/fd"
ln -s pts/ptmx "$dev/ptmx"
mkdir -p "$dev/pts" "$dev/shm" "$dev/mqueue"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$dev/pts"
mount -t tmpfs -o size=512m,mode=1777 shm "$dev/shm"
mount -t mqueue mqueue "$dev/mqueue"
mount --move "$dev" /dev
rmdir "$dev"
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
mount --rbind /sys /sys
mount -o remount,bind,ro /sys
umount --recursive --lazy /sys/fs/cgroup
[ ! -e /proc/sysrq-trigger ] || mount --bind /dev/null /proc/sysrq-trigger
less=-sys_admin,-sys_boot,-sys_module,-sys_time,-sys_rawio,-sys_pacct,-syslog,-sys_nice,-bpf,-perfmon
# The first process of a namespace is spared signals: it is this script.
setpriv --bounding-set "$less" --inh-caps "$less" "$@" || exit $?
