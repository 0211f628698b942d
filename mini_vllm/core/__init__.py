"""The pure core: who runs, with how many tokens, in which KV blocks. No torch in here."""
