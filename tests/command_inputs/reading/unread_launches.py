"""Launches that start, beside what is read, something with memory of its own that nobody reads.

Of every kind of file that a launch comes in. Each names what has to be said of it.
"""

from __future__ import annotations

from typing import NamedTuple

# Alone it passes on the demonstration host.
SERVER = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B"
HICACHE = "--enable-hierarchical-cache --hicache-size 10"


class UnreadLaunch(NamedTuple):
    """named: what stands in the line that names what is not read."""

    name: str
    file: str
    text: str
    named: str


def _shell(name: str, text: str, named: str) -> UnreadLaunch:
    text = text.replace("SERVER", f"{SERVER} {HICACHE}")
    return UnreadLaunch(name, "launch.sh", text, named)


def _compose(name: str, service: str, named: str) -> UnreadLaunch:
    lines = "\n".join(f"    {line}" for line in service.splitlines())
    text = (
        "services:\n  sglang:\n    image: lmsysorg/sglang:v0.5.9\n"
        f"    command: {SERVER}\n    ipc: host\n    network_mode: host\n    privileged: true\n"
        f"  other:\n{lines}\n"
    )
    return UnreadLaunch(name, "compose.yaml", text, named)


def _pod(name: str, container: str, named: str) -> UnreadLaunch:
    lines = "\n".join(f"      {line}" for line in container.splitlines())
    spec = (
        "  hostNetwork: true\n  hostIPC: true\n  containers:\n"
        "    - name: sglang\n      image: lmsysorg/sglang:v0.5.9\n"
        f"      command: [{', '.join(SERVER.split())}]\n"
        "      securityContext: {privileged: true}\n"
        f"    - name: other\n{lines}\n"
    )
    text = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n{spec}"
    return UnreadLaunch(name, "pod.yaml", text, named)


def _unit(name: str, lines: str, named: str) -> UnreadLaunch:
    text = f"[Unit]\nDescription=x\n[Service]\n{lines}\nExecStartPost={SERVER}\n"
    return UnreadLaunch(name, "x.service", text, named)


def _dockerfile(name: str, lines: str, named: str) -> UnreadLaunch:
    return UnreadLaunch(name, "Dockerfile", f"FROM ubuntu:22.04\n{lines}\n", named)


def _sbatch(name: str, text: str, named: str) -> UnreadLaunch:
    head = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=8\n"
    text = text.replace("SERVER", f"{SERVER} {HICACHE}")
    return UnreadLaunch(name, "job.sbatch", f"{head}{text}", named)


def _python(name: str, text: str, named: str) -> UnreadLaunch:
    words = [*SERVER.split()]
    head = f"import subprocess\nsubprocess.Popen({words!r})\n"
    return UnreadLaunch(name, "launch.py", f"{head}{text}\n", named)


def _srt(name: str, lines: str, named: str) -> UnreadLaunch:
    text = (
        "name: job\nmodel:\n  path: hf:Qwen/Qwen3-8B\n  container: lmsysorg/sglang:v0.5.9\n"
        "resources:\n  gpus_per_node: 8\n  agg_nodes: 1\n  agg_workers: 1\n"
    )
    return UnreadLaunch(name, "job.yaml", f"{text}{lines}\n", named)


_BACKEND = "backend:\n  type: sglang\n  sglang_config:\n    aggregated:\n      tp-size: 1"

LAUNCHES = (
    # Variables of caches that an engine takes in without a word of its command.
    _shell("flexkv-variable", "SERVER &\nFLEXKV_CPU_CACHE_GB=400 vllm serve Qwen/Qwen3-8B "
           "--port 8100 --max-model-len 4096\n", "FLEXKV_CPU_CACHE_GB"),
    _shell("lmcache-variables", "export LMCACHE_MAX_LOCAL_CPU_SIZE=400 LMCACHE_LOCAL_CPU=True\n"
           "SERVER\n", "LMCACHE_MAX_LOCAL_CPU_SIZE"),
    _shell("kvbm-variables", "export DYN_KVBM_CPU_CACHE_GB=400\nSERVER\n", "DYN_KVBM_CPU_CACHE_GB"),
    _shell("memcache-file", "export MMC_LOCAL_CONFIG_PATH=/etc/mmc.conf\nSERVER\n",
           "MMC_LOCAL_CONFIG_PATH"),
    _shell("infinistore-variable", "export AIBRIX_KV_CACHE_OL_L1_CACHE_CAPACITY_GB=80\nSERVER\n",
           "AIBRIX_KV_CACHE_OL_L1_CACHE_CAPACITY_GB"),
    _shell("vineyard-variable", "export VINEYARD_CACHE_CPU_MEM_LIMIT_GB=80\nSERVER\n",
           "VINEYARD_CACHE_CPU_MEM_LIMIT_GB"),
    # How many are started follows from what is not known.
    *(
        _shell(name, f"{fills}\nfor g in \"${{G[@]}}\"; do SERVER --port $g & done\n", "for g in")
        for name, fills in {
            "mapfile": "mapfile -t G < <(nvidia-smi -L)",
            "read-array": 'IFS=, read -ra G <<< "$HOSTS"',
            "appended": 'G=(); for h in $(hosts); do G+=("$h"); done',
        }.items()
    ),
    # Weights, and others that an engine keeps in host memory.
    *(
        _shell(flag, f"SERVER --{flag} {value}\n", f"--{flag}")
        for flag, value in {
            "cpu-offload-gb": "40",
            "offload-group-size": "4",
            "kt-weight-path": "/models/x-GGUF",
            "enable-weights-cpu-backup": "",
        }.items()
    ),
    _shell("vllm-inputs", "SERVER &\nvllm serve Qwen/Qwen3-8B --mm-processor-cache-gb 64 &\n",
           "--mm-processor-cache-gb"),
    UnreadLaunch("replicas", "compose.yaml",
                 "services:\n  s:\n    image: x\n    deploy: {replicas: 3}\n"
                 "    command: mooncake_client --global_segment_size=10GB --protocol=tcp\n",
                 "3 of it run on one host"),
    _shell("docker-run", "SERVER &\ndocker run -d acme/kvd:1\n", "acme/kvd:1"),
    _shell("podman-run", "SERVER &\npodman run -d --name kv quay.io/acme/kvd\n",
           "quay.io/acme/kvd"),
    _shell("docker-run-own-word", "SERVER &\ndocker run -d acme/kvd:1 start\n", "acme/kvd:1"),
    _shell("docker-run-program", "SERVER &\ndocker run -d acme/tools:1 /opt/kvd/bin/kvd --size 9\n",
           "/opt/kvd/bin/kvd"),
    _shell("docker-run-entrypoint", "SERVER &\ndocker run -d --entrypoint /opt/kvd acme/tools:1\n",
           "/opt/kvd"),
    _shell("docker-run-unknown-image", "SERVER &\ndocker run -d $IMAGE\n", "$IMAGE"),
    _shell("docker-exec", "SERVER &\ndocker exec -d kv /opt/kvd --size 400g\n", "/opt/kvd"),
    _shell("podman-play", "SERVER &\npodman kube play kv.yaml\n", "podman kube play kv.yaml"),
    _shell("docker-stack", "SERVER &\ndocker stack deploy -c kv.yaml kv\n",
           "docker stack deploy -c kv.yaml"),
    _shell("docker-service", "SERVER &\ndocker service create --name kv acme/kvd:1\n",
           "docker service create"),
    _shell("apptainer-run", "SERVER &\napptainer run kvd.sif\n", "kvd.sif"),
    _shell("apptainer-instance", "SERVER &\napptainer instance start kvd.sif kv\n", "kvd.sif"),
    _shell("enroot-start", "SERVER &\nenroot start kvd\n", "enroot start kvd"),
    _shell("kubectl-run", "SERVER &\nkubectl run kv --image=acme/kvd:1\n", "kubectl run kv"),
    _shell("oc-new-app", "oc new-app acme/kvd\nSERVER\n", "oc new-app"),
    _shell("kubectl-scale", "SERVER &\nkubectl scale deploy/kv --replicas=4\n",
           "kubectl scale deploy/kv"),
    # Programs that go on beside the server.
    _shell("background", "/opt/kvd/bin/kvd --size 400g &\nSERVER\n", "/opt/kvd/bin/kvd"),
    _shell("nohup", "nohup ./kvd > kvd.log 2>&1 &\nSERVER\n", "./kvd"),
    _shell("exec", "SERVER &\nexec kvd --size 400g\n", "kvd"),
    _shell("setsid", "setsid -f kvd --size 400g\nSERVER\n", "kvd"),
    _shell("daemon", "kvd --daemon\nSERVER\n", "kvd --daemon"),
    _shell("tmux", "tmux new-session -d -s kv 'kvd --size 400g'\nSERVER\n", "kvd"),
    _shell("screen", "screen -dmS kv kvd --size 400g\nSERVER\n", "kvd"),
    _shell("ray", "SERVER &\nray start --head --object-store-memory 400000000000\n", "ray start"),
    _shell("python-module", "python3 -m acme_kv.daemon --size 400 &\nSERVER\n", "acme_kv.daemon"),
    _shell("python-plain-module", "python3 -m kvd --size 400 &\nSERVER\n", "kvd"),
    _shell("python-script", "python3 /opt/acme/daemon.py &\nSERVER\n", "/opt/acme/daemon.py"),
    _shell("mpirun", "mpirun -np 8 /opt/acme/worker &\nSERVER\n", "/opt/acme/worker"),
    _shell("ssh", "SERVER &\nssh localhost /opt/kvd --size 400g\n", "/opt/kvd"),
    _shell("ssh-reads-the-list",
           "while read -r node; do\n  ssh $node nvidia-smi\n  SERVER --port 3000$node &\n"
           "done <<T\n1\n2\nT\n", "how many times it runs is not known"),
    _shell("runuser", "runuser -u kv -- kvd --daemonize\nSERVER\n", "kvd --daemonize"),
    _shell("ctr", "ctr run -d docker.io/acme/kvd:1 kv\nSERVER\n", "acme/kvd:1"),
    _shell("python-text", "python3 -c 'import torch; x = torch.empty(10**11)' &\nSERVER\n",
           "python3 -c"),
    _shell("eval", "eval 'kvd &'\nSERVER\n", "kvd"),
    _shell("array", "CMD=(kvd --size 4g)\n\"${CMD[@]}\" &\nSERVER\n", "kvd --size 4g"),
    _shell("branch", "test -f x && kvd &\nSERVER\n", "kvd"),
    _shell("shell-on-stdin", "bash <<'T'\nkvd &\nT\nSERVER\n", "kvd"),
    # Services of Compose.
    _compose("compose-image", "image: acme/kvd:1", "service other"),
    _compose("compose-command", "image: acme/kvd:1\ncommand: serve --size 400g", "serve"),
    _compose("compose-build", "build: ./kvd", "service other"),
    _compose("compose-variable",
             f"image: lmsysorg/sglang:v0.5.9\ncommand: {SERVER} --port 31000\n"
             "environment: [FLEXKV_CPU_CACHE_GB=400]", "FLEXKV_CPU_CACHE_GB"),
    # Pods.
    _pod("pod-image", "image: acme/kvd:1", "container other"),
    _pod("pod-command", "image: acme/kvd:1\ncommand: [/opt/kvd, --size, 400g]", "/opt/kvd"),
    _pod("pod-args", "image: acme/kvd:1\nargs: [serve, --size, 400g]", "serve"),
    _pod("pod-variable",
         f"image: lmsysorg/sglang:v0.5.9\ncommand: [{', '.join(SERVER.split())}, --port, '31000']\n"
         "env: [{name: FLEXKV_CONFIG_PATH, value: /etc/flexkv.json}]", "FLEXKV_CONFIG_PATH"),
    # Units of systemd.
    _unit("unit", "ExecStart=/opt/kvd/bin/kvd --size 400g", "/opt/kvd/bin/kvd"),
    _unit("unit-docker", "ExecStart=/usr/bin/docker run --rm acme/kvd:1", "acme/kvd:1"),
    _unit("unit-variable", "Environment=FLEXKV_CPU_CACHE_GB=400\nExecStart=/bin/true",
          "FLEXKV_CPU_CACHE_GB"),
    # Dockerfiles.
    _dockerfile("dockerfile", f"CMD {SERVER} & exec /opt/kvd --size 400g", "/opt/kvd"),
    _dockerfile("dockerfile-entrypoint", f'ENTRYPOINT ["sh", "-c", "/opt/kvd & exec {SERVER}"]',
                "/opt/kvd"),
    _dockerfile("dockerfile-variable", f"ENV FLEXKV_CPU_CACHE_GB=400\nCMD {SERVER}",
                "FLEXKV_CPU_CACHE_GB"),
    # Jobs of Slurm.
    _sbatch("sbatch", "srun --overlap /opt/kvd --size 400g &\nSERVER\n", "/opt/kvd"),
    _sbatch("sbatch-container", "srun --overlap --container-image acme/kvd:1 kvd &\nSERVER\n",
            "kvd"),
    # Programs in Python.
    _python("python-popen", "subprocess.Popen(['/opt/kvd', '--size', '400g'])", "/opt/kvd"),
    _python("python-system", "import os\nos.system('kvd --size 400g &')", "kvd"),
    _python("python-environment",
            f"subprocess.Popen({SERVER.split()!r}, env={{'FLEXKV_CPU_CACHE_GB': '400'}})",
            "subprocess"),
    # Jobs of srt-slurm.
    _srt("srt-environment", f"{_BACKEND}\nenvironment:\n  FLEXKV_CPU_CACHE_GB: '400'",
         "FLEXKV_CPU_CACHE_GB"),
    _srt("srt-setup-script", f"{_BACKEND}\nsetup_script: kvd.sh", "kvd.sh"),
)  # fmt: skip
