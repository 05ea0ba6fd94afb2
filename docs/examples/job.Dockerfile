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
# The one file that it makes (examples/gate) reads shell scripts with each of these Pythons.
RUN cd /tmp && PATH=/opt/mooncake-preflight/bin:$PATH \
    && version=$(python3 -c 'from importlib.metadata import version; print(version("tree-sitter"))') \
    && for python in 3.10 3.11 3.12 3.13 3.14; do \
        pip download --no-cache-dir --no-deps --only-binary :all: --python-version $python \
            --dest wheels "tree-sitter==$version" || exit 1; \
    done \
    && for wheel in wheels/*.whl; do python3 -m zipfile -e "$wheel" readers; done \
    && cp readers/tree_sitter/*.so /opt/mooncake-preflight/lib/python3*/site-packages/tree_sitter/ \
    && rm -r wheels readers
ENV PATH=/opt/mooncake-preflight/bin:$PATH

USER 65534
ENTRYPOINT ["mooncake-preflight"]
CMD ["check"]
