"""The features of an engine that are neither step nor front end: each from settings to workers."""
