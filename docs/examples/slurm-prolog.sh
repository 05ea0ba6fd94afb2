#!/bin/sh
# Prolog of slurm.conf: a node that cannot run the launch is drained with the finding as the reason,
# and the job goes elsewhere. A usage error or a defect of the check drains nothing, nor does a node
# without the program, nor what cannot be read (--fail-on fail): a file server that answers late would
# drain every node. slurmd gives a prolog no PATH, so name its folder here.
PATH=/usr/local/bin:/usr/bin:/bin
LAUNCH=/etc/mooncake-preflight/launch.sh
[ -r "$LAUNCH" ] || exit 0
command -v mooncake-preflight >/dev/null || exit 0
line=$(mooncake-preflight check --format slurm-prolog --fail-on fail --timeout 20 "$LAUNCH")
[ $? -eq 1 ] || exit 0
# Without this, Slurm's own reason is "Prolog error".
scontrol update NodeName="$SLURMD_NODENAME" State=DRAIN Reason="${line#print }"
exit 1
