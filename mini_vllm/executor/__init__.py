"""How an engine reaches its workers: in this process, in others, on other machines."""
