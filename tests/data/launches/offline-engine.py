"""SGLang's offline engine as its examples start it, and a store beside it."""

import os
import subprocess

import sglang

os.environ["MOONCAKE_MASTER"] = "127.0.0.1:50051"


def start_store(port: int = 50052):
    env = {**os.environ, "MC_STORE_MEMCPY": "1"}
    return subprocess.Popen(
        ["mooncake_client", "--master_server_address=127.0.0.1:50051", f"--port={port}"], env=env
    )


def main():
    subprocess.run("mooncake_master --rpc_port=50051 &", shell=True, check=True)
    store = start_store()
    engine = sglang.Engine(
        model_path="Qwen/Qwen3-14B",
        tp_size=2,
        enable_hierarchical_cache=True,
        hicache_storage_backend="mooncake",
    )
    print(engine.generate(["The capital of France is"], {"max_new_tokens": 8}))
    store.terminate()


if __name__ == "__main__":
    main()
