# An SGLang image with the gate in front of the server:
#   docker build -f entrypoint.Dockerfile --build-arg BASE=lmsysorg/sglang:v0.5.20 -t sglang:v0.5.20-checked .
#   docker run ... sglang:v0.5.20-checked python3 -m sglang.launch_server ...
ARG BASE=lmsysorg/sglang:v0.5.20
FROM ${BASE}

# Into the interpreter that runs SGLang, so that the check sees the Mooncake that the server will use.
COPY . /tmp/mooncake-preflight
RUN python3 -m pip install --no-cache-dir /tmp/mooncake-preflight && rm -rf /tmp/mooncake-preflight

# enforce: exit code 78 where the launch would fail; warn: say so and start; off: start.
ENV MOONCAKE_PREFLIGHT_MODE=enforce
# Of what cannot be read, the log has a word, and the server starts: in its own container a restart
# would read no more. --fail-on unknown refuses that too (docs/exec.md).
ENTRYPOINT ["mooncake-preflight", "exec", "--fail-on", "fail", "--"]
