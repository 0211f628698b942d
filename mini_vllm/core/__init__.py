"""The pure core: which requests run, with how many tokens, in which KV blocks. No torch in here."""
