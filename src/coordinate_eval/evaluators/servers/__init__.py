"""OpenAI-compatible servers, as those see them that ask: address, key, pace, replies."""
