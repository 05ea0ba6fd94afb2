"""Every exit code of both commands, and what it means."""

PASS = 0
WARN = 1  # it runs, and something is not as it should be
FAIL = 2  # it will not start, will not last, or cannot be had
UNKNOWN = 3  # what decides cannot be known
USAGE = 64  # EX_USAGE: what was given cannot be meant
DEFECT = 70  # EX_SOFTWARE: a defect of this program
NOT_PERMITTED = 77  # EX_NOPERM: of apply
REFUSED = 78  # EX_CONFIG, of exec: the server was never started; its own failures have other codes
NOT_FOUND = 127  # of exec, as a shell has it
INTERRUPTED = 130  # 128 + SIGINT
