"""What holds for all tests."""

import signal

# A shell starts background jobs with SIGINT ignored, and programs started here would inherit that;
# a handler, unlike SIG_IGN, does not outlive exec.
signal.signal(signal.SIGINT, signal.default_int_handler)
