# A small image of the two commands alone, for a job or an init container:
#   docker build -f job.Dockerfile -t mooncake-preflight .
# It holds no Mooncake: what only its client can ask of a master stays unknown.
FROM debian:trixie-slim

# pyverbs is of the distribution's Python.
RUN apt-get update \
    && apt-get install -y --no-install-recommends ibverbs-providers python3-pyverbs python3-venv \
    && rm -rf /var/lib/apt/lists/*
COPY . /tmp/mooncake-preflight
RUN python3 -m venv --system-site-packages /opt/mooncake-preflight \
    && /opt/mooncake-preflight/bin/pip install --no-cache-dir /tmp/mooncake-preflight \
    && rm -rf /tmp/mooncake-preflight
ENV PATH=/opt/mooncake-preflight/bin:$PATH

USER 65534
ENTRYPOINT ["mooncake-preflight"]
CMD ["check"]
