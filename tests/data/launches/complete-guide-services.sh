# SGLang HiCache with Mooncake backend, complete guide: metadata service, master and store service
python -m mooncake.http_metadata_server

mooncake_master --eviction_high_watermark_ratio=0.95

python -m mooncake.mooncake_store_service --config=[config_path]
