# A small image of the tool alone: docker build -t mooncake-preflight .
#
# What it says of limits, devices and memory is what its own container has: give it the server's.
#   docker run --rm --network host --ulimit memlock=-1 --device /dev/infiniband --gpus all \
#     -v "$PWD:/launch:ro" mooncake-preflight check /launch/launch.sh
FROM python:3.12-slim AS build
COPY pyproject.toml README.md LICENSE mooncake_preflight.py /src/
COPY checks /src/checks
COPY preflight /src/preflight
RUN pip install --no-cache-dir --prefix=/install /src

FROM python:3.12-slim
# RDMA devices are asked through rdma-core's own library; NUMA policies need nothing.
RUN apt-get update \
 && apt-get install -y --no-install-recommends ibverbs-providers \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /install /usr/local
ENTRYPOINT ["mooncake-preflight"]
CMD ["check"]
