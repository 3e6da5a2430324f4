#!/bin/sh
# Mounts that the host makes while a sandbox runs. Started with `unshare -m`, from the
# root of the clone: what is mounted here is a shared mount, as systemd makes / one.
a=docs/attacks berm=$PWD/bin/berm d=$(mktemp -d) in=/mnt/user-data/uploads/sub
look='sleep 2.5; grep -c "$0" /proc/self/mountinfo; touch "$0/written" && echo WRITTEN; cat "$0/secret"'
chmod 755 "$d"; mkdir -p "$d/up/sub"
mount --bind "$d" "$d" && mount --make-shared "$d"
mount --rbind /usr /usr && mount --make-shared /usr

# attack HOST INSIDE COMMAND...: mounts at HOST while the command looks at INSIDE.
attack() {
	host=$1 inside=$2; shift 2
	"$@" -- sh -c "$look" "$inside" & sleep 1.2
	mount -t tmpfs none "$host" && chmod 777 "$host" && echo secret >"$host/secret"
	wait; ls "$host"; umount "$host"
}
echo "== U, uploads"; attack "$d/up/sub" $in $a/U "$berm" run --uploads "$d/up"
echo "== R, uploads"; attack "$d/up/sub" $in "$berm" run --uploads "$d/up"
echo "== U, /usr"; attack /usr/local /usr/local $a/U "$berm" run
echo "== R, /usr"; attack /usr/local /usr/local "$berm" run
umount -l "$d"; rm -r "$d"
