"""The commands of `poolpipe`, a file per group. Heavy modules are imported inside each command."""
