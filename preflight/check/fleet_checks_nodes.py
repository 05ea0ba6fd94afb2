"""Findings that stand for a node which could not be asked, or did not answer in time."""

from __future__ import annotations

from checks.base.finding import Check, Consequence, Status

NODE_CHECKS = (
    Check(
        id="fleet.ssh",
        asks="Does ssh get through to the node?",
        consequence=Consequence.WILL_NOT_START,
        why="ssh itself failed (exit code 255), so nothing ran on the node; its own line is "
        "quoted: 'connect to host gpu015 port 22: Connection refused', 'Could not resolve "
        "hostname', 'Host key verification failed.', 'Permission denied (publickey)'. Connection "
        "refused means that the machine is up, and no sshd; no route and timed out mostly that it "
        "is down. Behind a gateway of ClusterShell's tree all its nodes fail together (exit code "
        "76).",
        outcomes=((Status.UNKNOWN, "ssh or the gateway ended with a failure of its own"),),
        remedy="Try ssh -o BatchMode=yes NODE true. An unknown host key: compare it, then put it "
        "into known_hosts (ssh-keyscan NODE). Another user, key or port: --user, --ssh-options.",
        source="OpenSSH ssh(1), EXIT STATUS; ClusterShell; measured against OpenSSH 9.2",
        topics=(),
    ),
    Check(
        id="fleet.timeout",
        asks="Does the node answer in time?",
        consequence=Consequence.WILL_NOT_START,
        why="The time was over and no report had come. 'no answer': the connection, or a login "
        "shell that waits, took it all. 'the connection stood, and no report came': a reading "
        "hangs on the node, mostly a file system that does not answer (NFS, FUSE), an nvidia-smi "
        "or verbs call that hangs in its driver, or a machine that swaps. A launch would hang "
        "there as well.",
        outcomes=((Status.UNKNOWN, "no report within --timeout, or of a pod within --wait"),),
        remedy="Look on the node for processes in state D (ps -eo pid,stat,wchan:30,args) and in "
        "dmesg for 'blocked for more than 120 seconds'; else ask again with a longer --timeout.",
        source="the time that was given; measured with nodes that hang",
        topics=(),
    ),
    Check(
        id="fleet.tool",
        asks="Is this program on the node?",
        consequence=Consequence.DEGRADED,
        why="It is not on the PATH of a shell without a terminal, which reads no profile of "
        "interactive shells, or it is older than the command that asked. The node itself may be "
        "well: nothing of it was looked at.",
        outcomes=((Status.UNKNOWN, "no such program there, and --carry never"),),
        remedy="Give its path with --remote-command, or let it be carried there: --carry auto.",
        source="the node's shell (command -v)",
        topics=(),
    ),
    Check(
        id="fleet.python",
        asks="Can the node's Python run what is carried there?",
        consequence=Consequence.DEGRADED,
        why="A node without this program gets it as one file for its own python3, which has to be "
        "3.10 or newer; distributions of 2021 and before have an older one (3.6 of RHEL 8, 3.8 of "
        "Ubuntu 20.04). That is of the host: the launch's own Python lies in its container or "
        "virtual environment, and may be another.",
        outcomes=((Status.UNKNOWN, "no python3, or one that is too old"),),
        remedy="Name another with --remote-python, as that of the launch's virtual environment.",
        source="the node's python3 (sys.version)",
        topics=(),
    ),
    Check(
        id="fleet.folder",
        asks="Can something be unpacked on the node?",
        consequence=Consequence.DIES_LATER,
        why="mktemp, head or tar failed before anything ran: the temporary folder is full ('No "
        "space left on device'), read-only, or not there, or there is no tar. A full /tmp stops "
        "the launch too: SGLang and Triton write their caches and sockets there.",
        outcomes=(
            (Status.UNKNOWN, "no folder below TMPDIR, or /tmp, that a tar can be unpacked in"),
        ),
        remedy="See df -h /tmp and df -i /tmp on the node, and set TMPDIR for the login shell.",
        source="the node's mktemp and tar; measured with a full and a read-only folder",
        topics=(),
    ),
    Check(
        id="fleet.slurm",
        asks="Does Slurm get to the node?",
        consequence=Consequence.WILL_NOT_START,
        why="Slurm gives the node no job, or starts nothing there: it is down, drained or not "
        "responding (the reason of sinfo is quoted), its slurmd does not answer ('Task launch for "
        "StepId=... failed on node ...: Communication connection failure'), its prolog fails "
        "(which drains it), or other jobs have it ('Requested nodes are busy'). One slurmd that "
        "is silent ends a step's tasks on every node; those are asked again without it.",
        outcomes=(
            (Status.UNKNOWN, "out of service, busy for --queue-timeout, or no task started"),
        ),
        remedy="scontrol show node NODE; journalctl -u slurmd on it; once mended: scontrol update "
        "nodename=NODE state=resume. A busy one: a longer --queue-timeout.",
        source="measured with Slurm 22.05.8: srun, sinfo",
        topics=(),
    ),
    Check(
        id="fleet.pod",
        asks="Did a pod run on the node, and is there a log of it?",
        consequence=Consequence.WILL_NOT_START,
        why="The pod has the same claims as the launch, and what keeps it away keeps the launch "
        "away: '0/4 nodes are available: 4 Insufficient rdma/hca', a taint without a toleration, "
        "ImagePullBackOff, CreateContainerConfigError, a CrashLoopBackOff with how it ended "
        "before, or Evicted. Kubernetes' own words are quoted. A node of --nodes without any pod "
        "is named too.",
        outcomes=(
            (
                Status.UNKNOWN,
                "pending, stuck, evicted, over without a report, its log cannot be read, or no pod",
            ),
        ),
        remedy="kubectl describe pod POD, and its events; a smaller claim beside a running "
        "server: fleet manifest --no-claim.",
        source="Kubernetes pod status: conditions, containerStatuses; kubectl logs",
        topics=(),
    ),
    Check(
        id="fleet.interrupted",
        asks="Was every node waited for?",
        consequence=Consequence.DEGRADED,
        why="Ctrl-C, SIGTERM or SIGHUP ended the run before this node had answered; a session "
        "that closed is a SIGHUP. It says nothing of the node. The exit code is 130 (Ctrl-C), 143 "
        "or 129, whatever the others said.",
        outcomes=((Status.UNKNOWN, "interrupted before it answered, or before it was asked"),),
        remedy="Run it again, in tmux or with nohup where the session may close; --reports FOLDER "
        "keeps what has come.",
        source="this program",
        topics=(),
    ),
)
