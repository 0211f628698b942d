"""The command line, the HTTP server and the load generators."""
