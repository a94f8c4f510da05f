"""RocksDB options, all of them passed on every open: what is not passed is silently lost when a database is reopened."""

from __future__ import annotations

from typing import Final, Literal

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options

Compression = Literal["lz4", "zstd"]

BLOOM_BITS: Final = 10
BLOCK_BYTES: Final = 4096
_TABLE_FORMAT: Final = 5


def table_options(cache: Cache | None) -> BlockBasedOptions:
    """Return how sorted files are laid out; ``cache`` None where only a file is written."""
    table = BlockBasedOptions()
    table.set_bloom_filter(BLOOM_BITS, block_based=False)
    table.set_block_size(BLOCK_BYTES)
    table.set_format_version(_TABLE_FORMAT)
    if cache is not None:
        table.set_block_cache(cache)
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    return table


def sorted_file_options(compression: Compression) -> Options:
    """Return the options of a sorted file written outside a database: zstd is smaller, lz4 twice as fast to write."""
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(table_options(None))
    options.set_compression_type(
        DBCompressionType.lz4() if compression == "lz4" else DBCompressionType.zstd()
    )
    if compression == "zstd":
        options.set_compression_options(-14, 1, 0, 0)
    return options
