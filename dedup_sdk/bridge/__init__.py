"""The bridge: copies records between topics, and gives each one dedup ID that stays the same in every resend."""
