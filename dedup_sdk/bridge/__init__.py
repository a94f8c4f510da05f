"""The bridge: records move from topics to topics, and each bears one dedup ID however often it is sent."""
