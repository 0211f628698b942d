"""Workers, one a rank, and how an engine reaches them: here, in processes, or far away."""
