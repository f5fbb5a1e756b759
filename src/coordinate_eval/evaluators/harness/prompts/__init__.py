"""From documents to tokens: templates, conversations and tokenizers."""
