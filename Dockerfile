# A small image of the tool alone: docker build -t mooncake-preflight .
#
# What it says of limits, devices and memory is what its own container has: give it the server's.
#   docker run --rm --network host --ulimit memlock=-1 --device /dev/infiniband --gpus all \
#     -v "$PWD:/launch:ro" mooncake-preflight check /launch/launch.sh
FROM debian:trixie-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv
COPY pyproject.toml README.md LICENSE mooncake_preflight.py /src/
COPY checks /src/checks
COPY preflight /src/preflight
# The distribution's Python, which has pyverbs, and what pip installs beside it.
RUN python3 -m venv --system-site-packages /opt/mooncake-preflight \
 && /opt/mooncake-preflight/bin/pip install --no-cache-dir /src

FROM debian:trixie-slim
# RDMA devices are asked through rdma-core's own library and binding; NUMA policies need nothing.
RUN apt-get update \
 && apt-get install -y --no-install-recommends ibverbs-providers python3-pyverbs \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/mooncake-preflight /opt/mooncake-preflight
ENV PATH=/opt/mooncake-preflight/bin:$PATH
ENTRYPOINT ["mooncake-preflight"]
CMD ["check"]
