"""Where fully_shard was before it moved to `tritorch.distributed.fsdp`; programs still import it from here."""
