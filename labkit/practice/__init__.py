"""Practice after passing: find a bug, meet a changed requirement, predict a state."""
