#!/bin/sh
# HealthCheckProgram of slurm.conf: it runs on idle nodes, and drains with the finding as the reason.
# What cannot be read drains nothing (--fail-on fail): a file server that answers late would drain all.
LAUNCH=/etc/mooncake-preflight/launch.sh
[ -r "$LAUNCH" ] || exit 0
NODE=${SLURMD_NODENAME:-$(hostname -s)}
reason=$(mooncake-preflight check --format npd --fail-on fail --timeout 20 "$LAUNCH")
[ $? -eq 1 ] || exit 0
exec scontrol update NodeName="$NODE" State=DRAIN Reason="mooncake-preflight: $reason"
