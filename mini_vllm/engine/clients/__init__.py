"""How a front end reaches an engine: in its process, in another one, or several of them."""
