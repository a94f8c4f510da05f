"""The producer kit: keys that no other message has, and an outbox that holds key and message before they are sent."""
