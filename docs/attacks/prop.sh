# run in a mount namespace of its own: unshare -m sh prop.sh  (a shared mount, as systemd makes / one)
cd /tmp/x3; mount --bind pr pr; mount --make-shared pr
echo "== U, read-only uploads, the host mounts below it later"
( ./U ./berm run --uploads /tmp/x3/pr/up -- sh -c 'sleep 2.5; grep uploads /proc/self/mountinfo; touch /mnt/user-data/uploads/sub/written && echo WROTE-IN-READ-ONLY; cat /mnt/user-data/uploads/sub/secret' & sleep 1.2; mount -t tmpfs none pr/up/sub; chmod 777 pr/up/sub; echo hidden > pr/up/sub/secret; wait; ls -la pr/up/sub; umount pr/up/sub )
echo "== root"
( ./berm run --uploads /tmp/x3/pr/up -- sh -c 'sleep 2.5; grep uploads /proc/self/mountinfo; touch /mnt/user-data/uploads/sub/written && echo WROTE-IN-READ-ONLY; cat /mnt/user-data/uploads/sub/secret' & sleep 1.2; mount -t tmpfs none pr/up/sub; chmod 777 pr/up/sub; echo hidden > pr/up/sub/secret; wait; umount pr/up/sub )
echo "== root, no launcher, /usr"
mount --bind /usr /usr; mount --make-shared /usr; mkdir -p /usr/local/x3probe
( ./berm run -- sh -c 'sleep 2.5; grep x3probe /proc/self/mountinfo; touch /usr/local/x3probe/w && echo WROTE-IN-USR' & sleep 1.2; mount -t tmpfs none /usr/local/x3probe; chmod 777 /usr/local/x3probe; wait; ls -la /usr/local/x3probe; umount /usr/local/x3probe )
rmdir /usr/local/x3probe
