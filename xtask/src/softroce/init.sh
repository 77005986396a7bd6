#!/bin/busybox sh
# The guest's first process: loads the modules, puts the machine's files together, and hands over to the runner's agent
# there. Whatever fails ends the guest; the runner shows the end of the console, where it was said why.
#
# Around it, in the initramfs: /modules/*.ko in order, /shares (one "TAG<tab>PATH" a line), /agent (one path).
set -e
trap 'echo "the guest is done"; /bin/busybox poweroff -f' EXIT
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
for module in /modules/*.ko; do
    insmod "$module" || { echo "cannot load $module"; exit 1; }
done

# The machine's files as they are, and a layer in memory over them, so that a command may write anywhere and changes nothing.
mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,access=any,cache=loose,ro root /machine
mount -t tmpfs layer /layer
mkdir /layer/upper /layer/work
mount -t overlay -o lowerdir=/machine,upperdir=/layer/upper,workdir=/layer/work overlay /root
mkdir -p /root/proc /root/sys /root/dev /root/run /root/tmp
for directory in proc sys dev; do
    mount -o move /$directory /root/$directory
done
mkdir -p /root/dev/shm /root/dev/pts
mount -t devpts devpts /root/dev/pts
mount -t tmpfs shm /root/dev/shm
mount -t tmpfs run /root/run

# Directories that the command shares with the machine for good.
while IFS="	" read -r tag path; do
    mkdir -p "/root$path"
    mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,access=any,cache=mmap "$tag" "/root$path"
done < /shares

read -r agent < /agent
chroot /root /bin/sh -c 'PATH=/usr/sbin:/usr/bin:/sbin:/bin; export PATH; ip link set lo up; exec "$1" softroce-guest' sh "$agent"
