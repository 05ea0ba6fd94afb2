MOONCAKE_MASTER=a:1 MOONCAKE_GLOBAL_SEGMENT_SIZE=700gb python3 -m mooncake.mooncake_store_service --port 1
mooncake_client --global_segment_size=700gb --master_server_address a:1
