# An image of its own over SGLang's, as its users build them: settings as ENV, the server as CMD
FROM lmsysorg/sglang:v0.5.15
ENV MOONCAKE_MASTER=10.0.0.100:50051 \
    MOONCAKE_PROTOCOL=rdma
ENV SGLANG_LOG_LEVEL info
WORKDIR /srv
COPY . .
EXPOSE 30000
ENTRYPOINT ["python3", "-m", "sglang.launch_server"]
CMD ["--model-path", "Qwen/Qwen3-32B", "--tp", "8", "--port", "30000"]
