#!/bin/bash
# A Slurm of two nodes (or NODES) on one machine, in namespaces of its own: `unshare -m -p -f --kill-child -n -u bash slurm.sh FOLDER COMMAND...`
# runs COMMAND beside it and ends it. Nothing of the machine changes: /etc/hosts, /etc/slurm, /etc/munge, /run and /var/spool are covered by
# mounts that only these processes see. n1, n2, ... have two devices each that are /dev/null; big001 to big064 exist on paper, for --test-only.
set -euo pipefail
folder=$1; shift
nodes=${NODES:-2}
mount --make-rprivate /
mount -t proc proc /proc
for covered in /run /etc/slurm /etc/munge /var/spool /var/lib/munge /var/log/munge; do
  mkdir -p "$covered"; mount -t tmpfs tmpfs "$covered"
done
printf '127.0.0.1 localhost\n10.99.0.1 head\n' > "$folder/hosts"
for i in $(seq "$nodes"); do echo "10.99.0.1$i n$i" >> "$folder/hosts"; done
mount --bind "$folder/hosts" /etc/hosts
hostname head
ip link set lo up
ip link add br0 type bridge; ip addr add 10.99.0.1/24 dev br0; ip link set br0 up
mkdir -p /run/munge /run/netns /var/spool/slurmctld /etc/slurm/devices
for i in $(seq "$nodes"); do mkdir -p "/var/spool/slurmd.n$i"; done
dd if=/dev/urandom bs=1024 count=1 of=/etc/munge/munge.key status=none
chmod 400 /etc/munge/munge.key; chmod 700 /etc/munge /var/lib/munge /var/log/munge; chmod 755 /run/munge
chown -R munge: /run/munge /etc/munge /var/lib/munge /var/log/munge
runuser -u munge -- /usr/sbin/munged --force 2> "$folder/munged.log"
for i in 0 1; do mknod "/etc/slurm/devices/gpu$i" c 1 3; done
echo "NodeName=n[1-$nodes] Name=gpu File=/etc/slurm/devices/gpu[0-1]" > /etc/slurm/gres.conf
cat > /etc/slurm/slurm.conf <<CONF
ClusterName=one
SlurmctldHost=head(10.99.0.1)
SlurmUser=root
AuthType=auth/munge
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd.%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
KillWait=20
AuthInfo=cred_expire=5
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,bf_interval=5
GresTypes=gpu
NodeName=n[1-$nodes] NodeAddr=n[1-$nodes] CPUs=4 RealMemory=4000 Gres=gpu:2 State=UNKNOWN
NodeName=big[001-064] NodeAddr=10.99.0.1 CPUs=96 RealMemory=2000000 Gres=gpu:8 State=CLOUD
PartitionName=all Nodes=n[1-$nodes] Default=YES MaxTime=INFINITE State=UP
PartitionName=big Nodes=big[001-064] State=UP
CONF
slurmctld
for i in $(seq "$nodes"); do
  ip netns add "n$i"
  ip link add "v$i" type veth peer name eth0 netns "n$i"; ip link set "v$i" master br0 up
  ip -n "n$i" addr add "10.99.0.1$i/24" dev eth0; ip -n "n$i" link set eth0 up; ip -n "n$i" link set lo up
  nsenter --net="/run/netns/n$i" unshare -u bash -c "hostname n$i; exec slurmd -N n$i"
done
for _ in $(seq 100); do
  [ "$(sinfo -h -p all -t idle -o %D)" = "$nodes" ] && break
  sleep 0.2
done
exec "$@"
